//! Chapter 5, `book/src/ch05-concise-wrapper.md`: buckets travel during the backward pass.
//!
//! In some passes, each rank has another order of gradients, or a gradient is missing. The check compares the order of the answer's
//! actions: it takes gradients, starts buckets and waits.

use std::sync::{Arc, Mutex};

use harness::lock::locked;

use crate::overlap::{Event, Given, Pass};
use crate::prelude::*;

/// A pass and the buckets; the sums over all ranks, by parameter.
pub type Answer = fn(&Pass<'_>, &[Vec<usize>]) -> Result<Vec<Tensor>, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    every_rank_has_the_sums: sums in ALIKE,
    ranks_with_other_orders_do_not_deadlock: sums in UNLIKE,
    missing_gradients_are_errors in MISSING,
    buckets_start_as_early_as_they_can in ALIKE.into_iter().chain(UNLIKE),
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| answer(&UNLIKE[1].pass(rank)?, &UNLIKE[1].buckets()),
];

const SUM: &str = "the sum of a gradient over all ranks has the place of its parameter; a row has one order on every rank";
const ORDER: &str = "all ranks start all buckets, each once, in the same order: the list's";
const MISSED: &str = "a pass that ends without the gradient of a parameter is an error: zeros would hide the mistake";
const NAMED: &str = "the error names the parameter, as in the course's wrapper: a gradient can be missing far from the mistake";
const EARLY: &str = "a bucket starts as soon as its gradients are there, in the order of the list";
const COMPLETE: &str = "a bucket starts when the last of its gradients has come";
const WAIT: &str = "no rank waits before its backward pass has ended: until then the rank computes";

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

shown!(Case(buckets, orders) =>
    "buckets {}; gradients on {} {}", lists(buckets), counted(orders.len(), "rank"), lists(orders));

fn lists(lists: &[&[usize]]) -> String {
    in_groups(&lists.iter().map(|list| list.to_vec()).collect::<Vec<_>>())
}

impl Case {
    fn buckets(self) -> Vec<Vec<usize>> {
        self.0.iter().map(|bucket| bucket.to_vec()).collect()
    }

    fn pass<'a>(&self, rank: &'a Rank) -> Result<Pass<'a>, Error> {
        let order = self.1[rank.rank()].iter();
        let coming = order.map(|&parameter| Ok((parameter, gradient(rank.rank(), parameter)?)));
        let shapes = SHAPES.iter().map(|&shape| Shape::from(shape)).collect();
        Ok(Pass::new(shapes, Given::new(rank, coming.collect::<Result<_>>()?)))
    }

    /// The sums and the events of every rank, also if a rank has failed.
    fn run(self, answer: Answer) -> (Outcome<Vec<Vec<Tensor>>>, Vec<Vec<Event>>) {
        let buckets = self.buckets();
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
        let sums = sums.map_err(|failure| {
            let waits = |events: &Vec<Event>| {
                events.iter().take_while(|it| **it != Event::End).any(|it| *it == Event::Wait)
            };
            // A sum that was taken too early may be of another shape.
            match miss_each_other(&failure.to_string()) {
                _ if events.iter().any(waits) => failure.law(WAIT),
                true => failure.law(ORDER),
                false => failure,
            }
        })?;
        Ok(sums.into_iter().zip(events).collect())
    }

    /// The right events of a rank, in order.
    fn best(self, rank: usize) -> Vec<Event> {
        let (mut come, mut next, mut events) = (Vec::new(), 0, Vec::new());
        for &parameter in self.1[rank] {
            come.push(parameter);
            events.push(Event::Gradient(parameter));
            while let Some(bucket) = self.0.get(next)
                && bucket.iter().all(|one| come.contains(one))
            {
                events.push(Event::Start(next));
                next += 1;
            }
        }
        events.push(Event::End);
        events.extend(self.0.iter().map(|_| Event::Wait));
        events
    }
}

/// Whether a rank, or a sum, was not where another rank looked for it.
fn miss_each_other(failure: &str) -> bool {
    ranks::is_between_ranks(failure) || failure.contains("on its way")
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
    let failure = case.run(answer).0.map_or_else(|it| it.to_string(), |_| String::from("sums"));
    let missed = failure == "sums" || miss_each_other(&failure) || failure.contains("panicked: ");
    let right = !missed && names_a_missing_parameter(&failure, case.1);
    let sides = ("an error of the rank whose gradient it is, with its number", failure);
    expect(right, "a gradient never comes", sides, if missed { MISSED } else { NAMED })
}

/// Whether a failure such as `rank 1 failed: parameter 3 …` has a missing gradient of this rank.
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

/// Compares the events of each rank with the right events.
fn buckets_start_as_early_as_they_can(answer: Answer, case: &Case) -> Outcome {
    use Event::{End, Gradient, Start, Wait};
    for (rank, (_, mut events)) in case.complete(answer)?.into_iter().enumerate() {
        // A rank may ask again whether the pass has ended.
        events.dedup_by(|a, b| (*a, *b) == (End, End));
        let best = case.best(rank);
        let mut all = 0..best.len().max(events.len());
        let Some(at) = all.find(|&at| best.get(at) != events.get(at)) else { continue };
        let next = events[..at].iter().filter(|it| matches!(it, Start(_))).count();
        let (what, law) = match (best.get(at), events.get(at)) {
            (Some(Gradient(_) | Start(_) | End), Some(Wait)) => ("a rank waits for a sum", WAIT),
            (Some(Start(_)), Some(Gradient(_) | End)) => ("a bucket starts late", EARLY),
            (Some(_), Some(Start(one))) if *one == next => ("a bucket starts too early", COMPLETE),
            _ => ("other buckets start", ORDER),
        };
        let told = |events: &[Event]| format!("{:?}", &events[..events.len().min(at + 1)]);
        return Err(Finding::new(format!("rank {rank}: {what}"))
            .expected(told(&best), told(&events))
            .law(law));
    }
    Ok(())
}
