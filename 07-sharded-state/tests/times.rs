//! Times, in a program of its own: other tests would take the processor away.
//!
//! Layers that sleep wait for time and not for a core, and a slow link carries the chunks.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[allow(dead_code, reason = "other tests use all of it")]
mod cases;
#[path = "../../tests/src/device.rs"]
#[expect(dead_code, reason = "tests across stages use the rest")]
mod device;
#[path = "../../tests/src/layers.rs"]
mod layers;

use std::thread::sleep;
use std::time::Duration;

use candle_core::{CpuStorage, ModuleT, Result, Storage, Tensor};
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use datasets::CLASSES;
use harness::statistics::median;
use model_parallel::layers::Layers;
use model_parallel::simulate::Span;
use model_parallel::{Action, Cost, Timeline, UNBOUNDED, check};
use ops::backward::record_in_halves;
use sharded_state::{Sharing, Strategy};

use cases::{CASE, Case, Net, Updates};

const UNITS: usize = 8;

/// A forward pass, and each half of a backward pass.
const PASS: Duration = Duration::from_millis(10);

/// The numbers of a unit's parameters.
const NUMBERS: usize = 4096;

struct Sleeping {
    weight: Tensor,
}

impl ModuleT for Sleeping {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            sleep(PASS);
        }
        let storage = Storage::Cpu(CpuStorage::F64(x.flatten_all()?.to_vec1::<f64>()?));
        let gradient = self.weight.zeros_like()?;
        record_in_halves("sleep", storage, x.shape(), [x, &self.weight], move |_, dy, wanted| {
            // The first unit sleeps as long as the others, without a gradient of its input.
            sleep(if wanted.input { PASS } else { 2 * PASS });
            if wanted.input && wanted.weights {
                sleep(PASS);
            }
            Ok([wanted.input.then(|| dy.clone()), wanted.weights.then(|| gradient.clone())])
        })
    }
}

fn sleeping() -> Layers {
    (0..UNITS).fold(Layers::default(), |layers, number| {
        layers.then(move |builder| {
            Ok(Sleeping { weight: builder.vb.get(NUMBERS, &format!("sleeping{number}.weight"))? })
        })
    })
}

const SLEEPING: Case = Case {
    net: Net::Made(sleeping, &[CLASSES]),
    updates: Updates::Momentum,
    rate: 0.0,
    micro_batches: 1,
    samples: 2,
    ..CASE
};

/// Seconds of a gather if communication takes such a part of the time of computing: of a rank, all rows but one three times.
fn gather(part: f64) -> f64 {
    let computing = 3.0 * UNITS as f64 * PASS.as_secs_f64();
    part * computing / (3 * UNITS - 1) as f64
}

/// The spans of rank 0 in each step but the first, on a link of this speed.
fn steps(strategy: Strategy, part: f64, steps: usize) -> Vec<Timeline> {
    // Between two ranks, a row is half received and half sent.
    let bandwidth = (NUMBERS * 8 / 2) as f64 / gather(part);
    let slowness = Slowness { latency: Duration::ZERO, bandwidth };
    let network = SlowNetwork::new(slowness, Duration::from_secs(60));
    let case = Case { steps, ..SLEEPING };
    let lists = vec![case.schedule(strategy); 2];
    let whole = strategy.sharing == Sharing::Ddp;
    let trained = case.train_over(whole, &lists, |comm| network.slow_down(comm)).unwrap();
    let of_rank: Vec<Vec<Span>> = trained.measured[0].steps.clone();
    of_rank.into_iter().skip(1).map(|spans| Timeline::joined([spans])).collect()
}

/// The part of the time of communication in which the rank computes.
fn hidden(step: &Timeline, part: f64) -> f64 {
    let rows = step.spans.iter().map(|it| match it.instruction.action {
        Action::AllReduce => 2.0,
        Action::Gather | Action::ReduceScatter => 1.0,
        _ => 0.0,
    });
    let communicating = rows.sum::<f64>() * gather(part);
    1.0 - (step.makespan() - step.busy(0)) / communicating
}

