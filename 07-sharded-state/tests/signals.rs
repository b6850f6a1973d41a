//! A signal ends all ranks after the same step.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, process, thread};

use candle_core::Tensor;
use concise_wrapper::counted::Counted;
use concise_wrapper::optimizer::{AdamW, Optimizer};
use concise_wrapper::train;
use datasets::source::LoadedData;
use datasets::{CLASSES, PIXELS};
use harness::interrupt;
use harness::records::TrainOptions;
use harness::report::Report;
use model_parallel::layers::{Builder, Layers};
use model_parallel::{UNBOUNDED, check};
use ops::{flatten, linear};
use params_and_allreduce::communicator::Communicator as _;
use predicates::str::contains;
use sharded_state::{Sharing, Strategy};

use crate::cases::{CASE, Case, Net, images, on_ranks, values};
use crate::cli::signals::with_default_sigint;

/// The variable with the number of ranks of a process that a test starts.
const RANKS: &str = "SIGNAL_IN_A_STEP";

/// The training passes of the second layer, on all ranks.
static PASSES: AtomicUsize = AtomicUsize::new(0);

/// The second of three layers sends a signal to its process in its seventh training pass, which lasts until the signal is known.
fn layers() -> Layers {
    let layer = |number: usize, inputs: usize| {
        move |builder: &Builder<'_>| {
            let vb = builder.vb.pp(number);
            let (weight, bias) = (vb.get((inputs, CLASSES), "weight")?, vb.get(CLASSES, "bias")?);
            Ok(move |x: &Tensor| {
                if number == 1 && x.track_op() && PASSES.fetch_add(1, Ordering::SeqCst) == 6 {
                    let process = process::id().to_string();
                    assert!(Command::new("kill").args(["-INT", &process]).status()?.success());
                    while !interrupt::requested() {
                        thread::yield_now();
                    }
                }
                linear(&flatten(x)?, &weight, &bias)
            })
        }
    };
    Layers::default().then(layer(0, PIXELS)).then(layer(1, CLASSES)).then(layer(2, CLASSES))
}

/// Trains in a process that another test starts. Alone, this test does nothing.
#[test]
fn child() {
    let Ok(ranks) = env::var(RANKS) else { return };
    let ranks = ranks.parse().unwrap();
    interrupt::watch().unwrap();
    let net = Net::Made(layers, &[1, 28, 28]);
    let case = Case { net, ranks, micro_batches: 1, ..CASE };
    let strategy = Strategy { sharing: Sharing::Zero3, prefetches: true, recomputes: None };
    let checked = check(case.schedule(strategy), UNBOUNDED).unwrap();
    let ended = on_ranks(ranks, |rank| {
        let executor = case.executor_of_chunks(rank.device(), &Counted::new(rank), &checked)?;
        let data = LoadedData { name: String::new(), train: images(400), test: images(4) };
        let options = TrainOptions { epochs: 3, batch_size: 4, learning_rate: 0.1, seed: 1 };
        let (mut steps, report) = (0, &mut Report::silent());
        let mut adamw = AdamW::default();
        let optimizer = (&mut adamw as &mut dyn Optimizer, 0);
        let records = train(&executor, &data, &options, optimizer, None, report, |progress| {
            steps = progress.steps;
            Ok(())
        })?;
        let whole = executor.units().map(|unit| unit.whole()).collect::<Result<Vec<_>, _>>()?;
        Ok((steps, records.records.len(), whole.concat()))
    });
    let ended = ended.unwrap();
    for (steps, epochs, whole) in &ended {
        let (first, ..) = ended[0];
        assert_eq!(*steps, first, "all ranks end after one step");
        assert!(*steps <= 7, "{steps} steps");
        assert!(*epochs <= 1);
        assert_eq!(values(whole), values(&ended[0].2));
    }
    assert_eq!(interrupt::exit_code(), Some(130));
}

#[test]
fn a_signal_ends_all_ranks_after_a_step() {
    for ranks in ["2", "3"] {
        let mut child = with_default_sigint(env::current_exe().unwrap());
        child.args(["--exact", "signals::child", "--nocapture"]).env(RANKS, ranks);
        assert_cmd::Command::from_std(child)
            .timeout(Duration::from_secs(120))
            .assert()
            .success()
            .stdout(contains("1 passed"));
    }
}
