//! A new executor. All stages of a pipeline settle the shapes of their messages, and refuse what does not fit together.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use candle_core::{DType, Module as _, ModuleT, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::weights::{Named, Weights};
use concise_wrapper::{Error, Network, text};
use model_state::weights::is_buffer;
use ops::backward::no_grad;
use params_and_allreduce::communicator::SharedCommunicator;
use scratch_data_parallel::FixedTree;

use super::unit::{Replicas, Unit, Whole, refuse};
use super::{Executor, Placed, Settings, Units, batch_of, failed};
use crate::check::{Checked, check, in_one_order};
use crate::instructions::{Action, Instruction, Schedule, UNBOUNDED};
use crate::mesh::{Axis, Mesh};

// ANCHOR: begin
impl<M: ModuleT> Executor<Whole<M>> {
    /// The executor of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `networks` are the units of the stage: [`Schedule::units_of`]. From now on their batch norms normalise by
    /// micro-batch. `sample` is the shape of one sample of the data, such as `[1, 28, 28]`, or `[64]` for 64 tokens. Fails
    /// when mesh, schedule and networks do not fit together, when two stages have a tensor of one name, or when another
    /// rank stops or stalls.
    pub fn new(
        checked: &Checked,
        networks: Vec<Network<M>>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        settings: Settings,
    ) -> Result<Self, Error> {
        let stage = mesh.coordinate(all.rank(), Axis::Pipeline);
        let (wanted, found) = (checked.schedule().units_of(stage).count(), networks.len());
        if wanted != found {
            return refuse(format!("a schedule with {wanted} units on a stage that has {found}"));
        }
        let mut networks = networks.into_iter();
        Self::of_units(checked, all, mesh, sample, settings, |number, replicas| {
            let network = networks.next().expect("a network for each unit");
            Ok(Whole::new(number, network, Rc::clone(replicas)))
        })
    }
}

impl<U: Unit> Executor<U> {
    /// The executor of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `unit` makes the units of the stage in the order of the model, from their numbers and the connection of the
    /// replicas. A unit is whole when it is made. If the schedule is sharded, the unit is freed before the next one is
    /// made. Fails as [`new`](Executor::new) does, and when a unit with batch norms is recomputed, or replicas start
    /// their collectives in different orders.
    pub fn of_units(
        checked: &Checked,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        settings: Settings,
        mut unit: impl FnMut(usize, &Rc<Replicas>) -> Result<U, Error>,
    ) -> Result<Self, Error> {
        let schedule = checked.schedule();
        if (schedule.stages(), schedule.replicas) != (mesh.pipeline, mesh.data) {
            let (stages, replicas) = (schedule.stages(), schedule.replicas);
            return refuse(format!(
                "a schedule of {stages} stages and {replicas} replicas on the mesh {mesh}"
            ));
        }
        let pipeline = mesh.along(&all, Axis::Pipeline)?;
        let of_data = mesh.along(&all, Axis::Data)?;
        let stage = pipeline.rank();
        let collectives = text::values(&*of_data, &schedule.lists[stage])?;
        in_one_order(&collectives).map_err(|error| Error::Model(Box::new(error)))?;
        let tree = FixedTree::new(schedule.micro_batches * mesh.data, mesh.data)?;
        let parts = mesh.along(&all, Axis::Tensor)?;
        let replicas = Rc::new(Replicas::new(of_data, tree, settings)?);
        let make = |number| {
            let unit = unit(number, &replicas)?;
            let network = unit.network();
            network.norms().by_shard();
            alike::structure(&replicas.comm, network.weights())?;
            Ok(unit)
        };
        let (units, first_trained) = introduce(schedule, &pipeline, (sample, settings), make)
            .map_err(|error| failed(stage, ", before the first step", error))?;
        let Some(first_trained) = first_trained else {
            return refuse("the model has nothing to train".to_owned());
        };
        let mut checked = checked.clone();
        if first_trained > schedule.first_trained {
            // A gradient that nobody needs would perhaps be computed by another algorithm than one device's.
            let schedule = schedule.clone().trained_from(first_trained);
            checked = check(schedule, UNBOUNDED).map_err(|error| Error::Model(Box::new(error)))?;
        }
        // All clocks count from one moment. No rank leaves a barrier at exactly the moment of another.
        let start = text::value_of_rank_0(&*all, &SystemTime::now())?;
        let origin = Instant::now().checked_sub(start.elapsed().unwrap_or_default());
        let mut owned = units.values().map(|it| it.unit.owned().clone());
        let mut weights = owned.next().expect("each stage has a unit");
        for Weights { parameters, buffers, .. } in owned {
            weights.parameters.extend(parameters);
            weights.buffers.extend(buffers);
        }
        Ok(Self {
            checked,
            stage,
            units,
            weights,
            settings,
            all,
            pipeline,
            parts,
            replicas,
            origin: origin.unwrap_or_else(Instant::now),
            measured: RefCell::default(),
        })
    }
}