const PLAIN: Strategy = Sharing::Zero3.plain();
const PREFETCHED: Strategy = Strategy { prefetches: true, ..PLAIN };

#[test]
fn with_prefetch_a_unit_travels_while_the_unit_before_computes() {
    let span = |step: &Timeline, unit: usize, action: Action, nth: usize| {
        let is = |span: &&Span| span.instruction.unit == unit && span.instruction.action == action;
        *step.spans.iter().filter(is).nth(nth).unwrap()
    };
    for step in steps(PREFETCHED, 0.3, 4) {
        for unit in 0..UNITS - 1 {
            // Forward, the next unit has begun to travel before this one has computed, and is there before it begins.
            let (row, now) = (
                span(&step, unit + 1, Action::Gather, 0),
                span(&step, unit, Action::Forward(0), 0),
            );
            let next = span(&step, unit + 1, Action::Forward(0), 0);
            assert!(row.start < now.end && row.end <= next.start, "{unit}: {row:?} {now:?}");
            // Backward, the unit before.
            let (row, now) = (
                span(&step, unit, Action::Gather, 1),
                span(&step, unit + 1, Action::Backward(0), 0),
            );
            let next = span(&step, unit, Action::Backward(0), 0);
            assert!(row.start < now.end && row.end <= next.start, "{unit}: {row:?} {now:?}");
            // The sum of the next unit travels while this one goes backward.
            let sum = span(&step, unit + 1, Action::ReduceScatter, 0);
            assert!(sum.start < next.end && sum.start >= now.end, "{unit}: {sum:?} {next:?}");
            let update = span(&step, unit + 1, Action::Update, 0);
            assert!(sum.end <= update.start, "{unit}: {sum:?} {update:?}");
        }
    }
    for step in steps(PLAIN, 0.3, 4) {
        for unit in 0..UNITS - 1 {
            let (row, now) = (
                span(&step, unit + 1, Action::Gather, 0),
                span(&step, unit, Action::Forward(0), 0),
            );
            assert!(row.start >= now.end, "{unit}: {row:?} {now:?}");
        }
    }
}

/// With FULL=1 for all strategies, and more steps. The simulator has the same part.
#[test]
fn prefetch_hides_communication() {
    let full = std::env::var_os("FULL").is_some();
    let mut all = vec![PLAIN, PREFETCHED];
    if full {
        let others = [Sharing::Ddp, Sharing::Zero1, Sharing::Zero2];
        all.extend(others.map(|sharing| Strategy { sharing, ..PLAIN }));
    }
    let parts: &[f64] = if full { &[0.3, 0.6, 1.0] } else { &[0.6] };
    for &part in parts {
        let seconds = PASS.as_secs_f64();
        let cost = Cost {
            forward: seconds,
            backward: 2.0 * seconds,
            all_reduce: 2.0 * gather(part),
            ..Cost::default()
        };
        let of_strategies = all.iter().map(|&strategy| {
            let checked = check(SLEEPING.schedule(strategy), UNBOUNDED).unwrap();
            let predicted = checked.simulate(&[cost; UNITS], 0.0).unwrap();
            let measured = steps(strategy, part, if full { 12 } else { 4 });
            let of_steps = || measured.iter().map(|step| hidden(step, part));
            let [found, expected] = [median(of_steps()), hidden(&predicted, part)];
            println!(
                "{strategy:?}, communication {part} of computing: {found:.3} hidden, {expected:.3} predicted; step {:.4} s, \
                 {:.4} s predicted",
                median(measured.iter().map(Timeline::makespan)),
                predicted.makespan(),
            );
            found
        });
        let parts: Vec<f64> = of_strategies.collect();
        // Without prefetch a gather waits for the sum before it, and the rank waits for the gather.
        assert!(parts[1] > parts[0] + 0.2 && parts[1] > 0.6, "{parts:?}");
    }
}
