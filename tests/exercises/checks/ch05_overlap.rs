//! Chapter 5, `book/src/ch05-concise-wrapper.md`: buckets travel during the backward pass.
//!
//! Passes whose gradients come in another order on every rank, or not at all, and the order in which the answer takes
//! gradients, starts buckets and waits.

use candle_core::Shape;

use crate::overlap::{Event, Pass};
use crate::panicking;
use crate::prelude::*;

/// A pass and the buckets; the sums over all ranks, by parameter.
pub type Answer = fn(&Pass<'_>, &[Vec<usize>]) -> Result<Vec<Tensor>, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_has_the_sums,
    ranks_with_other_orders_do_not_deadlock,
    missing_gradients_are_errors,
    buckets_start_as_early_as_they_can,
    nothing_waits_during_the_pass,
    errors_are_passed_on
];

const SUM: &str = "the sum of a gradient over all ranks has the place of its parameter; in a row, each gradient has the same \
                   place on every rank";
const ORDER: &str =
    "all ranks start all buckets, each once, in the same order: the order of the list";
const MISSED: &str = "a pass that ends without the gradient of a parameter is an error: zeros would hide the mistake";
const EARLY: &str =
    "a bucket starts as soon as its gradients, and those of the buckets before it, are there";
const COMPLETE: &str = "a bucket starts when the last of its gradients has come";
const WAIT: &str = "no rank waits before its backward pass has ended: until then the rank computes";

/// Shapes of six gradients.
const SHAPES: [&[usize]; 6] = [&[2, 3], &[2], &[4], &[], &[3, 1], &[3]];

/// Gradients of a rank in the order in which they come.
type Order = &'static [usize];

/// Some passes at the same time: the buckets, and the order of each rank.
struct Case {
    buckets: &'static [&'static [usize]],
    orders: &'static [Order],
}

const LAST_FIRST: Order = &[5, 4, 3, 2, 1, 0];

const BY_LAYERS: &[&[usize]] = &[&[5, 4], &[3, 2], &[1, 0]];

/// All ranks have the same order.
const ALIKE: [Case; 4] = [
    Case { buckets: BY_LAYERS, orders: &[LAST_FIRST, LAST_FIRST] },
    Case { buckets: &[&[5], &[4, 3, 2, 1], &[0]], orders: &[LAST_FIRST; 3] },
    Case { buckets: &[&[5, 4, 3, 2, 1, 0]], orders: &[LAST_FIRST, LAST_FIRST] },
    Case { buckets: BY_LAYERS, orders: &[LAST_FIRST] },
];

/// Each rank has its own order. The rows of the buckets of the third case are equally long: if they meet, nobody notices.
const UNLIKE: [Case; 4] = [
    Case { buckets: BY_LAYERS, orders: &[LAST_FIRST, &[3, 5, 2, 4, 0, 1]] },
    Case { buckets: BY_LAYERS, orders: &[&[0, 1, 2, 3, 4, 5], LAST_FIRST, &[4, 0, 5, 1, 2, 3]] },
    Case { buckets: &[&[5], &[4], &[3, 1], &[2, 0]], orders: &[LAST_FIRST, &[4, 5, 1, 2, 3, 0]] },
    Case {
        buckets: &[&[5, 0], &[4, 1], &[3, 2]],
        orders: &[LAST_FIRST, &[3, 2, 4, 1, 5, 0], &[0, 5, 1, 4, 2, 3], &[2, 3, 5, 4, 1, 0]],
    },
];

/// Some ranks get no gradient of some parameters.
const MISSING: [Case; 4] = [
    Case { buckets: BY_LAYERS, orders: &[LAST_FIRST, &[5, 4, 1, 0]] },
    Case { buckets: BY_LAYERS, orders: &[&[4, 3, 2, 1, 0], LAST_FIRST, &[5, 3]] },
    Case { buckets: BY_LAYERS, orders: &[&[], LAST_FIRST] },
    Case { buckets: BY_LAYERS, orders: &[&[5, 4, 3, 2, 0], &[5, 4, 3, 2, 0]] },
];

impl Case {
    fn given(&self) -> String {
        let lists = |lists: &[&[usize]]| {
            in_groups(&lists.iter().map(|list| list.to_vec()).collect::<Vec<_>>())
        };
        let ranks = counted(self.orders.len(), "rank");
        format!("buckets {}; gradients on {ranks} {}", lists(self.buckets), lists(self.orders))
    }

    fn buckets(&self) -> Vec<Vec<usize>> {
        self.buckets.iter().map(|bucket| bucket.to_vec()).collect()
    }

    /// The sums on every rank, and what each answer did; or the failure.
    fn attempt(&self, answer: Answer) -> Result<Vec<(Vec<Tensor>, Vec<Event>)>, String> {
        let (buckets, orders) = (self.buckets(), self.orders);
        panicking::attempt(orders.len(), Sends::Buffered, move |rank| {
            let pass = pass(rank, orders[rank.rank()])?;
            Ok((answer(&pass, &buckets)?, pass.events()))
        })
    }

