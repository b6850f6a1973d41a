//! A run: one way to train, on however many devices it takes.

use std::cell::{Cell, RefCell};

use candle_core::{DType, Device, ModuleT, Tensor};
use concise_wrapper::ddp::{Lines, Reduction, alike};
use concise_wrapper::launch::{ForRank0, Launch, Rank};
use concise_wrapper::model::Hosts;
use concise_wrapper::shares::Share;
use concise_wrapper::weights::Weights;
use concise_wrapper::{Ddp, Error, Model, text, train};
use model_parallel::held::{Held, activations_of};
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::pipeline::{PipelineParallel, Timeline};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Group, Replicated, TensorParallel};
use model_parallel::whole::{Named, Whole};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use single_gpu::data::{Dataset, SAMPLE};
use single_gpu::report::Report;
use single_gpu::report::outputs::Outputs;
use single_gpu::report::trace;
use single_gpu::train::{BatchSums, EpochRecord, Step};
use single_gpu::weights_hash::WeightsHash;

use crate::arguments::{ModelKind, Prepared};
use crate::outcome::Outcome;
use crate::way::{Planned, Way};

/// What a run has shown on rank 0.
pub(crate) struct Shown {
    pub(crate) records: Vec<EpochRecord>,
    pub(crate) after_first_step: Named,
    pub(crate) weights: Named,
    /// Of each replica's whole weights, as hashes.
    pub(crate) replicas: Vec<String>,
    /// By each device.
    pub(crate) held: Vec<Held>,
    /// Of the first steps, where there are stages.
    pub(crate) steps: Vec<Timeline>,
}

/// Trains in one way; what comes back is for the process that speaks.
pub(crate) fn run(
    way: &Way,
    planned: &Planned,
    prepared: &Prepared,
    launch: &Launch,
    outputs: &mut Outputs,
) -> anyhow::Result<Option<Outcome>> {
    let name = way.name();
    let mut report = if launch.speaks() { outputs.report(&name) } else { Report::silent() };
    let plan = match (way, &prepared.one) {
        (Way::Alone { .. }, Some(one)) => one,
        _ => &prepared.several,
    };
    let report_of_rank_0 = ForRank0::new(&mut report);
    let shown = launch.run(plan, |rank| {
        let Rank { number, device, lines } = rank;
        let _rank = trace::rank(&name, *number, device);
        let mut silent = Report::silent();
        let report = report_of_rank_0.take(*number).unwrap_or(&mut silent);
        alike::compare(&lines.main, &prepared.to_compare(way, planned))?;
        one_rank(way, planned, prepared, device.tensors(), lines, report)
    });
    let shown = shown.map_err(anyhow::Error::from)?.swap_remove(0);
    drop(report);
    shown.map(|shown| Outcome::new(way, planned, prepared, plan, shown, outputs)).transpose()
}

/// One rank's part.
fn one_rank(
    way: &Way,
    planned: &Planned,
    prepared: &Prepared,
    device: &Device,
    lines: &Lines,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
    let (seed, dtype) = (prepared.setup.options.seed, prepared.dtype());
    let all = &lines.main;
    let constants = prepared.extras.constants;
    let build = |layers| prepared.network.layers()?.build(layers, seed, dtype, device);
    match way {
        Way::Alone { shards } => {
            let network = build(0..prepared.network.layers()?.len())?;
            let replica = network.replica(device)?;
            let input = zeros(prepared.rows(*shards), dtype, device)?;
            let held = Held::new(network.weights(), constants, activations_of(&replica, &input)?);
            drop(replica);
            if *shards == 1 {
                return all_steps(&network, all, |_| held, prepared, report);
            }
            // Those of every shard, and then their sum.
            let held = Held { gradients: (shards + 1) * held.parameters, ..held };
            let reduction = Reduction::Reproducible { shards: *shards };
            let model = Ddp::new(network, lines.clone(), reduction)?;
            all_steps(&model, all, |_| held, prepared, report)
        }
        Way::Pipeline { checked, mesh, .. } => {
            let stage = mesh.coordinates(all.rank()).pipeline;
            let network = build(planned.cut[stage].clone())?;
            let model = PipelineParallel::new(checked, network, all.clone(), *mesh, &SAMPLE)?;
            let shown = all_steps(&model, all, |model| model.held(constants), prepared, report)?;
            let steps = model.timelines()?;
            Ok(shown.map(|shown| Shown { steps, ..shown }))
        }
        Way::Tensor { mesh } => {
            // A ring has nothing to save between two.
            let algorithm = if mesh.tensor > 2 { Algorithm::Ring } else { Algorithm::OneShot };
            let group = Group::new(mesh.along(all, Axis::Tensor)?, algorithm);
            match prepared.network.model {
                ModelKind::Lenet => {
                    let model = TensorParallel::new(seed, dtype, group, |parts, _| {
                        LeNet::new(Channels::Gathered, parts)
                    })?;
                    in_parts(model, *mesh, lines, device, prepared, report)
                }
                ModelKind::Dense => {
                    let widths = prepared.network.widths.clone();
                    let model = TensorParallel::new(seed, dtype, group, move |parts, _| {
                        DenseStack::new(&widths, parts)
                    })?;
                    in_parts(model, *mesh, lines, device, prepared, report)
                }
                ModelKind::Resnet18 => {
                    let text = "ResNet-18 is split in stages only".to_owned();
                    Err(candle_core::Error::Msg(text).into())
                }
            }
        }
    }
}

