//! Sums over the shards of a batch: a guess at the factor of a wrong sum, and the messages of right sums.

use candle_core::{DType, Shape, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::Traffic;

use crate::outcome::{Finding, Outcome};
use crate::ranks::{self, Sends};

/// The numbers that a wrong factor of a shard is made of.
struct Numbers {
    /// 1 for the shard of the rank, and 0 for others.
    own: f64,
    devices: f64,
    /// The samples of the batch, of the rank's shard, and of the shard.
    samples: f64,
    of_rank: f64,
    of_shard: f64,
}

/// Mistakes, and the factor of a shard in each, relative to the right factor.
const MISTAKES: [(&str, fn(Numbers) -> f64); 13] = [
    ("this rank's shard alone", |it| it.own),
    ("the mean over this rank's shard alone", |it| it.own * it.samples / it.of_shard),
    ("divided by the number of devices, too: the mean in place of the sum", |it| 1.0 / it.devices),
    ("divided by the samples of this rank's shard, not of the batch", |it| it.samples / it.of_rank),
    ("the mean of the means of the shards: shards may differ in size", |it| {
        it.samples / it.of_shard / it.devices
    }),
    ("the sum of the means of the shards", |it| it.samples / it.of_shard),
    ("divided by the samples of each shard, and by the samples of the batch", |it| {
        1.0 / it.of_shard
    }),
    ("divided by the samples of the batch twice", |it| 1.0 / it.samples),
    ("not divided", |it| it.samples),
    ("divided by the number of devices in place of the samples", |it| it.samples / it.devices),
    ("k times as much: added up twice, or k times the rate", |it| it.devices),
    ("twice as much: is the update made twice?", |_| 2.0),
    ("the negative: is it added in place of subtracted?", |_| -1.0),
];

/// A guess at the mistake in a sum over shards of these sizes. `fits` says whether the sum has these factors, one for each shard,
/// relative to the right factors. An empty shard has the factor 0.
pub fn guess(shards: &[usize], rank: usize, fits: impl Fn(&[f64]) -> bool) -> Option<String> {
    let size = |shard: usize| shards[shard] as f64;
    let factors = |mistake: fn(Numbers) -> f64| -> Vec<f64> {
        let of_shard = |shard| match shards[shard] {
            0 => 0.0,
            _ => mistake(Numbers {
                own: f64::from(u8::from(shard == rank)),
                devices: shards.len() as f64,
                samples: shards.iter().sum::<usize>() as f64,
                of_rank: size(rank),
                of_shard: size(shard),
            }),
        };
        (0..shards.len()).map(of_shard).collect()
    };
    let fits = |(_, mistake): &&(&str, fn(Numbers) -> f64)| {
        let factors = factors(*mistake);
        factors.iter().all(|factor| factor.is_finite()) && fits(&factors)
    };
    MISTAKES.iter().find(fits).map(|(words, _)| format!("that fits {words}"))
}

/// The messages of each rank in one all-reduce for each shape.
pub fn traffic(
    ranks: usize,
    shapes: &[Shape],
    dtype: DType,
    algorithm: Algorithm,
) -> Outcome<Vec<Traffic>> {
    let shapes = shapes.to_vec();
    ranks::run(ranks, Sends::Buffered, move |rank| {
        for shape in &shapes {
            rank.all_reduce(&Tensor::zeros(shape, dtype, rank.device())?, algorithm)?;
        }
        Ok(rank.traffic())
    })
}

/// Demands that each rank has sent the bytes of one all-reduce in f64 for each shape. Another cut of the same numbers into
/// messages may add `slack` bytes.
pub fn sent_once(
    sent: &[Traffic],
    shapes: &[Shape],
    algorithm: Algorithm,
    slack: u64,
    law: &str,
) -> Outcome {
    let by = |algorithm| traffic(sent.len(), shapes, DType::F64, algorithm);
    let differs = |times: u64, expected: &[Traffic]| {
        let mut pairs = sent.iter().zip(expected);
        pairs.position(|(sent, it)| sent.bytes.abs_diff(times * it.bytes) > slack)
    };
    let expected = by(algorithm)?;
    let Some(rank) = differs(1, &expected) else { return Ok(()) };
    let twice = "that fits two all-reduces of each gradient".to_owned();
    let like = |other: Algorithm| {
        let fits = by(other).is_ok_and(|sent| differs(1, &sent).is_none());
        fits.then(|| format!("as with Algorithm::{other:?}"))
    };
    let twice = differs(2, &expected).is_none().then_some(twice);
    Err(Finding::new(format!("rank {rank} sends another number of bytes"))
        .expected(format!("about {}", expected[rank].bytes), sent[rank].bytes)
        .note(twice.or_else(|| Algorithm::OURS.into_iter().find_map(like)))
        .law(law))
}
