//! Plans: strategies on a mesh of devices, and the prediction of a step, in seconds and bytes from the same list.

use std::fmt;
use std::ops::Range;

use model_parallel::instructions::Action::{Backward, Forward};
use model_parallel::instructions::Instruction;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{cut, each};
use model_parallel::{Bytes, Checked, Cost, Kind, Schedule, UNBOUNDED, check};
use serde::{Deserialize, Serialize};
use sharded_state::Sharing::{self, Ddp, Zero1, Zero2, Zero3};
use sharded_state::Strategy;

use crate::all_reduce::two_levels;
use crate::link::Hosts;

// ANCHOR: plan
/// A strategy, the mesh of devices that it runs on, and the micro-batches of each replica. A pipeline has the strategy
/// DDP: its replicas hold whole stages.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Plan {
    pub strategy: Strategy,
    pub mesh: Mesh,
    pub micro_batches: usize,
}

impl Plan {
    /// The plans for so many devices, in one host or in hosts of `each`. They are one device, and the strategies of stage 7.
    /// Inside a host, there is also a pipeline, and tensor parallelism if the layers allow it.
    pub fn all(devices: usize, each: usize, layers: &Layers) -> Vec<Self> {
        let [ddp, zero1, zero2, zero3] = [Ddp, Zero1, Zero2, Zero3].map(Sharing::plain);
        let prefetched = Strategy { prefetches: true, ..zero3 };
        let again = |strategy| Strategy { recomputes: Some(1), ..strategy };
        let (one, inside) = (Mesh::pipeline(1), devices.min(each));
        let replicas = |mesh, data| Mesh { data, ..mesh };
        let mut all = vec![(ddp, one), (again(ddp), one)];
        if devices > 1 {
            let sharded = [ddp, zero1, zero2, again(zero2), zero3, prefetched, again(prefetched)];
            all.extend(sharded.map(|strategy| (strategy, replicas(one, devices))));
        }
        // The ranks that exchange most are in one host.
        if inside > 1 {
            let [stages, cut] =
                [Mesh::pipeline, Mesh::tensor].map(|of| replicas(of(inside), devices / inside));
            let parts = layers.check_parts(inside).is_ok();
            all.extend((inside <= layers.len()).then_some((ddp, stages)));
            all.extend(parts.then_some((ddp, cut)));
            all.extend((parts && devices > inside).then_some((zero1, cut)));
        }
        let plan = |(strategy, mesh)| Self { strategy, mesh, micro_batches: 1 };
        all.into_iter().map(plan).collect()
    }

    /// The same plan with micro-batches of about so many samples.
    #[must_use]
    pub fn with_micro_batches(self, batch: usize, samples: usize) -> Self {
        Self { micro_batches: batch.div_ceil(self.mesh.data * samples).max(1), ..self }
    }

    /// The samples of a micro-batch.
    pub fn rows(&self, batch: usize) -> usize {
        batch.div_ceil(self.mesh.data * self.micro_batches)
    }

    /// The list of every stage, for a model of so many units.
    ///
    /// One micro-batch passes the whole model, forward and back, before the next one: its activations are free again.
    fn schedule(&self, units: usize) -> anyhow::Result<Schedule> {
        let Self { strategy, mesh, micro_batches } = *self;
        if mesh.pipeline > 1 {
            let pipeline = Kind::OneFOneB.schedule(mesh.pipeline, micro_batches)?;
            return Ok(pipeline.with_replicas(mesh.data));
        }
        let pass = |i| {
            let forward = (0..units).map(move |unit| Instruction { unit, action: Forward(i) });
            let back = (0..units).rev().map(move |unit| Instruction { unit, action: Backward(i) });
            forward.chain(back)
        };
        Ok(strategy.of_passes((0..micro_batches).flat_map(pass).collect(), mesh.data))
    }
}

impl fmt::Display for Plan {
    /// `ZeRO 3 + prefetch`, `1F1B 8 × DDP`, `tensor 8`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Mesh { data, pipeline, tensor }, strategy) = (self.mesh, self.strategy.to_string());
        let inner =
            if tensor > 1 { format!("tensor {tensor}") } else { format!("1F1B {pipeline}") };
        match (data, pipeline * tensor) {
            (1, 1) => f.write_str(&strategy.replace("DDP", "one device")),
            (_, 1) => f.write_str(&strategy),
            (1, _) => f.write_str(&inner),
            _ => write!(f, "{inner} × {strategy}"),
        }
    }
}
// ANCHOR_END: plan

