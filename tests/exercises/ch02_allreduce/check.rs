#[path = "exercise.rs"]
mod exercise;

// All-reduce by way of rank 0, on 1 to 5 ranks whose numbers tell who is missing from a sum.

use candle_core::{DType, Tensor, Var};
use exercises::Expectation;
use exercises::contributions::{contribution, guess, sum};
use exercises::ranks::{self, Rank, Sends};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::Traffic;
use params_and_allreduce::{Algorithm, allreduce as allreduce_of_stage_2};

/// What a rank holds after the call.
struct Outcome {
    /// The variables as the update knows them.
    update: Vec<Tensor>,
    sent: Traffic,
}

/// Runs the answer on ranks that bring contributions of these shapes.
#[track_caller]
fn outcomes(world_size: usize, shapes: &'static [&[usize]]) -> Vec<Outcome> {
    ranks::run(world_size, Sends::Buffered, move |rank| {
        let gradients = shapes.iter().map(|&shape| contribution(rank.rank(), shape));
        reduced(rank, gradients.collect::<candle_core::Result<_>>()?)
    })
}

fn reduced(rank: &Rank<'_>, gradients: Vec<Tensor>) -> Result<Outcome, Error> {
    let variables = gradients.iter().map(Var::from_tensor);
    let mut gradients: Vec<Var> = variables.collect::<candle_core::Result<_>>()?;
    // Another hold on the same variables, as the update has one.
    let held = gradients.clone();
    exercise::allreduce(rank, &mut gradients)?;
    let update = held.iter().map(|variable| variable.as_tensor().copy());
    Ok(Outcome { update: update.collect::<candle_core::Result<_>>()?, sent: rank.traffic() })
}

/// What these checks expect of gradient `index` on a rank.
fn on(rank: usize, index: usize, world_size: usize) -> Expectation<'static> {
    Expectation::of(format!("gradient {index} on rank {rank} of {world_size}"))
        .guess(guess(world_size))
}

#[test]
fn every_rank_holds_the_sum() {
    for world_size in [2, 3, 5] {
        for (rank, outcome) in outcomes(world_size, &[&[2, 3]]).iter().enumerate() {
            on(rank, 0, world_size)
                .law("sum, then divide once: everyone gets the sum of all ranks, and only the update divides")
                .check_tensor(&expected(world_size, &[2, 3]), &outcome.update[0]);
        }
    }
}

#[test]
fn every_gradient_is_summed() {
    const SHAPES: [&[usize]; 3] = [&[4, 1, 3, 3], &[4], &[]];
    for (rank, outcome) in outcomes(3, &SHAPES).iter().enumerate() {
        for (index, shape) in SHAPES.iter().enumerate() {
            on(rank, index, 3)
                .law("each gradient of the list becomes the sum over all ranks")
                .check_tensor(&expected(3, shape), &outcome.update[index]);
        }
    }
}

/// The variables are looked at through another hold on them, as the update does.
#[test]
fn the_sum_is_written_into_the_variable() {
    for (rank, outcome) in outcomes(2, &[&[3]]).iter().enumerate() {
        let before = contribution(rank, 3).and_then(|own| own.to_vec1::<f32>());
        let before = before.expect("a contribution is made of f32");
        let untouched = move |_, got: f64| {
            (got == f64::from(before[0])).then(|| {
                "that is what was there before: the list has a new variable, the update the old"
                    .into()
            })
        };
        on(rank, 0, 2)
            .law("write the sum into the variable (Var::set): the update holds the variable, not the list")
            .guess(untouched)
            .check_tensor(&expected(2, &[3]), &outcome.update[0]);
    }
}

#[test]
fn messages_go_to_rank_0_and_back() {
    for world_size in [2, 4] {
        let outcomes = outcomes(world_size, &[&[5], &[2, 2]]);
        let sent: Vec<f64> = outcomes.iter().map(|outcome| outcome.sent.messages as f64).collect();
        let mut expected = vec![2.0; world_size];
        expected[0] = 2.0 * (world_size - 1) as f64;
        Expectation::of(format!("the number of messages sent for 2 gradients on {world_size} ranks"))
            .at(|rank| format!("rank {rank}"))
            .law("for each gradient every other rank sends one message, to rank 0, and rank 0 one to each")
            .check(&expected, &sent);
    }
}

#[test]
fn alone_nothing_changes_and_nothing_is_sent() {
    let outcome = outcomes(1, &[&[2, 3], &[4]]).remove(0);
    on(0, 1, 1)
        .law("the sum of one is itself")
        .check_tensor(&expected(1, &[4]), &outcome.update[1]);
    Expectation::of("the number of messages of a rank that is alone")
        .check(&[0.0], &[outcome.sent.messages as f64]);
}

/// Numbers that round, in f64: rank 0 must send the sum that it keeps.
#[test]
fn every_rank_has_the_same_bits_and_those_of_stage_2() {
    let results = ranks::run(3, Sends::Buffered, |rank| {
        let own = (contribution(rank.rank(), 7)?.to_dtype(DType::F64)? / 3.0)?;
        let outcome = reduced(rank, vec![own.clone()])?;
        Ok((outcome.update[0].clone(), allreduce_of_stage_2(rank, &own, Algorithm::Naive)?))
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

fn expected(world_size: usize, shape: &[usize]) -> Tensor {
    sum(world_size, shape).expect("a sum of contributions can be made")
}
