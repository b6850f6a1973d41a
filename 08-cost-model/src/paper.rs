//! Machines that are not here: devices and links with assumed speeds, and layers whose costs are counted.
//!
//! Nothing here was measured. The numbers are round, and each has its source. A reader can change them, and see which
//! number matters, and when.

use std::fmt;

use model_parallel::Cost;
use model_parallel::gpt::Gpt;
use model_parallel::layers::Layers;

use crate::all_reduce::two_levels;
use crate::link::{Hosts, Link};
use crate::plan::{Plan, Predicted};

// ANCHOR: machine
/// The usual model on paper, of 6.7 thousand million parameters.
pub const LARGE: Gpt =
    Gpt { vocabulary: 32_000, context: 2048, width: 4096, heads: 32, blocks: 32 };
/// The samples of a step on paper.
pub const BATCH: usize = 1024;

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

/// The owner of a network port to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ports {
    /// Each device its own
    Gpu,
    /// The devices of a host share one
    Host,
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
    /// Seconds in which the kernels of a layer's pass are launched. A pass takes at least so long.
    pub fixed: f64,
    /// The links.
    pub hosts: Hosts,
    /// The owner of a network port to other hosts.
    pub ports: Ports,
}

/// The part of the peak that a large model reaches: Megatron-LM reports 0.44 to 0.52 (arXiv 2104.04473, table 1), with the
/// communication of its steps, and with the operations of recomputed passes. A device alone may reach more.
const REACHED: f64 = 0.45;

impl Kind {
    /// The assumed numbers. Peaks are for products in bf16 without sparsity, by NVIDIA's data sheets. The links in a
    /// host are what nccl-tests' all-reduce reaches there: about four fifths of one direction of NVLink, and less over PCIe,
    /// where data pass the host's memory.
    pub fn machine(self, ports: Ports) -> Machine {
        let (bytes, peak, memory, each, inside, between) = match self {
            Self::H100 => (80e9, 989e12, 3.35e12, 8, Link::new(5e-6, 370e9), Link::new(5e-6, 50e9)),
            Self::A100 => (80e9, 312e12, 2.0e12, 8, Link::new(5e-6, 235e9), Link::new(5e-6, 25e9)),
            Self::Rtx4090 => {
                (24e9, 165e12, 1.0e12, 4, Link::new(10e-6, 20e9), Link::new(20e-6, 12.5e9))
            }
        };
        // A port that the devices of a host share is as many times slower for each.
        let share = if ports == Ports::Host { each as f64 } else { 1.0 };
        let between = Link { wire: between.wire * share, ..between };
        let hosts = Hosts { each, inside, between };
        Machine { bytes, operations: REACHED * peak, memory, fixed: 50e-6, hosts, ports }
    }
}

impl fmt::Display for Machine {
    /// Every assumed number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hosts { each, inside, between } = self.hosts;
        let link =
            |it: Link| format!("{:.1} GB/s and {:.0} µs", it.bandwidth() / 1e9, 1e6 * it.latency);
        let [inside, between] = [inside, between].map(link);
        let port = ["device", "host"][self.ports as usize];
        let [bytes, operations] = [self.bytes / 1e9, self.operations / 1e12];
        let [part, memory, fixed] = [100.0 * REACHED, self.memory / 1e12, 1e6 * self.fixed];
        write!(
            f,
            "a device has {bytes:.0} GB, reaches {operations:.0} TFLOP/s ({part:.0} % of its peak in bf16), reads and writes \
             {memory:.2} TB/s, and launches the kernels of a layer's pass in {fixed:.0} µs; a host has {each} devices; messages \
             have {inside} in a host, and {between} between hosts, with a network port for each {port}; sums take no time of \
             the devices (h = 0); a parameter has 2 bytes, its gradient 2, its optimizer's state 12 (copy and moments in f32), \
             a number of an activation 2"
        )
    }
}
// ANCHOR_END: machine

// ANCHOR: counted
/// Bytes of a parameter, of its gradient and of a number of an activation; and of its state in the optimizer.
const HALF: usize = 2;
const STATE: usize = 12;

impl Machine {
    /// The counted costs of the layers of a GPT with so many samples, on ranks that share each layer in `parts`.
    ///
    /// The activations are counted in tensors of T tokens · C features of a sample, as stage 6's layers keep them; a test
    /// compares. A forward pass makes two operations for each weight and token. A backward pass makes twice as many: a
    /// product for the gradient of the input, and one for the gradient of the weights. An update reads gradients and state,
    /// and writes state and weights.
    pub fn costs(&self, gpt: &Gpt, samples: usize, parts: usize) -> candle_core::Result<Vec<Cost>> {
        let (layers, Gpt { context, width, vocabulary, .. }) = (Layers::gpt(gpt)?, *gpt);
        let (last, size, logits) = (layers.len() - 1, context * width, context * vocabulary);
        let bytes = |numbers: usize| HALF * samples * numbers;
        let sum = two_levels(parts, bytes(size) as f64, &self.hosts).seconds;
        let cost = |layer: usize| {
            // Tensors: whole on one device, whole on each of several ranks, and shared. The sums of both passes. Each query
            // of attention meets half of the keys, and then half of the values.
            let ([alone, whole, shared], sums, scores) = match layer {
                0 => ([2, 2, 0], [1.0, 0.0], 0),
                _ if layer == last => ([3, 4, 0], [0.0, 1.0], 0),
                _ if layer % 2 == 1 => ([4, 6, 4], [1.0; 2], 2 * context * size),
                _ => ([4, 6, 8], [1.0; 2], 0),
            };
            let (mut parameters, mut operations) = (0, scores);
            for it in layers.parameters(layer..layer + 1)? {
                parameters += it.elements().div_ceil(if it.cut.is_some() { parts } else { 1 });
                // An embedding multiplies nothing.
                let multiplies = layer > 0 && it.shape.len() == 2;
                operations += if multiplies { 2 * context * it.elements() } else { 0 };
            }
            let forward = (samples * operations) as f64 / (self.operations * parts as f64);
            let of_last = if layer == last { logits } else { 0 };
            let kept = if parts > 1 { whole } else { alone } * size;
            Ok(Cost {
                forward: self.fixed.max(forward) + sums[0] * sum,
                backward: self.fixed.max(2.0 * forward) + sums[1] * sum,
                update: (parameters * (2 * HALF + 2 * STATE)) as f64 / self.memory,
                parameters: HALF * parameters,
                optimizer: STATE * parameters,
                activations: bytes(kept + (shared * size + of_last).div_ceil(parts)),
                // A token has four bytes.
                input: bytes(if layer == 0 { 2 * context } else { size }),
                output: bytes(if layer == last { logits } else { size }),
                ..Cost::default()
            })
        };
        (0..layers.len()).map(cost).collect()
    }

