//! Machines that are not here: devices and links with assumed speeds, and layers whose costs are counted.
//!
//! Nothing here was measured. The numbers are round, and each has its source. A reader can change them, and see which
//! number matters, and when.

use std::fmt;

use model_parallel::Cost;
use model_parallel::gpt::Gpt;
use model_parallel::layers::Layers;

use crate::all_reduce::Way;
use crate::link::{Hosts, Link, Ports};
use crate::plan::{Plan, Step};

/// The usual model on paper, of 6.7 thousand million parameters.
pub const LARGE: Gpt =
    Gpt { vocabulary: 32_000, context: 2048, width: 4096, heads: 32, blocks: 32 };
/// The samples of a step on paper.
pub const BATCH: usize = 1024;

// ANCHOR: machine
/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Eight H100 of 80 GB in a host, with NVLink; 400 Gb/s between hosts
    H100,
    /// Eight A100 of 80 GB in a host, with NVLink; 200 Gb/s between hosts
    A100,
    /// Four RTX 4090 of 24 GB in a host, with PCIe 4.0; 100 Gb/s between hosts
    Rtx4090,
}

/// A machine on paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes of a device's memory.
    pub bytes: f64,
    /// Floating point operations a second of a device: a part of the peak on the data sheet.
    pub operations: f64,
    /// Bytes a second of a device's memory.
    pub memory: f64,
    /// Seconds of each pass of a layer that do not depend on the samples: the launches of its kernels.
    pub fixed: f64,
    /// The links.
    pub hosts: Hosts,
}

/// The part of the peak that a large model reaches: Megatron-LM reports 0.44 to 0.52 (arXiv 2104.04473, table 1).
const REACHED: f64 = 0.45;

impl Kind {
    /// The assumed numbers. Peaks are those of products in bf16 without sparsity, by NVIDIA's data sheets. The links in a
    /// host are what nccl-tests' all-reduce reaches there, about four fifths of one direction.
    pub fn machine(self, ports: Ports) -> Machine {
        let (bytes, peak, memory, each, inside, between) = match self {
            Self::H100 => (80e9, 989e12, 3.35e12, 8, Link::new(5e-6, 370e9), Link::new(5e-6, 50e9)),
            Self::A100 => (80e9, 312e12, 2.0e12, 8, Link::new(5e-6, 235e9), Link::new(5e-6, 25e9)),
            Self::Rtx4090 => {
                (24e9, 165e12, 1.0e12, 4, Link::new(10e-6, 20e9), Link::new(20e-6, 12.5e9))
            }
        };
        let hosts = Hosts { each, inside, between, ports };
        Machine { bytes, operations: REACHED * peak, memory, fixed: 50e-6, hosts }
    }
}

impl fmt::Display for Machine {
    /// Every assumed number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, operations, memory, fixed, hosts } = self;
        let link =
            |it: Link| format!("{:.1} GB/s and {:.0} µs", it.bandwidth() / 1e9, 1e6 * it.latency);
        let port = if hosts.ports == Ports::Gpu { "each device" } else { "each host" };
        write!(
            f,
            "a device has {:.0} GB, reaches {:.0} TFLOP/s ({:.0} % of its peak in bf16), reads and writes {:.2} TB/s, and needs \
             {:.0} µs more for each pass of a layer; a host has {} devices, with {} between them; {port} has a port of {} to \
             other hosts; a parameter has 2 bytes, its gradient 2, its optimizer's state 12 (copy and moments in f32), a number \
             of an activation 2",
            bytes / 1e9,
            operations / 1e12,
            100.0 * REACHED,
            memory / 1e12,
            1e6 * fixed,
            hosts.each,
            link(hosts.inside),
            link(hosts.between)
        )
    }
}
// ANCHOR_END: machine

// ANCHOR: counted
/// Bytes of a parameter, of its gradient and of a number of an activation; and of its state in the optimizer.
const HALF: usize = 2;
const STATE: usize = 12;

/// A layer of a GPT, counted for one sample.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Parameters: those that every rank of tensor parallelism has whole, and those that the ranks share.
    pub parameters: [usize; 2],
    /// Operations of a forward pass: two for each multiplication.
    pub operations: f64,
    /// Numbers that a forward pass keeps: whole on one device, whole on each of several ranks, and shared.
    pub kept: [usize; 3],
    /// Numbers of the input, of the output, and of a sum over the ranks.
    pub io: [usize; 3],
    /// Sums over the ranks in a forward pass, and in a backward pass.
    pub sums: [f64; 2],
}

/// Counts the layers of a GPT: T tokens of a sample, C features of a token. What a pass keeps is counted in tensors of
/// T · C numbers, as stage 6's layers keep them; a test compares.
pub fn gpt(gpt: &Gpt) -> candle_core::Result<Vec<Counted>> {
    let (layers, Gpt { context, width, vocabulary, .. }) = (Layers::gpt(gpt)?, *gpt);
    let (last, size, logits) = (layers.len() - 1, context * width, context * vocabulary);
    let counted = |index: usize| {
        let (kept, sums, scores) = match index {
            0 => ([2, 2, 0], [1.0, 0.0], 0),
            _ if index == last => ([3, 4, 0], [0.0, 1.0], 0),
            // Attention. Each query meets half of the keys, and then half of the values.
            _ if index % 2 == 1 => ([4, 6, 4], [1.0; 2], 2 * context * size),
            _ => ([4, 6, 8], [1.0; 2], 0),
        };
        let (mut parameters, mut operations) = ([0; 2], scores as f64);
        for it in layers.parameters(index..index + 1)? {
            parameters[usize::from(it.cut.is_some())] += it.elements();
            // An embedding multiplies nothing.
            let multiplies = index > 0 && it.shape.len() == 2;
            operations += if multiplies { 2.0 * (context * it.elements()) as f64 } else { 0.0 };
        }
        let [input, output] = [
            if index == 0 { 2 * context } else { size },
            if index == last { logits } else { size },
        ];
        let mut kept = kept.map(|tensors| tensors * size);
        kept[2] += if index == last { logits } else { 0 };
        Ok(Counted { parameters, operations, kept, io: [input, output, size], sums })
    };
    (0..layers.len()).map(counted).collect()
}

