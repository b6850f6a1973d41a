//! How much of the communication hides behind the backward pass: over a link that is slow on purpose,
//! between two slices of one core, with and without overlap in turn.
//!
//! What can be hidden at most is the smaller of two: all communication but the last bucket's, which cannot
//! begin before the backward pass has ended; and what is left of the backward pass when the first bucket
//! is full. At least 0.7 of that has to be hidden, or this ends with exit code 1.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use concise_wrapper::{Ddp, Error, Model, Network};
use datasets::loader::Epochs as _;
use datasets::{Split, synthetic};
use devices::DevicePlan;
use harness::cli;
use harness::lock::locked;
use harness::statistics::median;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use params_and_allreduce::forward;
use params_and_allreduce::thread::{Cause, DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};
use split_batch::loader::{LocalBatch, ShardLoader};

const WIDTH: usize = 16;
const BATCH: usize = 64;
const CAPS: BucketCaps = BucketCaps { first: 200_000, others: 400_000 };
const LATENCY: Duration = Duration::from_micros(200);

/// How often with and without take turns.
const ALTERNATIONS: usize = 9;

/// The share of what can be hidden that has to be.
const REQUIRED: f64 = 0.7;

/// The second connection of a rank notes when the messages of a step are sent. It alone is slow.
struct Watched {
    link: SharedCommunicator,
    in_background: bool,
    slow: Option<Arc<SlowNetwork>>,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Communicator for Watched {
    forward!(link: rank, world_size, device, recv);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), communicator::Error> {
        if self.in_background {
            let mut first = locked(&self.first);
            first.get_or_insert_with(Instant::now);
        }
        self.link.send(to, tensor)
    }

    fn background(&self) -> Result<SharedCommunicator, communicator::Error> {
        let (link, slow) = (self.link.background()?, self.slow.clone());
        let link = match &slow {
            Some(slow) => slow.slow_down(link),
            None => link,
        };
        Ok(Arc::new(Self { link, in_background: true, slow, first: Arc::clone(&self.first) }))
    }
}

/// Steps of one kind on this rank.
struct Steps {
    model: Ddp<ResNet18>,
    share: LocalBatch,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Steps {
    fn new(rank: &Rank, slow: Option<&Arc<SlowNetwork>>, overlap: bool) -> Result<Self, Error> {
        let network =
            Network::new(1, DType::F32, &Device::Cpu, |vb, norms| ResNet18::new(WIDTH, norms, vb))?;
        let algorithm = Algorithm::Ring;
        let reduction = Reduction::Buckets { caps: CAPS, algorithm, overlap };
        let first = Arc::default();
        let watched: SharedCommunicator = Arc::new(Watched {
            link: rank.into(),
            in_background: false,
            slow: slow.cloned(),
            first: Arc::clone(&first),
        });
        let model = Ddp::new(network, watched, reduction)?;
        let data = synthetic::dataset(Split::Train, BATCH);
        let shares = ShardLoader::new(&data, BATCH, 1, DType::F32, model.hosts());
        let share = shares.epoch(1).collect::<candle_core::Result<Vec<_>>>()?.swap_remove(0);
        Ok(Self { model, share, first })
    }

    /// Seconds of a step, and of what was left of it when its first message was sent.
    fn step(&self, rank: &Rank) -> Result<(f64, f64), Error> {
        *locked(&self.first) = None;
        rank.barrier()?;
        let start = Instant::now();
        self.model.backward(&self.share)?;
        let end = Instant::now();
        let first = locked(&self.first).unwrap_or(end);
        Ok(((end - start).as_secs_f64(), (end - first).as_secs_f64()))
    }
}

/// What was measured, in seconds.
struct Measured {
    buckets: usize,
    fast: f64,
    communication: f64,
    left: f64,
    with: f64,
    without: f64,
}

fn measure(rank: &Rank, slow: &OnceLock<Arc<SlowNetwork>>) -> Result<Measured, Error> {
    let fast = Steps::new(rank, None, true)?;
    let mut steps = Vec::with_capacity(ALTERNATIONS);
    for _ in 0..=ALTERNATIONS {
        steps.push(fast.step(rank)?);
    }
    // The first finds memory that was never touched.
    let (whole, left): (Vec<f64>, Vec<f64>) = steps.into_iter().skip(1).unzip();
    // Rank 0's, on all ranks: they must slow their links down alike.
    let whole = Tensor::new(&[median(whole), median(left)], &Device::Cpu)?;
    let agreed = params_and_allreduce::collectives::broadcast(rank, &whole, 0)?.to_vec1::<f64>()?;
    let (whole, left) = (agreed[0], agreed[1]);

    // So slow that everything together takes half of what is left of the backward pass. In the ring of two
    // each bucket makes two trips, of half its bytes each.
    let weights = &fast.model.network().weights().parameters;
    let bytes: usize = weights.iter().map(|named| named.tensor.elem_count() * 4).sum();
    let bandwidth = bytes as f64 / (0.5 * left);
    let slow = slow.get_or_init(|| {
        SlowNetwork::new(Slowness { latency: LATENCY, bandwidth }, DEFAULT_TIMEOUT)
    });
    let (with, without) =
        (Steps::new(rank, Some(slow), true)?, Steps::new(rank, Some(slow), false)?);
    let (mut seconds_with, mut seconds_without) = (Vec::new(), Vec::new());
    for _ in 0..=ALTERNATIONS {
        seconds_with.push(with.step(rank)?.0);
        seconds_without.push(without.step(rank)?.0);
    }
    let buckets = fast.model.buckets();
    Ok(Measured {
        buckets,
        fast: whole,
        communication: bytes as f64 / bandwidth + 2.0 * buckets as f64 * LATENCY.as_secs_f64(),
        left,
        with: median(seconds_with.split_off(1)),
        without: median(seconds_without.split_off(1)),
    })
}

fn run() -> Result<Measured, RankFailure<Error>> {
    let plan = DevicePlan::slices(2);
    let plan = plan.map_err(|error| RankFailure {
        rank: 0,
        cause: Cause::Error(candle_core::Error::wrap(error).into()),
    })?;
    let slow = OnceLock::new();
    Ok(run_ranks(&plan, DEFAULT_TIMEOUT, |rank| measure(rank, &slow))?.swap_remove(0))
}

fn main() -> ExitCode {
    cli::prepare();
    let measured = match run() {
        Ok(measured) => measured,
        Err(failure) => {
            eprintln!("error: {failure}");
            return ExitCode::FAILURE;
        }
    };
    let Measured { buckets, fast, communication, left, with, without } = measured;
    let milliseconds = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    // Buckets are of about one size.
    let hideable = (communication - communication / buckets as f64).min(left);
    let share = (without - with) / hideable;
    println!("a step of ResNet-18, width {WIDTH}, batch {BATCH}, on two slices of one core");
    println!("  over a fast link                      {}", milliseconds(fast));
    println!("  backward left at the first bucket     {}", milliseconds(left));
    println!(
        "  communication over a slow link        {} in {buckets} buckets",
        milliseconds(communication)
    );
    println!("  without overlap                       {}", milliseconds(without));
    println!("  with                                  {}", milliseconds(with));
    println!("  hidden                                {share:.2} times {}", milliseconds(hideable));
    if share > 1.0 {
        println!("  (more than there is: the machine was not equally fast all the time)");
    }
    if share < REQUIRED || buckets < 6 {
        eprintln!("error: {REQUIRED} was to be hidden, in at least 6 buckets");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
