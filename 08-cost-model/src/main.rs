//! Predicts a step under every strategy, runs it, and compares. With `--on-paper`, it only predicts.

mod arguments;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use arguments::Arguments;
use candle_core::DType;
use concise_wrapper::slow_link::Slowness;
use cost_model::all_reduce::Way;
use cost_model::compute::measure;
use cost_model::link::{self, Hosts};
use cost_model::paper::{Kind, gpt};
use cost_model::plan::Plan;
use cost_model::run::run;
use harness::cli::{self, UsageError};
use harness::load::Load;
use harness::report::{counted, line, paragraph, thousands};
use harness::{interrupt, launcher};
use model_parallel::layers::{Layers, ParameterSpec};
use report::{Row, report};
use trainer::memory::{Footprint, RunSize};

/// The least time of a message on the slow link, and the timed steps of each plan.
const LATENCY: Duration = Duration::from_micros(200);
const STEPS: usize = 15;

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(predict))
}

fn predict(flags: Arguments) -> Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let (batch, devices) = (flags.batch(), flags.devices.count);
    if batch < devices {
        let on = counted(devices, "device");
        let text =
            format!("--batch-size {batch} on {on}: take at least {devices}, a sample for each");
        return Err(UsageError::new(text).into());
    }
    match flags.on_paper {
        Some(kind) => on_paper(&flags, kind, batch),
        None => here(&flags, batch),
    }
}

fn headline(layers: &Layers, batch: usize, devices: usize) -> Result<()> {
    let parameters = layers.parameters(0..layers.len())?;
    let parameters = thousands(parameters.iter().map(ParameterSpec::elements).sum());
    let (batch, devices) = (thousands(batch), counted(devices, "device"));
    let name = layers.name();
    Ok(paragraph(format!("{name}: {parameters} parameters; {batch} samples a step; {devices}"))?)
}

// ANCHOR: paper
/// Predicts for machines on paper.
fn on_paper(flags: &Arguments, kind: Kind, batch: usize) -> Result<()> {
    let (devices, (layers, ..)) = (flags.devices.count, flags.network()?);
    let counted = gpt(&flags.sizes().context("a GPT")?)?;
    let (machine, metrics) = (kind.machine(flags.ports), cli::metrics(flags.metrics.as_deref())?);
    headline(&layers, batch, devices)?;
    paragraph(format!("assumed, not measured: {machine}"))?;
    let row = |plan: Plan| {
        let step = machine.predict(&counted, plan, batch)?;
        Ok(Row::new(layers.name(), &plan, step))
    };
    let has_parts = |parts| layers.check_parts(parts).is_ok();
    let plans = Plan::all(devices, machine.hosts.each, layers.len(), has_parts).into_iter();
    let rows = plans.map(row).collect::<Result<Vec<_>>>()?;
    report(&rows, Some(flags.fits.unwrap_or(machine.bytes)), None, metrics)
}
// ANCHOR_END: paper

// ANCHOR: here
/// Measures layers and the link of this machine, predicts, runs and compares. No layer is measured with the samples that
/// it has in a step.
fn here(flags: &Arguments, batch: usize) -> Result<()> {
    let (devices, several) = (flags.devices.count, flags.devices.plan()?);
    let one = flags.devices.each.plan_one_of(&several)?;
    let (layers, size, sample) = flags.network()?;
    let context = layers.takes_tokens().then(|| sample[0]);
    let footprint = Footprint { activations: 3, ..Footprint::new(size, &several) };
    let images = (2 * batch, 1);
    footprint.check(RunSize { batch_size: batch, images, context, dtype: DType::F32 })?;
    let metrics = cli::metrics(flags.metrics.as_deref())?;
    interrupt::watch()?;
    headline(&layers, batch, devices)?;
    several.note().map_or(Ok(()), |note| paragraph(format!("note: {note}")))?;
    let (model, load, share) = ((&layers, &sample[..]), Load::now(), batch.div_ceil(devices));
    let slow = flags.slow_link.map(|speed| Slowness::of_megabytes(speed, LATENCY));
    let around = |samples: usize, part: usize| [samples.div_ceil(part), 3 * samples / 2 + 1];
    let alone = measure(&one, model, around(batch, 2), (false, None))?;
    let together = measure(&several, model, around(share, 4), (false, None))?;
    let has_parts = devices > 1 && layers.check_parts(devices).is_ok();
    let of_parts = has_parts.then(|| measure(&several, model, around(batch, 2), (true, slow)));
    let of_parts = of_parts.transpose()?;
    let longest = alone.at(batch).iter().map(|cost| cost.parameters).max().unwrap_or(0);
    let hosts = Hosts::one(link::measure(&several, longest, slow)?);
    if devices > 1 {
        let (latency, speed) = (1e6 * hosts.inside.latency, hosts.inside.bandwidth() / 1e9);
        line(format!("link: a message takes {latency:.0} µs, and {speed:.2} GB/s"))?;
    }
    let mut rows = Vec::new();
    for plan in Plan::all(devices, devices, layers.len(), |_| has_parts) {
        let pieces = if plan.mesh.pipeline > 1 { 4 } else { 1 };
        let plan = plan.with_micro_batches(batch, batch.div_ceil(plan.mesh.data * pieces));
        let lines = match (plan.mesh.devices(), plan.mesh.tensor, &of_parts) {
            (1, ..) => &alone,
            (_, 2.., Some(of_parts)) => of_parts,
            _ => &together,
        };
        let predicted = plan.predict(&lines.at(plan.rows(batch)), Way::Ring, &hosts)?;
        let mut row = Row::new(layers.name(), &plan, predicted.step);
        if flags.run.unwrap_or(devices == 2) && !interrupt::requested() {
            let on = if plan.mesh.devices() == 1 { &one } else { &several };
            row.measured = Some(run(on, model, (&plan, &predicted), (batch, STEPS), slow)?);
        }
        rows.push(row);
    }
    let doubt = several.busy_since(&load).map(|note| format!("Note: {note}."));
    report(&rows, flags.fits, doubt.as_deref(), metrics)
}
// ANCHOR_END: here
