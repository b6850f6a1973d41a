//! Chapter 5, `book/src/ch05-concise-wrapper.md`: buckets travel during the backward pass.
//!
//! Passes whose gradients come in another order on every rank, or not at all, and the order in which the answer takes
//! gradients, starts buckets and waits.

use std::fmt;
use std::sync::{Arc, Mutex};

use candle_core::Shape;
use harness::lock::locked;

use crate::overlap::{Event, Given, Pass};
use crate::prelude::*;

/// A pass and the buckets; the sums over all ranks, by parameter.
pub type Answer = fn(&Pass<'_>, &[Vec<usize>]) -> Result<Vec<Tensor>, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_has_the_sums: sums in ALIKE,
    ranks_with_other_orders_do_not_deadlock: sums in UNLIKE,
    missing_gradients_are_errors in MISSING,
    buckets_start_as_early_as_they_can in ALIKE.into_iter().chain(UNLIKE),
    nothing_waits_during_the_pass in ALIKE.into_iter().chain(UNLIKE),
    errors_are_passed_on
];

const SUM: &str = "the sum of a gradient over all ranks has the place of its parameter; in a row, each gradient has the same \
                   place on every rank";
const ORDER: &str =
    "all ranks start all buckets, each once, in the same order: the order of the list";
const MISSED: &str = "a pass that ends without the gradient of a parameter is an error: zeros would hide the mistake";
const NAMED: &str = "the error names the parameter, as in the course's wrapper: a gradient can be missing far from the mistake";
const EARLY: &str =
    "a bucket starts as soon as its gradients, and those of the buckets before it, are there";
const COMPLETE: &str = "a bucket starts when the last of its gradients has come";
const WAIT: &str = "no rank waits before its backward pass has ended: until then the rank computes";

/// The laws about failures of ranks: a rank, or a sum, was not where another rank looked for it.
const FAILURES: [(&str, &str); 5] = [
    ("deadlock: ", ORDER),
    (" returned early", ORDER),
    (" still needed it", ORDER),
    (" never received", ORDER),
    ("on its way", ORDER),
];

/// Shapes of six gradients.
const SHAPES: [&[usize]; 6] = [&[2, 3], &[2], &[4], &[], &[3, 1], &[3]];

/// Gradients of a rank in the order in which they come.
type Order = &'static [usize];

/// Some passes at the same time: the buckets, and the order of each rank.
#[derive(Clone, Copy)]
struct Case(&'static [&'static [usize]], &'static [Order]);

const LAST_FIRST: Order = &[5, 4, 3, 2, 1, 0];

const BY_LAYERS: &[&[usize]] = &[&[5, 4], &[3, 2], &[1, 0]];

/// All ranks have the same order.
const ALIKE: [Case; 4] = [
    Case(BY_LAYERS, &[LAST_FIRST, LAST_FIRST]),
    Case(&[&[5], &[4, 3, 2, 1], &[0]], &[LAST_FIRST; 3]),
    Case(&[&[5, 4, 3, 2, 1, 0]], &[LAST_FIRST, LAST_FIRST]),
    Case(BY_LAYERS, &[LAST_FIRST]),
];

/// Each rank has its own order. The rows of the buckets of the third case are equally long: if they meet, nobody notices.
const UNLIKE: [Case; 4] = [
    Case(BY_LAYERS, &[LAST_FIRST, &[3, 5, 2, 4, 0, 1]]),
    Case(BY_LAYERS, &[&[0, 1, 2, 3, 4, 5], LAST_FIRST, &[4, 0, 5, 1, 2, 3]]),
    Case(&[&[5], &[4], &[3, 1], &[2, 0]], &[LAST_FIRST, &[4, 5, 1, 2, 3, 0]]),
    Case(
        &[&[5, 0], &[4, 1], &[3, 2]],
        &[LAST_FIRST, &[3, 2, 4, 1, 5, 0], &[0, 5, 1, 4, 2, 3], &[2, 3, 5, 4, 1, 0]],
    ),
];

/// Some ranks get no gradient of some parameters.
const MISSING: [Case; 4] = [
    Case(BY_LAYERS, &[LAST_FIRST, &[5, 4, 1, 0]]),
    Case(BY_LAYERS, &[&[4, 3, 2, 1, 0], LAST_FIRST, &[5, 3]]),
    Case(BY_LAYERS, &[&[], LAST_FIRST]),
    Case(BY_LAYERS, &[&[5, 4, 3, 2, 0], &[5, 4, 3, 2, 0]]),
];

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = |lists: &[&[usize]]| {
            in_groups(&lists.iter().map(|list| list.to_vec()).collect::<Vec<_>>())
        };
        let Self(buckets, orders) = self;
        let (ranks, orders) = (counted(orders.len(), "rank"), lists(orders));
        write!(f, "buckets {}; gradients on {ranks} {orders}", lists(buckets))
    }
}

