//! Chapter 7, `book/src/ch07-sharded-state.md`: SGD with momentum whose velocity is in chunks, as in ZeRO 1.
//!
//! Some steps, compared with one device. The check counts the numbers of each rank's velocity, and all messages.

use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::prelude::*;

/// A rank, the row, its gradient, its velocity, momentum and rate; the new row and velocity.
pub type Answer = fn(
    &SharedCommunicator,
    &Tensor,
    &Tensor,
    Option<&Tensor>,
    [f64; 2],
) -> Result<(Tensor, Tensor), Error>;

pub const LAWS: &[Law<Answer>] = laws![
    two_ranks: steps in [Case(2, 8), Case(2, 7)],
    any_number_of_ranks: steps in [Case(3, 9), Case(3, 8), Case(4, 6), Case(1, 5), Case(4, 3)],
    each_rank_holds_the_velocity_of_its_chunk in [Case(2, 8), Case(3, 8), Case(4, 3), Case(1, 5)],
    few_bytes_are_sent in [Case(2, 8), Case(3, 9), Case(4, 8), Case(2, 7)],
    the_inputs_keep_their_numbers in [Case(2, 8)],
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank|
        answer(&rank.into(), &start(7)?, &contribution(rank.rank(), 7)?, None, CONSTANTS),
];

const STEP: &str = "v ← momentum · v + sum of all ranks' gradients; w ← w − rate · v";
const CHUNK: &str = "a rank holds the velocity of its chunk alone: 1/k of the optimizer's state";
const BYTES: &str = "each rank gets its chunk of the sum, and then every chunk of the new row: 2(k − 1)/k of the row, as an all-reduce";
const KEPT: &str = "the caller's tensors keep their numbers: results have their own memory";
const TAKE_PART: &str =
    "all ranks call the same collectives in the same order, with chunks of `chunk_range`";

const CONSTANTS: [f64; 2] = [0.5, 0.25];
const STEPS: usize = 3;

/// A number of ranks, and of parameters.
#[derive(Clone, Copy)]
struct Case(usize, usize);

shown!(Case(ranks, numbers) => "{}, {}", counted(*ranks, "rank"), counted(*numbers, "parameter"));

/// The row before the first step: 1, 2, 3, …
fn start(numbers: usize) -> Result<Tensor> {
    contribution(0, numbers)
}

/// The gradient of a rank in a step.
fn gradient(rank: usize, step: usize, numbers: usize) -> Result<Tensor> {
    contribution(rank, numbers)? * (step + 1) as f64
}

impl Case {
    /// The row and the velocity of a rank after each step.
    fn train(self, answer: Answer, rank: &Rank) -> Result<Vec<(Tensor, Tensor)>, Error> {
        let (comm, mut done) = (rank.into(), Vec::<(Tensor, Tensor)>::new());
        for step in 0..STEPS {
            let row = done.last().map_or_else(|| start(self.1), |(row, _)| Ok(row.clone()))?;
            let velocity = done.last().map(|(_, velocity)| velocity.clone());
            let gradient = gradient(rank.rank(), step, self.1)?;
            done.push(answer(&comm, &row, &gradient, velocity.as_ref(), CONSTANTS)?);
        }
        Ok(done)
    }

    fn run<R: Send + 'static>(
        self,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        ranks::run(self.0, Sends::Buffered, work).map_err(ranks::all_take_part(TAKE_PART, true))
    }

    /// Row and velocity of one device after each step.
    fn alone(self) -> Result<Vec<[Tensor; 2]>> {
        let ([momentum, rate], mut done) = (CONSTANTS, Vec::new());
        let (mut row, mut velocity) = (start(self.1)?, (start(self.1)? * 0.0)?);
        for step in 0..STEPS {
            let gradient = (sum(self.0, self.1)? * (step + 1) as f64)?;
            velocity = ((velocity * momentum)? + gradient)?;
            row = (row - (&velocity * rate)?)?;
            done.push([row.clone(), velocity.clone()]);
        }
        Ok(done)
    }
}

fn steps(answer: Answer, &case: &Case) -> Outcome {
    let of_ranks = case.run(move |rank| case.train(answer, rank))?;
    let alone = case.alone()?;
    for (rank, steps) in of_ranks.iter().enumerate() {
        for (step, ((row, _), [expected, _])) in steps.iter().zip(&alone).enumerate() {
            let what = format!("the row on rank {rank} after step {}", step + 1);
            Expectation::of(what).law(STEP).compare_tensors(expected, row)?;
        }
    }
    Ok(())
}

fn each_rank_holds_the_velocity_of_its_chunk(answer: Answer, &case: &Case) -> Outcome {
    let of_ranks = case.run(move |rank| case.train(answer, rank))?;
    let alone = case.alone()?;
    for (rank, steps) in of_ranks.iter().enumerate() {
        let own = chunk_range(case.1, case.0, rank);
        for (step, ((_, velocity), [_, whole])) in steps.iter().zip(&alone).enumerate() {
            let what = format!("the numbers of the velocity on rank {rank}");
            same(what, own.len(), velocity.elem_count(), CHUNK)?;
            let expected = whole.narrow(0, own.start, own.len())?;
            let what = format!("the velocity on rank {rank} after step {}", step + 1);
            Expectation::of(what).law(STEP).compare_tensors(&expected, velocity)?;
        }
    }
    Ok(())
}

fn few_bytes_are_sent(answer: Answer, &case: &Case) -> Outcome {
    let sent = case.run(move |rank| {
        case.train(answer, rank)?;
        Ok(rank.sent().iter().map(|message| message.bytes as usize).sum::<usize>() / STEPS)
    })?;
    let most = 4 * 2 * (case.0 - 1) * case.1.div_ceil(case.0);
    sent.into_iter().enumerate().try_for_each(|(rank, bytes)| {
        let what = format!(
            "the bytes that rank {rank} sends in a step, for a row of {} bytes",
            4 * case.1
        );
        expect(bytes <= most, what, (format!("at most {most}"), bytes), BYTES)
    })
}

fn the_inputs_keep_their_numbers(answer: Answer, &case: &Case) -> Outcome {
    let changed = case.run(move |rank| {
        let own = chunk_range(case.1, case.0, rank.rank());
        let inputs = [start(case.1)?, gradient(rank.rank(), 0, case.1)?, start(own.len())?];
        let before = inputs.each_ref().map(Tensor::to_vec1::<f32>);
        answer(&rank.into(), &inputs[0], &inputs[1], Some(&inputs[2]), CONSTANTS)?;
        let names = ["row", "gradient", "velocity"].into_iter().zip(&inputs).zip(before);
        let differs = |((name, now), before): ((&'static str, &Tensor), Result<Vec<f32>>)| {
            (now.to_vec1::<f32>().ok() != before.ok()).then_some(name)
        };
        Ok(names.filter_map(differs).collect::<Vec<_>>())
    })?;
    changed.into_iter().enumerate().try_for_each(|(rank, names)| {
        same(
            format!("inputs that have changed on rank {rank}"),
            in_a_row::<&str>([]),
            in_a_row(names),
            KEPT,
        )
    })
}