/// Makes the units of this stage with `unit`. Returns them, and the number of the first unit of the model that has
/// something to train. All stages of a pipeline call this together.
///
/// In the order of the model, each unit introduces itself to all stages. A receiver must know the shape of a message,
/// and only unit 0 knows its input, a sample of the data. Each unit therefore passes a sample of zeros through its
/// layers, and announces the shape of the result. No two units have a tensor of one name: each would train its own.
pub(super) fn introduce<U: Unit>(
    schedule: &Schedule,
    pipeline: &SharedCommunicator,
    (sample, settings): (&[usize], Settings),
    mut unit: impl FnMut(usize) -> Result<U, Error>,
) -> Result<(Units<U>, Option<usize>), Error> {
    let (mut units, mut first_trained) = (Units::new(), None);
    let (mut shape, mut owners) = (sample.to_vec(), HashMap::new());
    for (number, &stage) in schedule.placement.iter().enumerate() {
        let mut mine = None;
        if stage == pipeline.rank() {
            let unit = unit(number)?;
            let network = unit.network();
            let mut norms = network.weights().buffers.iter().filter(|it| is_buffer(&it.name));
            let is_again =
                |it: &Instruction| it.unit == number && matches!(it.action, Action::Recompute(_));
            if let Some(Named { name, .. }) = norms.next()
                && schedule.lists[stage].iter().any(is_again)
            {
                // The second pass would count the batch twice in the running statistics.
                return refuse(format!(
                    "unit {number} has the batch norm of {name}, which would count its batch twice: do not recompute this \
                     unit"
                ));
            }
            let names: Vec<_> = network.weights().iter().map(|it| it.name.clone()).collect();
            if let Some((name, first)) = names.iter().find_map(|it| owners.get_key_value(it)) {
                return refuse(format!(
                    "{name} is in stages {first} and {stage}: each would train its own"
                ));
            }
            let is_token = number == 0 && settings.takes_tokens;
            let dtype = if is_token { DType::U32 } else { network.dtype() };
            let zeros = Tensor::zeros(batch_of(1, &shape), dtype, network.device())?;
            // In evaluation the statistics of batch norms stay as they are.
            let output = match no_grad(|| network.forward(&zeros))?.dims() {
                [1, output @ ..] => output.to_vec(),
                // The logits are no message, and may have a row for each token.
                _ if settings.takes_tokens && schedule.is_last(number) => Vec::new(),
                other => {
                    return refuse(format!(
                        "one sample of {shape:?} becomes {other:?}: the first axis is the batch's"
                    ));
                }
            };
            if schedule.sharded {
                unit.free()?;
            }
            mine = Some((output.clone(), names, !unit.owned().parameters.is_empty()));
            let (state, input) = (Cell::default(), shape);
            units.insert(number, Placed { unit, state, input, output });
        }
        let introduced = text::values(&**pipeline, &mine)?.into_iter().flatten().next();
        let (output, names, trains) = introduced.expect("every unit is on a stage");
        owners.extend(names.into_iter().map(|name: String| (name, stage)));
        first_trained = first_trained.or(trains.then_some(number));
        shape = output;
    }
    Ok((units, first_trained))
}
// ANCHOR_END: begin