impl Machine {
    /// The costs of counted layers with so many samples, on ranks that share each layer in `parts`.
    ///
    /// A backward pass has twice the operations of a forward pass: one product for the gradient of the input, and one for
    /// the gradient of the weights. An update reads gradients and state, and writes state and weights.
    pub fn costs(&self, layers: &[Counted], samples: usize, parts: usize) -> Vec<Cost> {
        let cost = |layer: &Counted| {
            let forward = layer.operations * samples as f64 / (self.operations * parts as f64);
            let [input, output, summed] = layer.io.map(|numbers| HALF * samples * numbers);
            let sum = Way::TwoLevels.cost(parts, summed as f64, &self.hosts).seconds;
            let parameters = layer.parameters[0] + layer.parameters[1].div_ceil(parts);
            let kept = layer.kept[usize::from(parts > 1)] + layer.kept[2].div_ceil(parts);
            Cost {
                forward: self.fixed + forward + layer.sums[0] * sum,
                backward: self.fixed + 2.0 * forward + layer.sums[1] * sum,
                update: (parameters * (2 * HALF + 2 * STATE)) as f64 / self.memory,
                parameters: HALF * parameters,
                optimizer: STATE * parameters,
                activations: HALF * samples * kept,
                input,
                output,
                ..Cost::default()
            }
        };
        layers.iter().map(cost).collect()
    }

    /// Predicts a step of a plan on so many samples. Gradients are summed in two levels, and a micro-batch has one sample.
    /// Fails when there is no such schedule.
    pub fn predict(&self, layers: &[Counted], plan: Plan, batch: usize) -> anyhow::Result<Step> {
        let plan = plan.with_micro_batches(batch, 1);
        let costs = self.costs(layers, plan.rows(batch), plan.mesh.tensor);
        Ok(plan.predict(&costs, Way::TwoLevels, &self.hosts)?.step)
    }
}
// ANCHOR_END: counted

#[cfg(test)]
mod tests {
    use devices::DevicePlan;

    use super::*;
    use crate::compute::measure;

    /// On one device and on each of two: kept numbers, parameters, inputs and outputs.
    #[test]
    fn what_is_counted_is_what_is_held() {
        let sizes = Gpt { vocabulary: 48, context: 8, width: 32, heads: 2, blocks: 2 };
        let layers = Layers::gpt(&sizes).unwrap();
        let counted = gpt(&sizes).unwrap();
        for parts in [1, 2] {
            let plan = DevicePlan::slices(parts).unwrap();
            let lines = measure(&plan, (&layers, &[8]), [2, 4], (parts > 1, None)).unwrap();
            // In f32, every number has twice the bytes, and the optimizer two thirds.
            let machine = Kind::H100.machine(Ports::Gpu);
            for (layer, (a, b)) in
                machine.costs(&counted, 3, parts).iter().zip(lines.at(3)).enumerate()
            {
                let what = format!("layer {layer} in {parts} parts");
                // Besides the moments, the optimizer counts the steps of each tensor.
                let counts = b.optimizer - 2 * a.optimizer / 3;
                assert!(2 * a.parameters == b.parameters && counts <= 8 * 9, "{what}: {counts}");
                // Positions, which are the same for all samples, and tokens, of four bytes, are not counted.
                let (positions, tokens) = if layer == 0 { (4 * 8 * 32, 4 * 3 * 8) } else { (0, 0) };
                let measured = (b.activations - positions - tokens, b.input + tokens);
                assert_eq!((2 * a.activations, 2 * a.input), measured, "{what}");
            }
        }
        // A forward pass multiplies with each weight for each token; and the scores of 8 queries, at 8 keys and values.
        let products =
            |layer: usize| (counted[layer].parameters[1] - [0, 64, 128, 0][layer]) * 2 * 8;
        assert_eq!(counted[1].operations, (products(1) + 2 * 8 * 8 * 32) as f64);
        assert_eq!(counted[2].operations, products(2) as f64);
        assert_eq!(counted[0].operations, 0.0);
    }

    #[test]
    fn a_device_is_as_fast_as_its_operations_its_memory_and_its_links() {
        let machine =
            Machine { operations: 1e9, memory: 1e8, fixed: 0.25, ..Kind::A100.machine(Ports::Gpu) };
        let layer = Counted {
            parameters: [10, 40],
            operations: 1e8,
            kept: [1; 3],
            io: [4; 3],
            sums: [1.0, 0.0],
        };
        let [one, two] = [1, 2].map(|parts| machine.costs(&[layer], 5, parts)[0]);
        assert_eq!((one.forward, one.backward), (0.25 + 0.5, 0.25 + 1.0));
        // Gradients and state are read, state and weights are written.
        assert_eq!(one.update, 50.0 * 28.0 / 1e8);
        let sum = Way::TwoLevels.cost(2, 40.0, &machine.hosts).seconds;
        assert_eq!((two.forward, two.backward), (0.25 + 0.25 + sum, 0.25 + 0.5));
        assert_eq!((one.parameters, two.parameters, two.optimizer), (100, 60, 360));
    }
}