    /// The same, where no rank may fail.
    #[track_caller]
    fn run(&self, answer: Answer) -> Vec<(Vec<Tensor>, Vec<Event>)> {
        self.attempt(answer).unwrap_or_else(|failure| {
            let of_order = misses_a_rank(&failure);
            let law = if of_order { format!("\n  law: {ORDER}") } else { String::new() };
            panic!("{}: {failure}{law}", self.given())
        })
    }

    fn check_sums(&self, answer: Answer) -> Result<()> {
        for (rank, (sums, _)) in self.run(answer).iter().enumerate() {
            let what = format!("{}: rank {rank}", self.given());
            if sums.len() != SHAPES.len() {
                let (expected, got) = (SHAPES.len().to_string(), sums.len().to_string());
                fail(&format!("{what}: the number of sums"), &expected, &got, SUM);
            }
            for (parameter, (got, shape)) in sums.iter().zip(SHAPES).enumerate() {
                let mut expected = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
                for other in 0..self.orders.len() {
                    expected = (expected + gradient(other, parameter)?)?;
                }
                Expectation::of(format!("{what}: the sum of gradient {parameter}"))
                    .law(SUM)
                    .guess(guess(self.orders.len()))
                    .check_tensor(&expected, got);
            }
        }
        Ok(())
    }
}

fn gradient(rank: usize, parameter: usize) -> Result<Tensor> {
    contribution(rank, SHAPES[parameter])? * (1 + parameter) as f64
}

fn pass<'a>(rank: &'a Rank, order: Order) -> Result<Pass<'a>, Error> {
    let coming = order.iter().map(|&parameter| Ok((parameter, gradient(rank.rank(), parameter)?)));
    let shapes = SHAPES.iter().map(|&shape| Shape::from(shape)).collect();
    Ok(Pass::new(rank, shapes, coming.collect::<Result<_>>()?))
}

fn every_rank_has_the_sums(answer: Answer) -> Result<()> {
    ALIKE.iter().try_for_each(|case| case.check_sums(answer))
}

fn ranks_with_other_orders_do_not_deadlock(answer: Answer) -> Result<()> {
    UNLIKE.iter().try_for_each(|case| case.check_sums(answer))
}

fn missing_gradients_are_errors(answer: Answer) {
    for case in &MISSING {
        let got = match case.attempt(answer) {
            Ok(_) => "sums".to_owned(),
            Err(failure) if misses_a_rank(&failure) || failure.contains(" panicked: ") => failure,
            Err(_) => continue,
        };
        let what = format!("{}: a gradient never comes", case.given());
        fail(&what, "an error of the rank whose gradient it is", &got, MISSED);
    }
}

/// Whether a rank failed since another rank, or a sum, was not where it looked for it.
fn misses_a_rank(failure: &str) -> bool {
    ranks::is_between_ranks(failure) || failure.contains("on its way")
}

/// The cases in which every gradient comes.
fn cases() -> impl Iterator<Item = &'static Case> {
    ALIKE.iter().chain(&UNLIKE)
}

fn buckets_start_as_early_as_they_can(answer: Answer) {
    for case in cases() {
        for (rank, (_, events)) in case.run(answer).iter().enumerate() {
            let what = format!("{}: rank {rank}", case.given());
            let (mut come, mut started) = (Vec::new(), 0);
            for event in events {
                let complete = |bucket: usize| {
                    case.buckets
                        .get(bucket)
                        .is_some_and(|all| all.iter().all(|one| come.contains(one)))
                };
                match *event {
                    Event::Gradient(_) | Event::End if complete(started) => {
                        let expected =
                            format!("bucket {started} starts after gradients {}", in_a_row(&come));
                        let got = "the next gradient is taken before that";
                        fail(&format!("{what}: a bucket starts late"), &expected, got, EARLY);
                    }
                    Event::Gradient(parameter) => come.push(parameter),
                    Event::End => come = (0..SHAPES.len()).collect(),
                    Event::Start(bucket) if !complete(bucket) => {
                        let expected = format!(
                            "gradients {} before it starts",
                            in_a_row(case.buckets[bucket])
                        );
                        let got = format!("gradients {}", in_a_row(&come));
                        fail(
                            &format!("{what}: bucket {bucket} starts too early"),
                            &expected,
                            &got,
                            COMPLETE,
                        );
                    }
                    Event::Start(_) => started += 1,
                    Event::Wait => {}
                }
            }
        }
    }
}

fn nothing_waits_during_the_pass(answer: Answer) {
    for case in cases() {
        for (rank, (_, events)) in case.run(answer).iter().enumerate() {
            let end = events.iter().position(|event| *event == Event::End);
            let wait = events.iter().position(|event| *event == Event::Wait);
            if wait.is_some_and(|wait| end.is_none_or(|end| wait < end)) {
                let what = format!("{}: rank {rank} waits for a sum", case.given());
                let taken = events[..wait.unwrap_or(0)]
                    .iter()
                    .filter(|event| matches!(event, Event::Gradient(_)))
                    .count();
                fail(
                    &what,
                    "after next_gradient has returned None",
                    &format!("after {}", counted(taken, "gradient")),
                    WAIT,
                );
            }
        }
    }
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let buckets = UNLIKE[1].buckets();
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        answer(&pass(rank, UNLIKE[1].orders[rank.rank()])?, &buckets)
    })
}
