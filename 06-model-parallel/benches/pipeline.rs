//! What a pipeline is worth, on two slices of one core: ResNet-18 naively split on whole batches, and 1F1B with eight
//! micro-batches, in turn.
//!
//! 1F1B has to be 1.5 times as fast at least, and the bubble that is measured within ten percentage points of the
//! one that is predicted from what the layers cost. Otherwise this ends with exit code 1. A stage works 20 ms at
//! least on a micro-batch: shorter ones are at the mercy of whatever else the machine does.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use candle_core::DType;
use concise_wrapper::Model as _;
use concise_wrapper::optimizer::{Momentum, Sgd};
use datasets::loader::Epochs as _;
use datasets::{SAMPLE, Split, synthetic};
use devices::DevicePlan;
use harness::cli;
use harness::statistics::median;
use model_parallel::execute::unit::Whole;
use model_parallel::layers::{Layers, Stage};
use model_parallel::mesh::Mesh;
use model_parallel::partition::{Setting, cut, each, measure};
use model_parallel::{Checked, Cost, Executor, Kind, Timeline, UNBOUNDED, check};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};
use split_batch::loader::{LocalBatch, ShardLoader};

const WIDTH: usize = 16;
const BATCH: usize = 256;
const MICRO_BATCHES: usize = 8;

/// How often the two take turns.
const ALTERNATIONS: usize = 9;

/// The least speed-up.
const SPEED_UP: f64 = 1.5;
/// The most that a bubble may be beside its prediction.
const BESIDE: f64 = 0.10;
/// The least that a stage is to work on a micro-batch, in seconds.
const STAGE: f64 = 0.020;

/// One way to go through a batch: its schedule, and what is to be expected.
struct Way {
    checked: Checked,
    predicted: Timeline,
}

impl Way {
    fn new(kind: Kind, micro_batches: usize, costs: &[Cost]) -> anyhow::Result<Self> {
        let checked = check(kind.schedule(costs.len(), micro_batches)?, UNBOUNDED)?;
        let predicted = checked.simulate(costs, 0.0)?;
        Ok(Self { checked, predicted })
    }
}

/// What the steps of one way took, and their timelines.
#[derive(Default)]
struct Steps {
    seconds: Vec<f64>,
    timelines: Vec<Timeline>,
}

fn plan() -> anyhow::Result<DevicePlan> {
    Ok(DevicePlan::slices(2)?)
}

/// What each layer costs on one slice, for so many images.
fn costs(layers: &Layers, rows: usize) -> anyhow::Result<Vec<Cost>> {
    let device = plan()?.slots()[0].open()?;
    let (setting, units) = (Setting { sample: &SAMPLE, rows, tries: 5, parts: 1 }, each(layers));
    let mut sgd = Sgd::new(Momentum::default());
    let tensors = device.tensors();
    Ok(device.run(|| measure(layers, &units, setting, DType::F32, tensors, &mut sgd))?)
}

/// A batch, cut into as many shards as a model wants.
fn share(model: &Executor<Whole<Stage>>) -> anyhow::Result<LocalBatch> {
    let data = synthetic::dataset(Split::Train, BATCH);
    let shares = ShardLoader::new(&data, BATCH, 1, DType::F32, model.hosts());
    shares.epoch(1).next().context("a batch")?.map_err(Into::into)
}

/// This rank's stage.
fn model(
    rank: &Rank,
    layers: &Layers,
    cut: &[Range<usize>],
    way: &Way,
) -> Result<Executor<Whole<Stage>>, concise_wrapper::Error> {
    let network = layers.build(cut[rank.rank()].clone(), 1, DType::F32, rank.device())?;
    let line = Arc::new(rank.clone());
    let mesh = Mesh::pipeline(2);
    Executor::new(&way.checked, vec![network], line, mesh, &SAMPLE)
}

/// Steps of both ways in turn, of rank 0.
fn in_turn(layers: &Layers, cut: &[Range<usize>], ways: &[Way; 2]) -> anyhow::Result<[Steps; 2]> {
    let outcome = run_ranks(&plan()?, DEFAULT_TIMEOUT, |rank| {
        let failed = |error: anyhow::Error| candle_core::Error::Msg(format!("{error:#}"));
        let models = [model(rank, layers, cut, &ways[0])?, model(rank, layers, cut, &ways[1])?];
        let shares = [share(&models[0]).map_err(failed)?, share(&models[1]).map_err(failed)?];
        let mut steps = [Steps::default(), Steps::default()];
        for _ in 0..=ALTERNATIONS {
            for way in 0..2 {
                rank.barrier()?;
                let start = Instant::now();
                models[way].backward(&shares[way])?;
                steps[way].seconds.push(start.elapsed().as_secs_f64());
            }
        }
        for way in 0..2 {
            steps[way].timelines = models[way].timelines()?;
        }
        Ok::<_, concise_wrapper::Error>(steps)
    });
    Ok(outcome?.swap_remove(0))
}

/// The median of all steps but the first, which finds memory that was never touched.
fn typical(steps: impl IntoIterator<Item = f64>) -> f64 {
    median(steps.into_iter().skip(1))
}

fn run() -> anyhow::Result<()> {
    let layers = Layers::resnet18(WIDTH);
    let of_micro_batch = costs(&layers, BATCH / MICRO_BATCHES)?;
    let totals: Vec<f64> = of_micro_batch.iter().map(Cost::total).collect();
    let stages = cut(&totals, 2)?;
    let of_stage = |stage: &Range<usize>| totals[stage.clone()].iter().sum::<f64>();
    let shortest = stages.iter().map(of_stage).fold(f64::INFINITY, f64::min);
    let ways = [
        Way::new(Kind::Naive, 1, &Cost::of_parts(&costs(&layers, BATCH)?, &stages))?,
        Way::new(Kind::OneFOneB, MICRO_BATCHES, &Cost::of_parts(&of_micro_batch, &stages))?,
    ];
    let [naive, pipelined] = in_turn(&layers, &stages, &ways)?;
    println!(
        "a step of ResNet-18, width {WIDTH}, batch {BATCH}, in two stages, on two slices of one core"
    );
    println!("  cut                        {stages:?}");
    println!("  a stage on a micro-batch   {:.0} ms or more", shortest * 1e3);
    let mut beside = 0.0;
    for (name, way, steps) in
        [("naive, whole batch", &ways[0], &naive), ("1F1B, 8 micro-batches", &ways[1], &pipelined)]
    {
        let (predicted, measured) =
            (way.predicted.bubble(), typical(steps.timelines.iter().map(Timeline::bubble)));
        beside = f64::max(beside, (measured - predicted).abs());
        println!(
            "  {name:<25}  {:>4.0} ms, bubble {:.1} % predicted, {:.1} % measured",
            typical(steps.seconds.iter().copied()) * 1e3,
            predicted * 100.0,
            measured * 100.0
        );
    }
    let ratios = naive.seconds.iter().zip(&pipelined.seconds).map(|(naive, it)| naive / it);
    let speed_up = typical(ratios);
    println!("  speed-up                   {speed_up:.2}, the median of {ALTERNATIONS} in turn");
    ensure!(shortest >= STAGE, "stages of {:.0} ms are too short to say anything", shortest * 1e3);
    ensure!(speed_up >= SPEED_UP, "1F1B was to be {SPEED_UP} times as fast");
    ensure!(beside <= BESIDE, "a bubble is {:.0} points beside its prediction", beside * 100.0);
    Ok(())
}

fn main() -> ExitCode {
    cli::prepare();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
