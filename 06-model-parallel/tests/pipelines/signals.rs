//! A signal during an evaluation ends the evaluation, on all stages of a pipeline and under DDP.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, process, thread};

use concise_wrapper::train;
use harness::interrupt;
use harness::records::EpochRecord;
use predicates::str::contains;

use super::training::{checked_on, images, on_ranks};
use crate::prelude::*;

/// The variable with the case of a process that a test starts: the mesh, the chunks of each stage, and the rank that sends the
/// signal during the evaluation. With 0 chunks DDP trains.
const CASE: &str = "SIGNAL_IN_AN_EVALUATION";

/// A dense layer that counts the batches that it evaluates. The parts of a stage compute each batch together.
struct Dense {
    weight: Tensor,
    bias: Tensor,
    parts: SharedCommunicator,
    batches: Arc<AtomicUsize>,
    sends_signal: bool,
}

impl ModuleT for Dense {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let y = linear(&flatten(x)?, &self.weight, &self.bias)?;
        if !train {
            self.parts.all_reduce(&y, Algorithm::OneShot).map_err(candle_core::Error::wrap)?;
            if self.batches.fetch_add(1, Ordering::SeqCst) == 3 && self.sends_signal {
                let process = process::id().to_string();
                assert!(Command::new("kill").args(["-TERM", &process]).status()?.success());
                while !interrupt::requested() {
                    thread::yield_now();
                }
            }
        }
        Ok(y)
    }
}

/// Trains in a process that another test starts. Alone, this test does nothing.
#[test]
fn child() {
    let Ok(case) = env::var(CASE) else { return };
    let [mesh, chunks, sender] = case.split(' ').collect::<Vec<_>>()[..] else { panic!("{case}") };
    let mesh: Mesh = mesh.parse().unwrap();
    let (chunks, sender) = (chunks.parse().unwrap(), sender.parse::<usize>().unwrap());
    let kind = if chunks < 2 { Kind::GPipe } else { Kind::Interleaved { chunks } };
    let checked = checked_on(mesh, kind, 2);
    interrupt::watch().unwrap();
    let ended = on_ranks(mesh.devices(), |rank| {
        let all: SharedCommunicator = rank.into();
        let group = mesh.along(&all, Axis::Tensor)?;
        let batches = Arc::new(AtomicUsize::new(0));
        let layer = |part: usize| {
            let inputs = if part == 0 { PIXELS } else { CLASSES };
            let (parts, batches) = (Arc::clone(&group), Arc::clone(&batches));
            let sends_signal = rank.rank() == sender;
            Network::new(1, DType::F64, &Device::Cpu, move |vb, _| {
                let vb = vb.pp(part);
                let weight = vb.get((inputs, CLASSES), "weight")?;
                let (bias, parts) = (vb.get(CLASSES, "bias")?, Arc::clone(&parts));
                Ok(Dense { weight, bias, parts, batches: Arc::clone(&batches), sends_signal })
            })
        };
        let stage = mesh.coordinate(rank.rank(), Axis::Pipeline);
        let mut layers: Vec<_> =
            checked.schedule().units_of(stage).map(layer).collect::<Result<_, _>>()?;
        let records = if chunks == 0 {
            records_of(&Ddp::new(layers.remove(0), rank, Reduction::default())?)
        } else {
            records_of(&Executor::new(&checked, layers, all, mesh, &SAMPLE, Settings::IMAGES)?)
        };
        Ok((records?, batches.load(Ordering::SeqCst)))
    });
    let replica = |rank| mesh.coordinate(rank, Axis::Data);
    for (rank, (records, batches)) in ended.unwrap().into_iter().enumerate() {
        assert_eq!(records.len(), 1, "an epoch, and no step of the next");
        assert!(records[0].test_accuracy.is_nan(), "{records:?}");
        // A sample for the shapes and one list, through each unit; under DDP each rank ends by itself. Other replicas may have
        // ended before the signal.
        let most = if chunks == 0 { 10 } else { chunks * (1 + 4 * mesh.pipeline) };
        assert!(batches <= most || replica(rank) != replica(sender), "{batches} batches of {rank}");
    }
    assert_eq!(interrupt::exit_code(), Some(143));
}

/// Trains for two epochs of one step each.
fn records_of(model: &impl Model) -> Result<Vec<EpochRecord>, Error> {
    let data = LoadedData { name: String::new(), train: images(4), test: images(40 * BATCH) };
    let options = TrainOptions { epochs: 2, batch_size: 4, learning_rate: 0.1, seed: 1 };
    let (sgd, report) = (&mut Sgd::new(Momentum::default()), &mut Report::silent());
    Ok(train(model, &data, &options, (sgd, 0), None, report, |_| Ok(()))?.records)
}

#[test]
fn a_signal_cuts_the_evaluation_on_all_ranks() {
    for case in [
        "1x2x1 1 0",
        "1x3x1 1 2",
        "1x2x1 2 0",
        "2x2x1 1 2",
        "1x1x2 1 0",
        "1x1x2 1 1",
        "1x2x2 1 0",
        "2x2x2 1 7",
        "1x1x1 0 0",
        "3x1x1 0 1",
    ] {
        assert_cmd::Command::new(env::current_exe().unwrap())
            .args(["--exact", "pipelines::signals::child", "--nocapture"])
            .env(CASE, case)
            .timeout(Duration::from_secs(120))
            .assert()
            .success()
            .stdout(contains("1 passed"));
    }
}
