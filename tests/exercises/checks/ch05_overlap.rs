//! Chapter 5, `book/src/ch05-concise-wrapper.md`: buckets travel during the backward pass.
//!
//! Passes whose gradients come in another order on every rank, or not at all, and the order in which the answer takes
//! gradients, starts buckets and waits.

use std::sync::{Arc, Mutex};

use candle_core::Shape;
use harness::lock::locked;
use harness::report::counted;

use crate::contributions::{contribution, guess};
use crate::overlap::{Event, Given, Pass};
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
const NAMED: &str = "the error names the parameter, as in the course's wrapper: a gradient can be missing far from the mistake";
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

    /// The sums on every rank or the failure, and what each answer did.
    fn attempt(&self, answer: Answer) -> (Result<Vec<Vec<Tensor>>, String>, Vec<Vec<Event>>) {
        let (buckets, orders) = (self.buckets(), self.orders);
        let events = Arc::new(Mutex::new(vec![Vec::new(); orders.len()]));
        let record = Arc::clone(&events);
        let sums = ranks::attempt(orders.len(), Sends::Buffered, move |rank| {
            let pass = pass(rank, orders[rank.rank()])?;
            let sums = answer(&pass, &buckets);
            locked(&record)[rank.rank()] = pass.events();
            sums
        });
        let events = locked(&events).clone();
        (sums, events)
    }

    /// The same, where no rank may fail.
    #[track_caller]
    fn run(&self, answer: Answer) -> Vec<(Vec<Tensor>, Vec<Event>)> {
        let (sums, events) = self.attempt(answer);
        let sums = sums.unwrap_or_else(|failure| {
            // A sum that was taken too early may be of another shape.
            self.check_waits(&events);
            let of_order = misses_a_rank(&failure);
            let law = if of_order { format!("\n  law: {ORDER}") } else { String::new() };
            panic!("{}: {failure}{law}", self.given())
        });
        sums.into_iter().zip(events).collect()
    }

    fn check_waits(&self, events: &[Vec<Event>]) {
        for (rank, events) in events.iter().enumerate() {
            let during = events.iter().take_while(|event| **event != Event::End);
            let before: Vec<&Event> =
                during.clone().take_while(|event| **event != Event::Wait).collect();
            if before.len() < during.count() {
                let taken = before.iter().filter(|it| matches!(it, Event::Gradient(_))).count();
                let what = format!("{}: rank {rank} waits for a sum", self.given());
                let got = format!("after {}", counted(taken, "gradient"));
                fail(&what, "after next_gradient has returned None", &got, WAIT);
            }
        }
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
    Ok(Pass::new(shapes, Given::new(rank, coming.collect::<Result<_>>()?)))
}

fn every_rank_has_the_sums(answer: Answer) -> Result<()> {
    ALIKE.iter().try_for_each(|case| case.check_sums(answer))
}

fn ranks_with_other_orders_do_not_deadlock(answer: Answer) -> Result<()> {
    UNLIKE.iter().try_for_each(|case| case.check_sums(answer))
}

fn missing_gradients_are_errors(answer: Answer) {
    for case in &MISSING {
        let what = format!("{}: a gradient never comes", case.given());
        let got = match case.attempt(answer).0 {
            Ok(_) => "sums".to_owned(),
            Err(failure) if misses_a_rank(&failure) || failure.contains(" panicked: ") => failure,
            Err(failure) if names_a_missing_parameter(&failure, case.orders) => continue,
            Err(failure) => {
                fail(&what, "an error that has the number of the parameter", &failure, NAMED)
            }
        };
        fail(&what, "an error of the rank whose gradient it is", &got, MISSED);
    }
}

/// Whether a failure has the number of a parameter whose gradient the failed rank misses: `rank 1 failed: parameter 3 …`.
fn names_a_missing_parameter(failure: &str, orders: &[Order]) -> bool {
    let numbers = |text: &str| {
        let parts = text.split(|letter: char| !letter.is_ascii_digit());
        parts.filter_map(|part| part.parse::<usize>().ok()).collect::<Vec<_>>()
    };
    let Some((rank, error)) = failure.split_once(" failed: ") else { return false };
    let order = numbers(rank).last().and_then(|&rank| orders.get(rank));
    let misses = |parameter: &usize| order.is_some_and(|order| !order.contains(parameter));
    numbers(error).iter().any(|number| *number < SHAPES.len() && misses(number))
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
                    Event::Start(bucket) if bucket != started => {
                        let expected = match started == case.buckets.len() {
                            true => "no further start".to_owned(),
                            false => format!("bucket {started}"),
                        };
                        let got = format!("bucket {bucket}");
                        fail(&format!("{what}: start {started}"), &expected, &got, ORDER);
                    }
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
        let (_, events): (Vec<_>, Vec<_>) = case.run(answer).into_iter().unzip();
        case.check_waits(&events);
    }
}

fn errors_are_passed_on(answer: Answer) {
    let buckets = UNLIKE[1].buckets();
    ranks::errors_are_passed_on("three orders on 3 ranks", 3, Sends::Buffered, move |rank| {
        answer(&pass(rank, UNLIKE[1].orders[rank.rank()])?, &buckets)
    });
}