impl Case {
    fn pass<'a>(&self, rank: &'a Rank) -> Result<Pass<'a>, Error> {
        let order = self.1[rank.rank()].iter();
        let coming = order.map(|&parameter| Ok((parameter, gradient(rank.rank(), parameter)?)));
        let shapes = SHAPES.iter().map(|&shape| Shape::from(shape)).collect();
        Ok(Pass::new(shapes, Given::new(rank, coming.collect::<Result<_>>()?)))
    }

    /// The sums on every rank, and what each answer did, also if a rank has failed.
    fn run(self, answer: Answer) -> (Outcome<Vec<Vec<Tensor>>>, Vec<Vec<Event>>) {
        let buckets: Vec<Vec<usize>> = self.0.iter().map(|bucket| bucket.to_vec()).collect();
        let events = Arc::new(Mutex::new(vec![Vec::new(); self.1.len()]));
        let record = Arc::clone(&events);
        let sums = ranks::run(self.1.len(), Sends::Buffered, move |rank| {
            let pass = self.pass(rank)?;
            let sums = answer(&pass, &buckets);
            locked(&record)[rank.rank()] = pass.events();
            sums
        });
        let events = locked(&events).clone();
        (sums, events)
    }

    /// The same, where no rank may fail.
    fn complete(self, answer: Answer) -> Outcome<Vec<(Vec<Tensor>, Vec<Event>)>> {
        let (sums, events) = self.run(answer);
        // A sum that was taken too early may be of another shape.
        let sums = sums.or_else(|failure| {
            waits_at_the_end(&events)?;
            Err(failure.law_by(&FAILURES))
        })?;
        Ok(sums.into_iter().zip(events).collect())
    }
}

fn gradient(rank: usize, parameter: usize) -> Result<Tensor> {
    contribution(rank, SHAPES[parameter])? * (1 + parameter) as f64
}

fn sums(answer: Answer, case: &Case) -> Outcome {
    let ranks = case.1.len();
    for (rank, (sums, _)) in case.complete(answer)?.iter().enumerate() {
        same(format!("rank {rank}: the number of sums"), SHAPES.len(), sums.len(), SUM)?;
        for (parameter, (got, shape)) in sums.iter().zip(SHAPES).enumerate() {
            let expected = (sum(ranks, shape)? * (1 + parameter) as f64)?;
            Expectation::of(format!("rank {rank}: the sum of gradient {parameter}"))
                .law(SUM)
                .guess(guess(ranks))
                .compare_tensors(&expected, got)?;
        }
    }
    Ok(())
}

fn missing_gradients_are_errors(answer: Answer, case: &Case) -> Outcome {
    let finding = |expected: &str, got: String, law: &str| {
        Err(Finding::new("a gradient never comes").expected(expected, got).law(law))
    };
    let wanted = "an error of the rank whose gradient it is";
    let Err(failure) = case.run(answer).0 else { return finding(wanted, "sums".into(), MISSED) };
    let failure = failure.to_string();
    let is_between_ranks = FAILURES.iter().any(|(part, _)| failure.contains(part));
    if is_between_ranks || failure.contains(" panicked: ") {
        return finding(wanted, failure, MISSED);
    }
    match names_a_missing_parameter(&failure, case.1) {
        true => Ok(()),
        false => finding("an error that has the number of the parameter", failure, NAMED),
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

fn buckets_start_as_early_as_they_can(answer: Answer, case: &Case) -> Outcome {
    for (rank, (_, events)) in case.complete(answer)?.iter().enumerate() {
        let finding = |what: String, expected: String, got: String, law: &str| {
            Err(Finding::new(format!("rank {rank}: {what}")).expected(expected, got).law(law))
        };
        let (mut come, mut started) = (Vec::new(), 0);
        for event in events {
            let members = case.0.get(started);
            let complete = members.is_some_and(|all| all.iter().all(|one| come.contains(one)));
            match (*event, members) {
                (Event::Gradient(_) | Event::End, _) if complete => {
                    let expected =
                        format!("bucket {started} starts after gradients {}", in_a_row(&come));
                    let got = "the next gradient is taken before that".to_owned();
                    return finding("a bucket starts late".to_owned(), expected, got, EARLY);
                }
                (Event::Gradient(parameter), _) => come.push(parameter),
                (Event::End, _) => come = (0..SHAPES.len()).collect(),
                (Event::Start(bucket), Some(members)) if bucket == started && !complete => {
                    let what = format!("bucket {bucket} starts too early");
                    let expected = format!("gradients {} before it starts", in_a_row(*members));
                    return finding(
                        what,
                        expected,
                        format!("gradients {}", in_a_row(&come)),
                        COMPLETE,
                    );
                }
                (Event::Start(bucket), Some(_)) if bucket == started => started += 1,
                (Event::Start(bucket), members) => {
                    let next = members.map_or("no further".to_owned(), |_| started.to_string());
                    let got = format!("bucket {bucket}");
                    return finding(
                        format!("start {started}"),
                        format!("bucket {next}"),
                        got,
                        ORDER,
                    );
                }
                (Event::Wait, _) => {}
            }
        }
    }
    Ok(())
}

fn nothing_waits_during_the_pass(answer: Answer, case: &Case) -> Outcome {
    let (_, events): (Vec<_>, Vec<_>) = case.complete(answer)?.into_iter().unzip();
    waits_at_the_end(&events)
}

/// Demands that no rank has waited before the end of its pass.
fn waits_at_the_end(events: &[Vec<Event>]) -> Outcome {
    for (rank, events) in events.iter().enumerate() {
        let during = || events.iter().take_while(|event| **event != Event::End);
        let before = during().take_while(|event| **event != Event::Wait);
        let taken = before.clone().filter(|it| matches!(it, Event::Gradient(_))).count();
        demand(before.count() == during().count(), || {
            Finding::new(format!("rank {rank} waits for a sum"))
                .expected(
                    "after next_gradient has returned None",
                    format!("after {}", counted(taken, "gradient")),
                )
                .law(WAIT)
        })?;
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let case = UNLIKE[1];
    let buckets: Vec<Vec<usize>> = case.0.iter().map(|bucket| bucket.to_vec()).collect();
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| answer(&case.pass(rank)?, &buckets))
}
