//! Chapter 5, `book/src/ch05b-batch-norm.md`: batch norm by the statistics of all ranks' images.
//!
//! Statistics of many kinds of shards, compared with the statistics of all images on one device; the messages.

use crate::panicking;
use crate::prelude::*;
use ops::batch_norm::Statistics;

/// A rank and its images; the statistics of all images.
pub type Answer = fn(&Rank, &Tensor) -> Result<Statistics, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_knows_the_statistics_of_all_images,
    messages_are_small_and_few,
    errors_are_passed_on
];

/// The images of all ranks: the number on each rank, and their size.
#[derive(Clone)]
struct Images {
    shards: Vec<usize>,
    channels: usize,
    height: usize,
    width: usize,
}

#[derive(Clone, Copy)]
struct Channel {
    mean: f64,
    variance: f64,
    count: f64,
}

impl Channel {
    fn each(statistics: &Statistics) -> Result<Vec<Self>> {
        let (means, variances) = (numbers(&statistics.mean)?, numbers(&statistics.variance)?);
        let count = statistics.count as f64;
        let channel = |(mean, variance)| Self { mean, variance, count };
        Ok(means.into_iter().zip(variances).map(channel).collect())
    }
}

impl Images {
    fn new(shards: &[usize], channels: usize, (height, width): (usize, usize)) -> Self {
        Self { shards: shards.to_vec(), channels, height, width }
    }

    /// The images of all ranks. In even channels values grow from image to image, which makes shards
    /// differ. In odd channels they lie far from zero and close together.
    fn all(&self) -> Result<Tensor> {
        let Self { channels, height, width, .. } = *self;
        let images = self.shards.iter().sum::<usize>();
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

    fn of_rank(&self, rank: usize) -> Result<Tensor> {
        self.all()?.narrow(0, self.shards[..rank].iter().sum(), self.shards[rank])
    }

    fn in_words(&self) -> String {
        let Self { shards, channels, height, width } = self;
        format!("{shards:?} images of {channels} channels, {height}×{width} pixels")
    }

    fn found(&self, answer: Answer) -> Vec<(Statistics, Traffic)> {
        let images = self.clone();
        let found = panicking::attempt(self.shards.len(), Sends::Buffered, move |rank| {
            let statistics = answer(rank, &images.of_rank(rank.rank())?)?;
            Ok((statistics, rank.traffic()))
        });
        found.unwrap_or_else(|failure| {
            let what = format!("{}: no statistics", self.in_words());
            let law = "every rank takes part, and one without images adds zeros";
            let expected = "mean, variance and count on every rank";
            panicking::fail_on_ranks(&what, expected, &failure, law, self.shards.contains(&0))
        })
    }

    /// Compares the answer's statistics with those of all images on one device, and with stage 5's merge.
    fn check(&self, answer: Answer) -> Result<()> {
        let mut shards = Vec::new();
        for (rank, _) in self.shards.iter().enumerate().filter(|(_, images)| **images > 0) {
            shards.push((rank, Statistics::of(&self.of_rank(rank)?)?));
        }
        let parts: Vec<Statistics> = shards.iter().map(|(_, shard)| shard.clone()).collect();
        let shards = shards.iter().map(|(rank, shard)| Ok((*rank, Channel::each(shard)?)));
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let found = self.found(answer);
        for expected in [Statistics::of(&self.all()?)?, Statistics::merge(&parts)?] {
            for (rank, (found, _)) in found.iter().enumerate() {
                self.the_form_is_right(rank, found);
                let channels = Channel::each(&expected)?.into_iter().zip(Channel::each(found)?);
                for (channel, (expected, got)) in channels.enumerate() {
                    let given = format!("{}: on rank {rank}, channel {channel}:", self.in_words());
                    let own = shards.iter().find(|(owner, _)| *owner == rank);
                    let own = own.map(|(_, own)| own[channel]);
                    let shards: Vec<Channel> =
                        shards.iter().map(|(_, shard)| shard[channel]).collect();
                    compare(&given, expected, got, own, &shards, self.height * self.width);
                }
            }
        }
        self.bits_are_equal(&found)
    }

    fn the_form_is_right(&self, rank: usize, found: &Statistics) {
        let kind = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype(), tensor.dims());
        let expected = format!("{:?} {:?}", DType::F64, [self.channels]);
        let got = [kind(&found.mean), kind(&found.variance)];
        if got.iter().any(|got| *got != expected) {
            let what =
                format!("{}: the statistics of rank {rank} have another form", self.in_words());
            let law = "one mean and one variance for each channel, in f64";
            fail(&what, &format!("{expected} and {expected}"), &got.join(" and "), law);
        }
    }

    fn bits_are_equal(&self, found: &[(Statistics, Traffic)]) -> Result<()> {
        let all = |found: &Statistics| -> Result<Vec<f64>> {
            Ok([numbers(&found.mean)?, numbers(&found.variance)?].concat())
        };
        let first = all(&found[0].0)?;
        for (rank, (found, _)) in found.iter().enumerate() {
            Expectation::of(format!(
                "{}: each number of rank {rank}, to the last bit,",
                self.in_words()
            ))
            .law("all ranks add in the same order, so that replicas stay equal")
            .at(|index| match index < self.channels {
                true => format!("the mean of channel {index}"),
                false => format!("the variance of channel {}", index - self.channels),
            })
            .guess(|_, _| Some("expected is the number of rank 0".to_owned()))
            .check(&first, &all(found)?);
        }
        Ok(())
    }
}

