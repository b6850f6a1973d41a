//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce by way of the first rank.
//!
//! The sums are made on 1 to 5 ranks. A wrong sum shows which rank is missing.

use crate::contributions::{contribution, guess, sum};
use crate::prelude::*;
use harness::report::counted;

/// A rank and its gradients, which become the sums over all ranks.
pub type Answer = fn(&Rank, &mut [Var]) -> Result<(), Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_holds_the_sum,
    every_gradient_is_summed,
    messages_go_to_rank_0_and_back,
    alone_nothing_changes_and_nothing_is_sent,
    every_rank_has_the_same_bits_and_those_of_stage_2,
    errors_are_passed_on
];

const SUM: &str = "every rank gets the sum of all ranks; nothing is divided here";
const VARIABLE: &str =
    "write the sum into the variable (Var::set): the update holds the variable, not the list";
const MESSAGES: &str =
    "for each gradient every other rank sends one message, to rank 0, and rank 0 one to each";

const ITSELF: &str = "a variable cannot be set to its own memory: a rank that is alone has nothing to add and nothing to \
                      write";

/// The note on a sum that only the list has.
const REBOUND: &str =
    "this number was there before: the list has a new variable, and the update has the old one";

/// The variables of a rank after the call.
struct Outcome {
    /// The variables as the update knows them.
    update: Vec<Tensor>,
    /// The variables of the list.
    list: Vec<Tensor>,
    sent: Traffic,
}

#[track_caller]
fn outcomes(answer: Answer, world_size: usize, shapes: &'static [&[usize]]) -> Vec<Outcome> {
    run(world_size, move |rank| {
        let gradients = shapes.iter().map(|&shape| contribution(rank.rank(), shape));
        reduced(answer, rank, gradients.collect::<Result<_>>()?)
    })
}

#[track_caller]
fn run<R: Send + 'static>(
    world_size: usize,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Vec<R> {
    match ranks::attempt(world_size, Sends::Buffered, work) {
        Ok(results) => results,
        Err(failure) => {
            let law = law_of(&failure).map_or_else(String::new, |law| format!("\n  law: {law}"));
            panic!("on {}: {failure}{law}", counted(world_size, "rank"))
        }
    }
}

/// The law that a rank's failure is about, if it is about one of these.
fn law_of(failure: &str) -> Option<&'static str> {
    let is_about = |parts: &[&str]| parts.iter().any(|part| failure.contains(part));
    if is_about(&["deadlock: ", " never received", " still needed it", "exchange messages with"]) {
        return Some(MESSAGES);
    }
    if is_about(&[ranks::PROMISE_BROKEN]) {
        return Some(ranks::PROMISE);
    }
    is_about(&["cannot set a variable"]).then_some(ITSELF)
}

fn reduced(answer: Answer, rank: &Rank, gradients: Vec<Tensor>) -> Result<Outcome, Error> {
    let variables = gradients.iter().map(Var::from_tensor);
    let mut gradients: Vec<Var> = variables.collect::<Result<_>>()?;
    // The update holds the same variables through clones.
    let held = gradients.clone();
    answer(rank, &mut gradients)?;
    let copies = |variables: &[Var]| {
        variables.iter().map(|variable| variable.as_tensor().copy()).collect::<Result<_>>()
    };
    let outcome =
        Outcome { update: copies(&held)?, list: copies(&gradients)?, sent: rank.traffic() };
    // The update comes next and writes to the variables. A rank that has shared their memory breaks its promise.
    held.iter().try_for_each(|variable| variable.set(&(variable.as_tensor() - 1.0)?))?;
    Ok(outcome)
}

/// Whether the list has this sum and the update does not.
fn is_only_in_the_list(expected: &Tensor, outcome: &Outcome, index: usize) -> bool {
    let sum = numbers(expected).expect("a sum of contributions is made of f32");
    let has =
        |all: &[Tensor]| all.get(index).and_then(|one| numbers(one).ok()) == Some(sum.clone());
    has(&outcome.list) && !has(&outcome.update)
}