// ANCHOR: predict
/// A step: its seconds, and the bytes of its fullest device, by kind and in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Step {
    pub seconds: f64,
    pub peak: Bytes,
    pub total: usize,
}

/// The predicted step of a plan, its checked lists, and the layers of each unit.
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Predicted {
    pub plan: Plan,
    pub checked: Checked,
    pub units: Vec<Range<usize>>,
    pub step: Step,
}

impl Plan {
    /// Predicts a step from the costs of all layers with [`rows`](Self::rows) samples, on this plan's parts of each layer.
    /// The stages and parts of a replica are in one host. Fails when there is no such schedule.
    pub fn predict(&self, layers: &[Cost], hosts: &Hosts) -> anyhow::Result<Predicted> {
        let Mesh { data, pipeline, tensor } = self.mesh;
        let units = match pipeline {
            1 => each(layers.len()),
            stages => cut(&layers.iter().map(Cost::total).collect::<Vec<_>>(), stages)?,
        };
        // Replicas are as far from each other as the stages and parts between them.
        let group = hosts.every(pipeline * tensor);
        // A chunk of the state is updated in a part of the time.
        let chunks = if self.strategy.sharing == Ddp { 1 } else { data } as f64;
        let costs = Cost::of_parts(layers, &units).into_iter().map(|cost| {
            let sum = two_levels(data, cost.parameters as f64, &group);
            let (all_reduce, handling) = (sum.seconds, sum.busy);
            Cost { all_reduce, handling, update: cost.update / chunks, ..cost }
        });
        let costs: Vec<Cost> = costs.collect();
        let longest = costs.iter().skip(1).map(|it| it.input).max().unwrap_or(0);
        let checked = check(self.schedule(units.len())?, UNBOUNDED)?;
        let timeline = checked.simulate(&costs, hosts.inside.message(longest as f64))?;
        let held = (0..timeline.stages).map(|of| timeline.held(of));
        let held = held.max_by_key(|held| held.total).unwrap_or_default();
        let step = Step { seconds: timeline.makespan(), peak: held.peak, total: held.total };
        Ok(Predicted { plan: *self, checked, units, step })
    }
}
// ANCHOR_END: predict

#[cfg(test)]
mod tests {
    use model_parallel::gpt::Gpt;

    use super::*;
    use crate::link::Link;

    const LINK: Link = Link { latency: 0.5, wire: 0.001, handling: 0.002 };

    /// The seconds of a plan of two layers.
    fn seconds(sharing: Sharing, mesh: Mesh) -> f64 {
        let layer = |forward, backward, update, parameters| Cost {
            forward,
            backward,
            update,
            parameters,
            input: 100,
            ..Cost::default()
        };
        let layers = [layer(1.0, 2.0, 0.25, 1000), layer(3.0, 4.0, 0.5, 2000)];
        let plan = Plan { strategy: sharing.plain(), mesh, micro_batches: 1 };
        plan.predict(&layers, &Hosts::one(LINK)).unwrap().step.seconds
    }

    #[test]
    fn a_step_is_what_one_computes_by_hand() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        let two = Mesh { data: 2, ..Mesh::pipeline(1) };
        close(seconds(Sharing::Ddp, Mesh::pipeline(1)), 10.75);
        // The second layer's sum takes from 8 to 15, and the device is busy with it for 4. Backward through the first layer
        // until 14, and its sum from 15 to 19.
        close(seconds(Sharing::Ddp, two), 19.25);
        // ZeRO 3 waits for gathers, too.
        assert!(seconds(Sharing::Zero3, two) > seconds(Sharing::Ddp, two));
        // Two messages of 0.8.
        close(seconds(Sharing::Ddp, Mesh::pipeline(2)), 10.0 + 1.6 + 0.25);
    }

    #[test]
    fn plans_have_names() {
        let gpt = |heads, blocks| {
            let sizes = Gpt { vocabulary: 16, context: 4, width: 16, heads, blocks };
            Layers::gpt(&sizes).unwrap()
        };
        let (ten, four) = (gpt(8, 4), gpt(2, 1));
        let names = |devices| {
            let plans = Plan::all(devices, 8, &ten);
            plans.iter().map(Plan::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(1), ["one device", "one device + recompute"]);
        assert_eq!(names(8)[9..], ["1F1B 8", "tensor 8"]);
        assert_eq!(names(16)[9..], ["1F1B 8 × DDP", "tensor 8 × DDP", "tensor 8 × ZeRO 1"]);
        // Fewer layers than stages, and heads that cannot be shared.
        assert_eq!(Plan::all(8, 8, &four).len(), 9);
    }
}
