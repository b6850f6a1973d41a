//! Predicts a step under every strategy, runs it, and compares. With `--on-paper`, it only predicts.

mod arguments;
mod report;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use arguments::Arguments;
use candle_core::DType;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use cost_model::compute::{Model, measure, run};
use cost_model::link::{self, Hosts};
use cost_model::paper::Kind;
use cost_model::plan::Plan;
use harness::cli::{self, UsageError};
use harness::load::Load;
use harness::report::{counted, paragraph, thousands};
use harness::{interrupt, launcher};
use model_parallel::layers::Layers;
use params_and_allreduce::thread::DEFAULT_TIMEOUT;
use report::{Row, report};
use trainer::memory::{Footprint, NetworkSize, RunSize};

/// The least time of a message on the slow link, the runs of each plan, and the timed steps of a run.
const LATENCY: Duration = Duration::from_micros(200);
const RUNS: usize = 3;
const STEPS: usize = 15;
/// The most passes of micro-batches through layers in a simulation, which then takes seconds.
const MOST: usize = 200_000;

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(|flags| predict(&flags)))
}

// ANCHOR: here
fn predict(flags: &Arguments) -> Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let (batch, devices) = (flags.batch(), flags.devices.count);
    let on = counted(devices, "device");
    if batch < devices {
        let text =
            format!("--batch-size {batch} on {on}: take at least {devices}, a sample for each");
        return Err(UsageError::new(text).into());
    }
    let (layers, size, sample) = flags.network()?;
    let [parameters, samples] = [size.parameters, batch].map(thousands);
    let name = layers.name();
    let headline = format!("{name}: {parameters} parameters; {samples} samples a step; {on}");
    match flags.on_paper {
        Some(kind) => on_paper(flags, kind, &layers, &headline),
        None => here(flags, (&layers, &sample), size, &headline),
    }
}

/// Measures the link of this machine. For each plan, measures the layers with other numbers of samples than its own,
/// predicts its step, runs it, and compares.
fn here(flags: &Arguments, model: Model<'_>, size: NetworkSize, headline: &str) -> Result<()> {
    let ((layers, sample), devices) = (model, flags.devices.count);
    let (batch, several) = (flags.batch(), flags.devices.plan()?);
    let one = flags.devices.each.plan_one_of(&several)?;
    let context = layers.takes_tokens().then(|| sample[0]);
    let (dtype, of_layer) = (DType::F32, 4 * size.parameters / layers.len());
    let footprint = Footprint { activations: 3, ..Footprint::new(size, &several) };
    footprint.check(RunSize { batch_size: batch, images: (2 * batch, 1), context, dtype })?;
    let metrics = cli::metrics(flags.metrics.as_deref())?;
    interrupt::watch()?;
    paragraph(headline)?;
    several.note().map_or(Ok(()), |note| paragraph(format!("note: {note}")))?;
    note_parts(layers, devices)?;
    let load = Load::now();
    let slow = flags.slow_link.map(|speed| Slowness::of_megabytes(speed, LATENCY));
    let slow = slow.map(|slow| SlowNetwork::new(slow, DEFAULT_TIMEOUT));
    let slow = slow.as_ref();
    let hosts = Hosts::one(link::measure(&several, of_layer, slow)?);
    if devices > 1 {
        let (latency, speed) = (1e6 * hosts.inside.latency, hosts.inside.bandwidth() / 1e9);
        paragraph(format!("link: a message takes {latency:.0} µs, and {speed:.2} GB/s"))?;
    }
    let mut rows = Vec::new();
    for plan in Plan::all(devices, devices, layers) {
        let pieces = if plan.mesh.pipeline > 1 { 4 } else { 1 };
        let usual = batch.div_ceil(plan.mesh.data * pieces);
        let plan = plan.with_micro_batches(batch, flags.micro_batch.unwrap_or(usual));
        let on = if plan.mesh.devices() == 1 { &one } else { &several };
        let (samples, parts) = (plan.rows(batch), plan.mesh.tensor > 1);
        let around = [samples.div_ceil(2), 3 * samples / 2 + 1];
        let lines = measure(on, model, around, (parts, slow))?;
        let predicted = plan.predict(&lines.at(samples), &hosts)?;
        let mut row = Row::new(layers.name(), &plan, predicted.step);
        if flags.run.unwrap_or(devices == 2) {
            // Another program can make a run slower, and never faster.
            let runs = (0..RUNS).map(|_| run(on, model, &predicted, (batch, STEPS), slow));
            let runs = runs.collect::<Result<Vec<_>, _>>()?.into_iter();
            row.measured = runs.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        }
        rows.push(row);
        if interrupt::requested() {
            break;
        }
    }
    let doubt = several.busy_since(&load).map(|note| format!("Note: {note}."));
    report(&rows, flags.fits, doubt.as_deref(), metrics)
}
// ANCHOR_END: here

/// Says why there is no tensor parallelism, if layers cannot be cut into so many parts.
fn note_parts(layers: &Layers, parts: usize) -> io::Result<()> {
    match layers.check_parts(parts) {
        Err(error) if parts > 1 => paragraph(format!("note: no plan for tensor {parts}: {error}")),
        _ => Ok(()),
    }
}

// ANCHOR: paper
/// Predicts for machines on paper.
fn on_paper(flags: &Arguments, kind: Kind, layers: &Layers, headline: &str) -> Result<()> {
    let (batch, gpt) = (flags.batch(), flags.sizes().context("a GPT")?);
    let (machine, devices) = (kind.machine(flags.ports), flags.devices.count);
    let (each, samples) = (machine.hosts.each, flags.micro_batch.unwrap_or(1));
    // One device has the most micro-batches.
    let passes = batch.div_ceil(samples) * layers.len();
    if passes > MOST {
        let [passes, most] = [passes, MOST].map(thousands);
        let text = format!(
            "--batch-size {batch}: on one device, micro-batches pass layers {passes} times, and the \
             simulator takes at most {most}: take a larger --micro-batch"
        );
        return Err(UsageError::new(text).into());
    }
    if devices > each && !devices.is_multiple_of(each) {
        let text = format!("--devices {devices}: a host has {each}, so take a multiple of {each}");
        return Err(UsageError::new(text).into());
    }
    let metrics = cli::metrics(flags.metrics.as_deref())?;
    paragraph(headline)?;
    paragraph(format!("assumed, not measured: {machine}"))?;
    note_parts(layers, devices.min(each))?;
    let row = |plan: Plan| {
        let plan = plan.with_micro_batches(batch, samples);
        let step = machine.predict(&gpt, &plan, batch)?.step;
        Ok(Row::new(layers.name(), &plan, step))
    };
    let plans = Plan::all(devices, each, layers);
    let rows = plans.into_iter().map(row).collect::<Result<Vec<_>>>()?;
    report(&rows, flags.fits.or(Some(machine.bytes)), None, metrics)
}
// ANCHOR_END: paper