/// One rank's part of a network whose layers are in parts.
fn in_parts<M: ModuleT>(
    model: TensorParallel<M>,
    mesh: Mesh,
    lines: &Lines,
    device: &Device,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
    let (constants, all) = (prepared.extras.constants, &lines.main);
    let input = zeros(prepared.rows(mesh.data), prepared.dtype(), device)?;
    let activations = activations_of(model.network(), &input)?;
    let held = Held::new(model.weights(), constants, activations);
    if mesh.data == 1 {
        return all_steps(&model, all, |_| held, prepared, report);
    }
    let model = Replicated::new(model, lines, mesh, Reduction::default())?;
    all_steps(&model, all, |_| held, prepared, report)
}

/// All steps, and what they come to, on rank 0.
fn all_steps<M: Whole>(
    model: &M,
    all: &SharedCommunicator,
    held: impl FnOnce(&M) -> Held,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Option<Shown>, Error> {
    let Prepared { setup, extras, .. } = prepared;
    let watched = Watched::new(model);
    let dtype = prepared.dtype();
    let trained = train(&watched, &setup.data, &setup.options, extras, dtype, None, report)?;
    let after_first_step = model.whole(watched.after_first_step()?)?;
    let weights = model.whole(trained.weights)?;
    let hash = weights.as_ref().map(|weights| WeightsHash::new(weights)).transpose()?;
    let replicas = text::values_gathered(all, &hash.map(|hash| format!("{hash:?}")))?;
    let held = text::values_gathered(all, &held(model))?;
    // Only rank 0 has been told of all.
    let shown = after_first_step.zip(weights).filter(|_| all.rank() == 0);
    Ok(shown.map(|(after_first_step, weights)| Shown {
        records: trained.records,
        after_first_step,
        weights,
        replicas: replicas.into_iter().flatten().collect(),
        held,
        steps: Vec::new(),
    }))
}

fn zeros(rows: usize, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::zeros([&[rows], SAMPLE.as_slice()].concat(), dtype, device)
}

/// A model, and its weights after the first step.
struct Watched<'a, M> {
    model: &'a M,
    steps: Cell<usize>,
    after_first: RefCell<Option<Named>>,
}

impl<'a, M: Model> Watched<'a, M> {
    fn new(model: &'a M) -> Self {
        Self { model, steps: Cell::new(0), after_first: RefCell::new(None) }
    }

    /// This rank's weights after the first step.
    fn after_first_step(&self) -> candle_core::Result<Named> {
        match self.after_first.take() {
            Some(weights) => Ok(weights),
            // There was no second one.
            None => self.model.weights().snapshot(),
        }
    }
}

impl<M: Model> Model for Watched<'_, M> {
    fn hosts(&self) -> Hosts {
        self.model.hosts()
    }

    fn backward(&self, share: &Share) -> Result<Step, Error> {
        if self.steps.get() == 1 {
            self.after_first.replace(Some(self.model.weights().snapshot()?));
        }
        self.steps.set(self.steps.get() + 1);
        self.model.backward(share)
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }

    fn is_whole(&self) -> bool {
        self.model.is_whole()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.model.evaluate(images)
    }
}

#[cfg(test)]
mod tests {
    use concise_wrapper::optimiser::{Momentum, Sgd};
    use concise_wrapper::shares::Shares;
    use model_parallel::layers::Layers;
    use single_gpu::data::loader::Epochs as _;
    use single_gpu::data::{CLASSES, PIXELS};

    use super::*;

    #[test]
    fn the_weights_after_the_first_step_are_watched() {
        let data = Dataset::new(vec![[100; PIXELS]; 6], vec![3; 6]).unwrap();
        let layers = Layers::dense(&[PIXELS, CLASSES]).unwrap();
        for steps in 1..=3 {
            let network = layers.build(0..1, 1, DType::F64, &Device::Cpu).unwrap();
            let watched = Watched::new(&network);
            let shares = Shares::new(&data, 2, 1, DType::F64, watched.hosts());
            let mut sgd = Sgd::new(Momentum::default());
            let mut hashes = Vec::new();
            for share in shares.epoch(1).take(steps) {
                let share = share.unwrap();
                let step = watched.backward(&share).unwrap();
                sgd.step(watched.weights(), &step.gradients, 0.1, share.samples).unwrap();
                hashes.push(WeightsHash::new(&watched.weights().snapshot().unwrap()).unwrap());
            }
            let after_first = WeightsHash::new(&watched.after_first_step().unwrap()).unwrap();
            assert_eq!(after_first, hashes[0], "{steps} steps");
            assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "every step changes them");
        }
    }
}
