//! The learner's choice of units under stage 7's training in chunks.

use concise_wrapper::optimizer::{Momentum, Sgd};
use datasets::SAMPLE;
use model_parallel::Cost;
use model_parallel::layers::Layers;
use model_parallel::partition::{self, Setting};
use sharded_state::strategies::{passes, prefetched, recomputed, zero3};

use super::prelude::*;
use super::sharded::{UNITS, WIDTHS, compare, list_of};
pub use crate::checks::ch07_recompute::Answer;

/// Asks for the units of a measured model, and trains with these units, with none, and with all. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let (layers, device) = (Layers::dense(&WIDTHS)?, DevicePlan::slices(1)?.slots()[0].open()?);
    let (setting, mut sgd) =
        (Setting { sample: &SAMPLE, rows: 128, tries: 5, parts: 1 }, Sgd::new(Momentum::default()));
    let each = partition::each(layers.len());
    let tensors = device.tensors();
    let costs: Vec<Cost> = device
        .run(|| partition::measure(&layers, &each, setting, DType::F32, tensors, &mut sgd))?;
    let micros: Vec<u64> = costs.iter().map(|it| (1e6 * it.forward).round() as u64).collect();
    let activations: Vec<u64> = costs.iter().map(|it| it.activations as u64).collect();
    let inputs: Vec<u64> = costs.iter().map(|it| it.input as u64).collect();
    let budget = activations.iter().sum::<u64>() * 4 / 5;
    let units = answer(&micros, &activations, &inputs, budget);
    let megabytes = budget as f64 / 1e6;
    paragraph(format_args!(
        "Activations may take {megabytes:.1} MB. You recompute the units {}.\n",
        in_a_row(&units)
    ))?;
    let list = |units: &[usize]| {
        let passes = recomputed(passes(UNITS, 1), |unit| units.contains(&unit));
        list_of(&prefetched(zero3(passes)))
    };
    let yours = match list(&units) {
        Err(refusal) => return Ok(paragraph(refusal)?),
        Ok(yours) => yours,
    };
    let (none, all) = (list(&[])?, list(&(0..UNITS - 1).collect::<Vec<_>>())?);
    compare(&[("yours", &yours), ("all units", &all), ("no unit", &none)], None)
}