/// Compares the statistics of a channel. `own` are the statistics of the rank's images, `shards` the statistics of each rank
/// with images.
fn compare(
    given: &str,
    expected: Channel,
    got: Channel,
    own: Option<Channel>,
    shards: &[Channel],
    pixels: usize,
) {
    let own = own.unwrap_or(Channel { mean: f64::NAN, variance: f64::NAN, count: 0.0 });
    let (pixels, n) = (pixels as f64, expected.count);
    let average =
        |part: fn(&Channel) -> f64| shards.iter().map(part).sum::<f64>() / shards.len() as f64;
    let within = shards.iter().map(|shard| shard.variance * shard.count).sum::<f64>() / n;
    // In f32, rounding changes the squares by a few whole numbers.
    let rounded = expected.mean > 1e3 && got.variance.abs() < 100.0;

    number(
        given,
        "the mean",
        (expected.mean, got.mean),
        "add up sums and counts, then divide once",
        &[
            (own.mean, "the mean of this rank's images alone"),
            (
                average(|shard| shard.mean),
                "the mean of the ranks' means: a small shard counts as much as a large one",
            ),
            (expected.mean * pixels, "the sum over the number of images: every pixel is a value"),
        ],
    );
    let rounding = "a rounding error: numbers near 10⁸ were subtracted, or f32 was used";
    number(
        given,
        "the variance",
        (expected.variance, got.variance),
        "the mean squared distance of all values from the mean of all",
        &[
            (own.variance, "the variance of this rank's images alone"),
            (within, "the mean of the ranks' variances: the spread between their means is missing"),
            (
                average(|shard| shard.variance),
                "the mean of the ranks' variances: the spread between their means is missing",
            ),
            (expected.variance.sqrt(), "the standard deviation, σ, not σ²"),
            (n / (n - 1.0) * expected.variance, "the unbiased estimate, divided by one less"),
            (if rounded { got.variance } else { f64::NAN }, rounding),
        ],
    );
    number(
        given,
        "the count",
        (n, got.count),
        "count the values of a channel on all ranks: images times pixels",
        &[
            (own.count, "the count of this rank alone"),
            (n / pixels, "the number of images"),
            (n * shards.len() as f64, "every rank's count of all"),
        ],
    );
}

fn number(given: &str, what: &str, (expected, got): (f64, f64), law: &str, wrong: &[(f64, &str)]) {
    let guess = |_, got: f64| {
        let same = |(other, _): &&(f64, &str)| (got - other).abs() <= 1e-6 * other.abs();
        let known = wrong.iter().find(same).map(|(_, name)| *name);
        let name = if got.is_nan() { Some("0 values divided by 0, on some rank") } else { known };
        name.map(|name| format!("that is {name}"))
    };
    Expectation::of(format!("{given} {what}"))
        .law(law)
        .up_to(1e-6)
        .guess(guess)
        .check(&[expected], &[got]);
}

fn every_rank_knows_the_statistics_of_all_images(answer: Answer) -> Result<()> {
    // Unequal shards, equal ones, one rank alone, ranks without images; single pixels, and a single value.
    for shards in [&[3, 1][..], &[2, 2], &[3], &[3, 0], &[0, 2, 1], &[0, 0, 3]] {
        Images::new(shards, 2, (2, 3)).check(answer)?;
    }
    Images::new(&[1, 3, 2, 5], 8, (2, 3)).check(answer)?;
    Images::new(&[2, 0, 1], 5, (1, 1)).check(answer)?;
    Images::new(&[0, 1], 2, (1, 1)).check(answer)
}

fn messages_are_small_and_few(answer: Answer) {
    let sent = |images: usize, side, channels| {
        let found = Images::new(&[images; 3], channels, (side, side)).found(answer);
        let of = format!("with images [{images}, {channels}, {side}, {side}] on each");
        let sum = |part: fn(&Traffic) -> u64| found.iter().map(|(_, sent)| part(sent)).sum::<u64>();
        (sum(|sent| sent.bytes), sum(|sent| sent.messages), of)
    };
    let (small, large, deep) = (sent(1, 2, 8), sent(4, 8, 8), sent(1, 2, 64));
    if large.0 != small.0 {
        let law = "a few numbers for each channel travel, however many images there are";
        let [expected, got] = [small, large].map(|(bytes, _, of)| format!("{bytes} bytes {of}"));
        fail("3 ranks: the bytes sent grow with the images", &expected, &got, law);
    }
    if deep.1 != small.1 {
        let law = "all channels travel together, and the fixed cost of a message is paid once";
        let [expected, got] =
            [small, deep].map(|(_, messages, of)| format!("{messages} messages {of}"));
        fail("3 ranks: the messages sent grow with the channels", &expected, &got, law);
    }
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let images = Images::new(&[2, 1, 3], 2, (2, 3));
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        answer(rank, &images.of_rank(rank.rank())?)
    })
}
