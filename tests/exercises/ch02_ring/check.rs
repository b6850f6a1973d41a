#[path = "exercise.rs"]
mod exercise;

// All-reduce around a ring, where a send waits for its receiver, on numbers that tell who is missing.

use candle_core::{DType, Device, Tensor, Var};
use exercises::Expectation;
use exercises::contributions::{contribution, guess, sum};
use exercises::ranks::{self, Sends};
use params_and_allreduce::communicator::Communicator;
use params_and_allreduce::{Algorithm, allreduce};

/// The law that a deadlock breaks, whatever else was being checked.
const MEETING: &str = "a send waits until it is received: somewhere in the ring a rank has to receive first, \
                       and somewhere one has to send first";

const CHUNKS: &str = "every element is in exactly one chunk, and chunks differ by at most one element; after the \
                      all-gather every rank has every chunk's whole sum";
const SHAPE: &str = "the sum has the shape of what came in";
const OWN: &str =
    "the sum is in its own memory: what is written into the one that came in does not change it";

/// What a rank gets, and what it has sent.
struct Outcome {
    sum: Tensor,
    messages: u64,
    largest_message: u64,
}

/// Runs the answer on ranks that bring contributions of this shape.
#[track_caller]
fn outcomes(world_size: usize, shape: &'static [usize], law: &str) -> Vec<Outcome> {
    let outcomes = ranks::attempt(world_size, Sends::WaitForReceiver, move |rank| {
        let own = contribution(rank.rank(), shape)?;
        let sum = exercise::ring(rank, &own)?;
        let (messages, largest_message) = (rank.traffic().messages, rank.largest_message());
        Ok(Outcome { sum, messages, largest_message })
    });
    match outcomes {
        Ok(outcomes) => outcomes,
        Err(failure) => {
            let law = if failure.starts_with("deadlock") { MEETING } else { law };
            panic!("shape {shape:?} on {world_size} ranks: {failure}\n  law: {law}")
        }
    }
}

/// Whether every rank gets the sum.
#[track_caller]
fn check_sum(world_size: usize, shape: &'static [usize], law: &str) {
    let expected = sum(world_size, shape).expect("a sum of contributions can be made");
    for (rank, outcome) in outcomes(world_size, shape, law).iter().enumerate() {
        let law = if outcome.sum.dims() == shape { law } else { SHAPE };
        Expectation::of(format!("shape {shape:?} on {world_size} ranks: the sum on rank {rank}"))
            .law(law)
            .guess(guess(world_size))
            .check_tensor(&expected, &outcome.sum);
    }
}

#[test]
fn even_chunks() {
    let law = "sum, then divide once: after the all-gather every rank has every chunk's whole sum";
    for (world_size, shape) in [(2, &[4]), (3, &[3]), (4, &[8]), (5, &[10])] {
        check_sum(world_size, shape, law);
    }
}

#[test]
fn a_length_that_is_no_multiple_of_k() {
    for (world_size, shape) in [(2, &[3]), (3, &[7]), (4, &[10]), (4, &[5]), (5, &[13])] {
        check_sum(world_size, shape, CHUNKS);
    }
}

#[test]
fn fewer_elements_than_ranks() {
    let law = "with fewer elements than ranks some chunks are empty";
    for (world_size, shape) in [(2, &[1]), (5, &[3]), (4, &[1]), (3, &[0])] {
        check_sum(world_size, shape, law);
    }
}

#[test]
fn any_shape_and_a_single_rank() {
    for (world_size, shape) in [(3, &[2, 3, 4][..]), (2, &[]), (1, &[5]), (1, &[2, 2])] {
        check_sum(world_size, shape, CHUNKS);
    }
}

/// An optimiser writes into the memory of its tensors.
#[test]
fn the_sum_is_nobody_elses_memory() {
    for world_size in [3, 2, 1] {
        let shape: &[usize] = &[5];
        let sums = ranks::run(world_size, Sends::WaitForReceiver, move |rank| {
            let own = Var::from_tensor(&contribution(rank.rank(), shape)?)?;
            let sum = exercise::ring(rank, own.as_tensor())?;
            own.set(&own.zeros_like()?)?;
            Ok(sum)
        });
        let expected = sum(world_size, shape).expect("a sum of contributions can be made");
        let written = |_, got| (got == 0.0).then(|| "that was written afterwards".to_owned());
        for (rank, got) in sums.iter().enumerate() {
            Expectation::of(format!(
                "shape {shape:?} on {world_size} ranks: the sum on rank {rank}"
            ))
            .law(OWN)
            .guess(written)
            .check_tensor(&expected, got);
        }
    }
}

/// Ten elements on four ranks make chunks of 3, 3, 2 and 2.
#[test]
fn a_rank_sends_one_chunk_in_each_step() {
    let one_chunk =
        "a step sends one chunk, never the whole tensor, and chunks differ by at most one element";
    let one_message = "k − 1 steps of reduce-scatter and k − 1 of all-gather, one message from every rank in each";
    for (world_size, shape, largest_chunk) in
        [(2, &[8], 4), (3, &[12], 4), (4, &[10], 3), (5, &[3], 1), (1, &[4], 0)]
    {
        let steps = 2 * (world_size - 1) as u64;
        for (rank, outcome) in outcomes(world_size, shape, one_chunk).iter().enumerate() {
            let who = format!("shape {shape:?} on {world_size} ranks: rank {rank} sent");
            let Outcome { messages, largest_message, .. } = outcome;
            assert!(
                *largest_message <= 4 * largest_chunk,
                "{who} a message of {largest_message} bytes\n  expected at most {}: \
                 {largest_chunk} f32 numbers\n  law: {one_chunk}",
                4 * largest_chunk
            );
            assert!(
                *messages == steps,
                "{who} {messages} messages\n  expected {steps}\n  law: {one_message}"
            );
        }
    }
}

/// Numbers that round, in f64: a chunk is summed once and then copied, so all ranks have the same bits.
#[test]
fn the_same_bits_on_every_rank_and_the_sum_of_stage_2() {
    let own = |rank: usize| {
        let numbers: Vec<f64> =
            (0..11).map(|i| 1.0 / f64::from(3 * i + 7 * rank as u32 + 1)).collect();
        Tensor::new(numbers, &Device::Cpu)
    };
    let mine =
        ranks::run(5, Sends::WaitForReceiver, move |rank| exercise::ring(rank, &own(rank.rank())?));
    let theirs = ranks::run(5, Sends::Buffered, move |rank| {
        allreduce(rank, &own(rank.rank())?, Algorithm::Ring)
    });
    assert_eq!(theirs[0].dtype(), DType::F64);
    for (rank, (got, theirs)) in mine.iter().zip(&theirs).enumerate() {
        let what = format!("11 elements on 5 ranks: the sum on rank {rank}");
        Expectation::of(&what)
            .law("replicas stay equal only if all ranks get the same bits: rank 0's are expected")
            .check_tensor(&mine[0], got);
        Expectation::of(&what)
            .law("it is what params_and_allreduce::all_reduce::ring computes, up to rounding")
            .up_to(1e-14)
            .check_tensor(theirs, got);
    }
}