    /// Predicts a step of a plan for a GPT. Fails when there is no such schedule.
    pub fn predict(&self, gpt: &Gpt, plan: &Plan, batch: usize) -> anyhow::Result<Predicted> {
        let costs = self.costs(gpt, plan.rows(batch), plan.mesh.tensor)?;
        plan.predict(&costs, &self.hosts)
    }
}
// ANCHOR_END: counted

#[cfg(test)]
mod tests {
    use devices::DevicePlan;

    use super::*;
    use crate::compute::measure;

    const SIZES: Gpt = Gpt { vocabulary: 48, context: 8, width: 32, heads: 2, blocks: 2 };

    /// On one device and on each of two: kept numbers, parameters, inputs and outputs.
    #[test]
    fn what_is_counted_is_what_is_held() {
        let layers = Layers::gpt(&SIZES).unwrap();
        for parts in [1, 2] {
            let plan = DevicePlan::slices(parts).unwrap();
            let lines = measure(&plan, (&layers, &[8]), [2, 4], (parts > 1, None)).unwrap();
            // In f32, every number has twice the bytes, and the optimizer two thirds.
            let counted = Kind::H100.machine(Ports::Gpu).costs(&SIZES, 3, parts).unwrap();
            for (layer, (a, b)) in counted.iter().zip(lines.at(3)).enumerate() {
                let what = format!("layer {layer} in {parts} parts");
                // The optimizer counts the steps of each tensor, in addition to the moments.
                let counts = b.optimizer - 2 * a.optimizer / 3;
                assert!(2 * a.parameters == b.parameters && counts <= 8 * 9, "{what}: {counts}");
                // Positions, which are the same for all samples, and tokens, of four bytes, are not counted.
                let (positions, tokens) = if layer == 0 { (4 * 8 * 32, 4 * 3 * 8) } else { (0, 0) };
                let measured = (b.activations - positions - tokens, b.input + tokens);
                assert_eq!((2 * a.activations, 2 * a.input), measured, "{what}");
            }
        }
    }

    #[test]
    fn a_device_is_as_fast_as_its_operations_its_memory_and_its_links() {
        let machine =
            Machine { operations: 1e9, memory: 1e8, fixed: 1e-5, ..Kind::A100.machine(Ports::Gpu) };
        let [one, two] = [1, 2].map(|parts| machine.costs(&SIZES, 5, parts).unwrap());
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-12 * b, "{a} is not {b}");
        // Five samples of eight tokens. A forward pass of an MLP multiplies with two matrices of 32 · 128 numbers.
        let mlp = (2 * 2 * 32 * 128 * 8 * 5) as f64 / 1e9;
        close(one[2].forward, mlp);
        close(one[2].backward, 2.0 * mlp);
        // Attention has four matrices of 32 · 32, and the scores of 8 queries, at half of 8 keys and values.
        close(one[1].forward, ((2 * 4 * 32 * 32 * 8 + 2 * 8 * 8 * 32) * 5) as f64 / 1e9);
        // The launches of kernels that compute nothing.
        assert_eq!(one[0].forward, 1e-5);
        // Tensor parallelism adds a sum of the result to each pass. The embedding's backward pass has none.
        let sum = two_levels(2, (2 * 5 * 8 * 32) as f64, &machine.hosts).seconds;
        close(two[2].forward, mlp / 2.0 + sum);
        close(two[2].backward, mlp + sum);
        assert_eq!((two[0].forward, two[0].backward), (1e-5 + sum, 1e-5));
        // Two matrices and a bias are shared. A bias and the norm's two rows are whole. An update moves 28 bytes.
        let (shared, whole) = (2 * 32 * 128 + 128, 3 * 32);
        assert_eq!(
            (one[2].parameters, two[2].parameters),
            (2 * (shared + whole), shared + 2 * whole)
        );
        assert_eq!(two[2].optimizer, 12 * (shared / 2 + whole));
        close(one[2].update, 28.0 * (shared + whole) as f64 / 1e8);
    }
    #[test]
    fn devices_of_a_host_share_its_port() {
        for (kind, each) in [(Kind::H100, 8.0), (Kind::Rtx4090, 4.0)] {
            let [own, shared] = [Ports::Gpu, Ports::Host].map(|ports| kind.machine(ports).hosts);
            assert_eq!(own.between.bandwidth(), each * shared.between.bandwidth());
            assert_eq!((own.inside, own.between.latency), (shared.inside, shared.between.latency));
        }
    }
}
