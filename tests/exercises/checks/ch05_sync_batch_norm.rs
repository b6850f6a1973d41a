//! Chapter 5, `book/src/ch05b-batch-norm.md`: batch norm by the statistics of all ranks' images.
//!
//! Statistics of many kinds of shards, compared with the statistics of all images on one device; the messages.

use crate::prelude::*;
use ops::batch_norm::Statistics;

/// A rank and its images; the statistics of all images.
pub type Answer = fn(&Rank, &Tensor) -> Result<Statistics, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    every_rank_knows_the_statistics_of_all_images in IMAGES,
    messages_are_small_and_few,
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| answer(rank, &Images(&[2, 1, 3], 2, (2, 3)).of_rank(rank.rank())?),
];

/// The images of all ranks: the number on each rank, their channels, and the sides of a channel.
#[derive(Clone, Copy)]
struct Images(&'static [usize], usize, (usize, usize));

const IMAGES: [Images; 9] = [
    // Unequal shards, equal ones, one rank alone, ranks without images.
    Images(&[3, 1], 2, (2, 3)),
    Images(&[2, 2], 2, (2, 3)),
    Images(&[3], 2, (2, 3)),
    Images(&[3, 0], 2, (2, 3)),
    Images(&[0, 2, 1], 2, (2, 3)),
    Images(&[0, 0, 3], 2, (2, 3)),
    Images(&[1, 3, 2, 5], 8, (2, 3)),
    // Single pixels, and a single value.
    Images(&[2, 0, 1], 5, (1, 1)),
    Images(&[0, 1], 2, (1, 1)),
];

shown!(Images(shards, channels, (height, width)) =>
    "{shards:?} images of {channels} channels, {height}×{width} pixels");

/// Mean, variance and count of each channel.
fn channels(statistics: &Statistics) -> Result<Vec<[f64; 3]>> {
    let (means, variances) = (numbers(&statistics.mean)?, numbers(&statistics.variance)?);
    let count = statistics.count as f64;
    Ok(means.into_iter().zip(variances).map(|(mean, variance)| [mean, variance, count]).collect())
}

impl Images {
    /// The images of all ranks. In even channels values grow from image to image, which makes shards
    /// differ. In odd channels they lie far from zero and close together.
    fn all(self) -> Result<Tensor> {
        let Self(shards, channels, (height, width)) = self;
        let images = shards.iter().sum::<usize>();
        let value = |index: usize| {
            let plane = index / (height * width);
            let noise = (index * index * 31 % 101 % 8) as f32;
            match plane % channels % 2 {
                0 => (plane / channels).pow(2) as f32 + noise / 7.0,
                _ => 10_000.0 + noise / 1024.0,
            }
        };
        let values: Vec<f32> = (0..images * channels * height * width).map(value).collect();
        Tensor::from_vec(values, (images, channels, height, width), &Device::Cpu)
    }

    fn of_rank(self, rank: usize) -> Result<Tensor> {
        self.all()?.narrow(0, self.0[..rank].iter().sum(), self.0[rank])
    }

    fn found(self, answer: Answer) -> Outcome<Vec<(Statistics, Traffic)>> {
        let found = ranks::run(self.0.len(), Sends::Buffered, move |rank| {
            let statistics = answer(rank, &self.of_rank(rank.rank())?)?;
            Ok((statistics, rank.traffic()))
        });
        let law = "every rank takes part, and one without images adds zeros";
        found.map_err(ranks::all_take_part(law, self.0.contains(&0)))
    }
}

/// Compares with the statistics of all images on one device.
fn every_rank_knows_the_statistics_of_all_images(answer: Answer, images: &Images) -> Outcome {
    let Images(shards, channel_count, (height, width)) = *images;
    let owners: Vec<usize> = (0..shards.len()).filter(|&rank| shards[rank] > 0).collect();
    let of_shards = owners.iter().map(|&rank| channels(&Statistics::of(&images.of_rank(rank)?)?));
    let of_shards = of_shards.collect::<Result<Vec<_>>>()?;
    let right = channels(&Statistics::of(&images.all()?)?)?;
    let found = images.found(answer)?;
    for (rank, (found, _)) in found.iter().enumerate() {
        let kind = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype(), tensor.dims());
        let form = format!("{:?} {:?}", DType::F64, [channel_count]);
        let what = format!("the statistics of rank {rank} have another form");
        let got = format!("{} and {}", kind(&found.mean), kind(&found.variance));
        let law = "one mean and one variance for each channel, in f64";
        same(what, format!("{form} and {form}"), got, law)?;
        for (channel, (right, got)) in right.iter().zip(channels(found)?).enumerate() {
            let all: Vec<[f64; 3]> = of_shards.iter().map(|shard| shard[channel]).collect();
            let own = owners.iter().position(|&owner| owner == rank).map(|shard| all[shard]);
            let given = format!("on rank {rank}, channel {channel}:");
            let own = own.unwrap_or([f64::NAN, f64::NAN, 0.0]);
            compare(&given, [*right, got, own], &all, (height * width) as f64)?;
        }
    }
    let bits = |found: &Statistics| -> Result<Vec<f64>> {
        Ok([numbers(&found.mean)?, numbers(&found.variance)?].concat())
    };
    let first = bits(&found[0].0)?;
    found.iter().enumerate().try_for_each(|(rank, (found, _))| {
        Expectation::of(format!("each number of rank {rank}, to the last bit,"))
            .law("all ranks add in the same order, so that replicas stay equal")
            .guess(|_, _| Some("expected is the number of rank 0".to_owned()))
            .compare(&first, &bits(found)?)
    })
}