#[track_caller]
fn check_sum(
    world_size: usize,
    (rank, outcome): (usize, &Outcome),
    index: usize,
    shape: &[usize],
    law: &str,
) {
    let expected = sum(world_size, shape).expect("a sum of contributions can be made");
    let misplaced = is_only_in_the_list(&expected, outcome, index);
    on(rank, index, world_size)
        .law(if misplaced { VARIABLE } else { law })
        .guess(|expected, got| match misplaced {
            true => Some(REBOUND.to_owned()),
            false => guess(world_size)(expected, got),
        })
        .check_tensor(&expected, &outcome.update[index]);
}

fn on(rank: usize, index: usize, world_size: usize) -> Expectation<'static> {
    Expectation::of(format!("gradient {index} on rank {rank} of {world_size}"))
        .guess(guess(world_size))
}

/// The law reads the variables through clones, as the update does.
fn every_rank_holds_the_sum(answer: Answer) {
    for world_size in [2, 3, 5] {
        for outcome in outcomes(answer, world_size, &[&[2, 3]]).iter().enumerate() {
            check_sum(world_size, outcome, 0, &[2, 3], SUM);
        }
    }
}

fn every_gradient_is_summed(answer: Answer) {
    const SHAPES: [&[usize]; 3] = [&[4, 1, 3, 3], &[4], &[]];
    for outcome in outcomes(answer, 3, &SHAPES).iter().enumerate() {
        for (index, shape) in SHAPES.iter().enumerate() {
            let law = "each gradient of the list becomes the sum over all ranks";
            check_sum(3, outcome, index, shape, law);
        }
    }
}

fn messages_go_to_rank_0_and_back(answer: Answer) {
    for world_size in [2, 4] {
        let outcomes = outcomes(answer, world_size, &[&[5], &[2, 2]]);
        let sent: Vec<f64> = outcomes.iter().map(|outcome| outcome.sent.messages as f64).collect();
        let mut expected = vec![2.0; world_size];
        expected[0] = 2.0 * (world_size - 1) as f64;
        Expectation::of(format!(
            "the number of messages sent for 2 gradients on {world_size} ranks"
        ))
        .at(|rank| format!("rank {rank}"))
        .law(MESSAGES)
        .check(&expected, &sent);
    }
}

fn alone_nothing_changes_and_nothing_is_sent(answer: Answer) {
    let outcome = outcomes(answer, 1, &[&[2, 3], &[4]]).remove(0);
    on(0, 1, 1).law("the sum of one is itself").check_tensor(
        &sum(1, &[4]).expect("a sum of contributions can be made"),
        &outcome.update[1],
    );
    Expectation::of("the number of messages of a rank that is alone")
        .law("a rank that is alone has no receiver")
        .check(&[0.0], &[outcome.sent.messages as f64]);
}

/// Numbers that round, in f64: rank 0 must send the sum that it keeps.
fn every_rank_has_the_same_bits_and_those_of_stage_2(answer: Answer) {
    let results = run(3, move |rank| {
        let own = (contribution(rank.rank(), 7)?.to_dtype(DType::F64)? / 3.0)?;
        let outcome = reduced(answer, rank, vec![own.clone()])?;
        Ok((outcome.update[0].clone(), rank.all_reduce(&own, Algorithm::Naive)?))
    });
    for (rank, (got, theirs)) in results.iter().enumerate() {
        on(rank, 0, 3)
            .law("all ranks go on from equal numbers, to the last bit")
            .check_tensor(&results[0].0, got);
        on(rank, 0, 3)
            .law("it is what params_and_allreduce::all_reduce::naive computes")
            .up_to(1e-14)
            .check_tensor(theirs, got);
    }
}

fn errors_are_passed_on(answer: Answer) {
    ranks::errors_are_passed_on("3 ranks, one gradient", 3, Sends::Buffered, move |rank| {
        reduced(answer, rank, vec![contribution(rank.rank(), 4)?])
    });
}
