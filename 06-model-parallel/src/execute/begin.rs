//! What all ranks of a pipeline settle before the first step: the shapes of messages, and refusals.

use std::cell::Cell;
use std::collections::HashMap;

use candle_core::{DType, Module as _, Shape, Tensor};
use concise_wrapper::weights::Weights;
use concise_wrapper::{Error, text};
use model_state::weights::is_buffer;
use ops::backward::no_grad;
use params_and_allreduce::communicator::SharedCommunicator;

use super::unit::Unit;
use super::{Placed, Settings, batch_of, refuse};
use crate::check::{Checked, check};
use crate::instructions::{Action, Instruction, Schedule, UNBOUNDED};

// ANCHOR: begin
/// The schedule without the gradients of the first units, if these have nothing to train. All stages of a pipeline
/// call this together.
///
/// Otherwise the next unit would compute a gradient that nobody needs, perhaps by another algorithm than one device.
pub(super) fn behind_nothing_to_train<U: Unit>(
    checked: &Checked,
    units: &[Placed<U>],
    pipeline: &SharedCommunicator,
) -> Result<Checked, Error> {
    let trains = |it: &&Placed<U>| !it.unit.owned().parameters.is_empty();
    let mine = units.iter().find(trains).map(|it| it.number);
    let Some(first) = text::values(&**pipeline, &mine)?.into_iter().flatten().min() else {
        return refuse("the model has nothing to train".to_owned());
    };
    if first <= checked.schedule().first_trained {
        return Ok(checked.clone());
    }
    let schedule = checked.schedule().clone().trained_from(first);
    check(schedule, UNBOUNDED).map_err(|error| Error::Model(Box::new(error)))
}

/// Checks that no tensor is in two stages, which would train two copies. All stages of a pipeline call this together,
/// and the first one finds the tensor.
pub(super) fn each_in_one_stage<'a>(
    pipeline: &SharedCommunicator,
    units: impl Iterator<Item = &'a Weights>,
) -> Result<(), Error> {
    let mine: Vec<String> = units.flat_map(Weights::iter).map(|named| named.name.clone()).collect();
    let mut seen = HashMap::new();
    for (stage, names) in text::values_gathered(&**pipeline, &mine)?.into_iter().enumerate() {
        for name in names {
            if let Some(first) = seen.insert(name.clone(), stage) {
                return refuse(format!(
                    "{name} is in stages {first} and {stage}: each would train its own"
                ));
            }
        }
    }
    Ok(())
}

/// Finds the shapes that each unit receives and sends. All stages of a pipeline call this together.
///
/// A receiver must know the shape of a message. Only unit 0 knows its input, a sample of the data. Each unit therefore
/// passes a sample of zeros through its layers, and sends the shape of the result to the next unit.
pub(super) fn with_shapes<U: Unit>(
    schedule: &Schedule,
    units: impl Iterator<Item = Result<(usize, U), Error>>,
    pipeline: &SharedCommunicator,
    (sample, settings): (&[usize], Settings),
) -> Result<Vec<Placed<U>>, Error> {
    /// The largest number of axes, without the axis of the batch. Shapes with fewer axes end in zeros.
    const AXES: usize = 7;
    let (stage, placement) = (pipeline.rank(), &schedule.placement);
    let mut all: Vec<Placed<U>> = Vec::new();
    for made in units {
        let (number, unit) = made?;
        let before = number.checked_sub(1).map(|before| placement[before]);
        let input = match (before, all.last()) {
            (None, _) => sample.to_vec(),
            (Some(before), Some(placed)) if before == stage => placed.output.clone(),
            (Some(before), _) => {
                let dims = pipeline.recv(before, &Shape::from(AXES), DType::U32)?;
                let dims = dims.to_vec1::<u32>()?.into_iter().map(|dim| dim as usize);
                dims.take_while(|&dim| dim > 0).collect()
            }
        };
        let network = unit.network();
        let is_token = number == 0 && settings.takes_tokens;
        let dtype = if is_token { DType::U32 } else { network.dtype() };
        let zeros = Tensor::zeros(batch_of(1, &input), dtype, network.device())?;
        // In evaluation the statistics of batch norms stay as they are.
        let output = match no_grad(|| network.forward(&zeros))?.dims() {
            [1, output @ ..] if output.len() <= AXES => output.to_vec(),
            // The logits are no message, and may have a row for each token.
            _ if settings.takes_tokens && schedule.is_last(number) => Vec::new(),
            other => {
                return refuse(format!(
                    "one sample of {input:?} becomes {other:?}: the first axis is the batch's"
                ));
            }
        };
        let after = placement.get(number + 1).filter(|after| **after != stage);
        if let Some(&after) = after {
            let mut dims: Vec<u32> = output.iter().map(|&dim| dim as u32).collect();
            dims.resize(AXES, 0);
            pipeline.send(after, &Tensor::new(dims, pipeline.device())?)?;
        }
        if schedule.sharded {
            unit.free()?;
        }
        all.push(Placed { number, unit, state: Cell::default(), input, output });
    }
    Ok(all)
}

/// Refuses to recompute a batch norm: its second forward pass would count the batch twice in the running statistics.
pub(super) fn not_recomputed(
    schedule: &Schedule,
    unit: usize,
    weights: &Weights,
) -> Result<(), Error> {
    let again = |it: &&Instruction| it.unit == unit && matches!(it.action, Action::Recompute(_));
    let norm = weights.buffers.iter().find(|it| is_buffer(&it.name));
    match norm.filter(|_| schedule.lists.iter().flatten().any(|it| again(&it))) {
        Some(norm) => refuse(format!(
            "unit {unit} has the batch norm of {}, which would count its batch twice: do not recompute this unit",
            norm.name
        )),
        None => Ok(()),
    }
}
// ANCHOR_END: begin