/// Compares the statistics of a channel: the right ones, the answer's, and those of the rank's images alone. `shards` are the
/// statistics of each rank with images.
fn compare(
    given: &str,
    [right, got, own]: [[f64; 3]; 3],
    shards: &[[f64; 3]],
    pixels: f64,
) -> Outcome {
    let [mean, variance, n] = right;
    let means = shards.iter().map(|shard| shard[0]).sum::<f64>() / shards.len() as f64;
    let within = shards.iter().map(|shard| shard[1] * shard[2]).sum::<f64>() / n;
    // In f32, rounding changes the squares by a few whole numbers.
    let rounded = if mean > 1e3 && got[1].abs() < 100.0 { got[1] } else { f64::NAN };
    let laws = [
        ("the mean", "add up sums and counts, then divide once"),
        ("the variance", "the mean squared distance of all values from the mean of all"),
        ("the count", "count the values of a channel on all ranks: images times pixels"),
    ];
    let known = [
        (0, own[0], "the mean of this rank's images alone"),
        (0, means, "the mean of the ranks' means: a small shard counts as much as a large one"),
        (1, own[1], "the variance of this rank's images alone"),
        (1, within, "the mean of the ranks' variances: the spread between their means is missing"),
        (1, variance.sqrt(), "the standard deviation, σ, not σ²"),
        (1, n / (n - 1.0) * variance, "the unbiased estimate, divided by one less"),
        (1, rounded, "a rounding error: numbers near 10⁸ were subtracted, or f32 was used"),
        (2, own[2], "the count of this rank alone"),
        (2, n / pixels, "the number of images"),
    ];
    laws.into_iter().enumerate().try_for_each(|(index, (what, law))| {
        let guess = |_, got: f64| {
            let is = |&&(of, other, _): &&(usize, f64, &str)| {
                of == index && (got - other).abs() <= 1e-6 * other.abs()
            };
            let divided = got.is_nan().then_some("0 values divided by 0, on some rank");
            let name = divided.or(known.iter().find(is).map(|(.., name)| *name));
            name.map(|name| format!("that is {name}"))
        };
        let expectation = Expectation::of(format!("{given} {what}")).law(law).up_to(1e-6);
        expectation.guess(guess).compare(&[right[index]], &[got[index]])
    })
}

fn messages_are_small_and_few(answer: Answer) -> Outcome {
    let sent = |shards, side, channels| {
        let found = Images(shards, channels, (side, side)).found(answer)?;
        let of = format!("with images [{}, {channels}, {side}, {side}] on each", shards[0]);
        let sum = |part: fn(&Traffic) -> u64| found.iter().map(|(_, sent)| part(sent)).sum::<u64>();
        Ok::<_, Finding>((sum(|sent| sent.bytes), sum(|sent| sent.messages), of))
    };
    let [small, large, deep] = [sent(&[1; 3], 2, 8)?, sent(&[4; 3], 8, 8)?, sent(&[1; 3], 2, 64)?];
    let sides: (String, String) =
        [&small, &large].map(|(bytes, _, of)| format!("{bytes} bytes {of}")).into();
    let law = "a few numbers for each channel travel, however many images there are";
    expect(large.0 == small.0, "3 ranks: the bytes sent grow with the images", sides, law)?;
    let sides: (String, String) =
        [&small, &deep].map(|(_, many, of)| format!("{many} messages {of}")).into();
    let law = "all channels travel together, and the fixed cost of a message is paid once";
    expect(deep.1 == small.1, "3 ranks: the messages sent grow with the channels", sides, law)
}
