//! Machines on paper: links and devices with assumed speeds.
//!
//! Nothing here was measured. The numbers are round, and each has its source. A reader can change every number, and see
//! which number matters, and when.

use crate::all_reduce::Way;
use crate::compute::Line;
use crate::hosts::Hosts;
use crate::link::Link;
use crate::model::{Bucket, Model};
use crate::step::Predicted;
use crate::training::{Sum, step};
use concise_wrapper::ddp::bucket::BucketCaps;

/// The largest number of devices.
pub const MOST: usize = 1024;

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// NVLink of eight H100: 370 GB/s, what nccl-tests' all-reduce reaches there; 5 µs
    Nvlink,
    /// PCIe 4.0 with 16 lanes: 25 of the standard's 32 GB/s; 10 µs
    Pcie,
    /// InfiniBand of 400 Gb/s: 50 GB/s; 5 µs
    Infiniband,
    /// Ethernet of 100 Gb/s: 12.5 GB/s; 20 µs
    #[value(name = "ethernet-100")]
    Ethernet100,
    /// Ethernet of 10 Gb/s: 1.25 GB/s; 50 µs
    #[value(name = "ethernet-10")]
    Ethernet10,
}

impl Wire {
    /// The assumed link. The device adds messages so fast that the time of an addition does not count.
    pub fn link(self) -> Link {
        match self {
            Self::Nvlink => Link::new(5e-6, 370e9),
            Self::Pcie => Link::new(10e-6, 25e9),
            Self::Infiniband => Link::new(5e-6, 50e9),
            Self::Ethernet100 => Link::new(20e-6, 12.5e9),
            Self::Ethernet10 => Link::new(50e-6, 1.25e9),
        }
    }
}

/// A device that is not here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Floating point operations a second in these layers: a part of the peak on the data sheet.
    pub operations: f64,
    /// Bytes a second of its memory.
    pub memory: f64,
    /// Seconds of a step that do not depend on the batch: kernel launches, and the program around them.
    pub fixed: f64,
}

impl Default for Device {
    /// 20 TFLOP/s, 2 TB/s, 1 ms.
    fn default() -> Self {
        Self { operations: 20e12, memory: 2e12, fixed: 1e-3 }
    }
}

impl Device {
    /// The compute time of a step of a model on this device.
    ///
    /// A backward pass has twice the operations of a forward pass: one product for the gradient of the input, and one for
    /// the gradient of the weights. An update reads weights and gradients, and writes weights.
    pub fn line(&self, model: &Model) -> Line {
        Line {
            fixed: self.fixed,
            sample: 3.0 * model.operations() / self.operations,
            forward: 1.0 / 3.0,
            update: 3.0 * model.bytes() as f64 / self.memory,
        }
    }
}

/// How many samples each device has, on any number of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// A batch that the devices share (*strong* scaling).
    Shared(usize),
    /// The same number for each device, on any number of devices (*weak* scaling).
    Each(usize),
}

impl Batch {
    /// The samples of the device with the largest share, for which all devices wait. `None` if a device has no sample.
    pub fn most(self, devices: usize) -> Option<usize> {
        match self {
            Self::Each(samples) => Some(samples),
            Self::Shared(samples) => (samples >= devices).then(|| samples.div_ceil(devices)),
        }
    }

    /// Samples of all devices together.
    pub fn of_all(self, devices: usize) -> f64 {
        match self {
            Self::Each(samples) => samples as f64 * devices as f64,
            Self::Shared(samples) => samples as f64,
        }
    }
}

/// Training a model on machines of one kind.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The compute time of a device.
    pub line: Line,
    /// The buckets of its gradients.
    pub buckets: Vec<Bucket>,
    /// The hosts and the links between devices.
    pub hosts: Hosts,
    /// How the batch grows.
    pub batch: Batch,
}

impl Scenario {
    /// A model on devices and links that are not here.
    pub fn new(model: &Model, device: &Device, hosts: Hosts, batch: Batch) -> Self {
        let buckets = model.buckets(BucketCaps::default(), &model.backward_by_operations());
        Self { line: device.line(model), buckets, hosts, batch }
    }

    /// A step on so many devices; `None` where the batch has not a sample for each.
    pub fn step(&self, devices: usize, sum: Sum) -> Option<Predicted> {
        let samples = self.batch.most(devices)?;
        Some(step(&self.line, &self.buckets, &self.hosts, devices, samples as f64, sum))
    }

    /// How many times one device's samples a second so many devices have.
    pub fn speed_up(&self, devices: usize, sum: Sum) -> Option<f64> {
        let rate = |devices: usize| {
            let seconds = self.step(devices, sum)?.seconds;
            Some(self.batch.of_all(devices) / seconds)
        };
        Some(rate(devices)? / rate(1)?)
    }

    /// The number of devices, of [`counts`], with which a step of this way has the most samples a second.
    pub fn best(&self, most: usize, sum: Sum) -> usize {
        let rates =
            counts(most).filter_map(|devices| Some((devices, self.speed_up(devices, sum)?)));
        rates.fold((1, 1.0), |best, it| if it.1 > best.1 { it } else { best }).0
    }
}

/// The numbers of devices to compare: 1, 2, 4 … up to `most`.
pub fn counts(most: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&devices| devices <= most)
}

/// All ways for many devices, with overlap.
pub fn sums() -> [Sum; 4] {
    Way::FOR_MANY.map(|way| Sum { way, overlap: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(batch: Batch, wire: Wire) -> Scenario {
        let hosts = Hosts { each: 8, inside: Wire::Nvlink.link(), between: wire.link() };
        Scenario::new(&Model::lenet().unwrap(), &Device::default(), hosts, batch)
    }

    #[test]
    fn a_device_is_as_fast_as_its_operations_and_its_memory() {
        let model = Model::lenet().unwrap();
        let device = Device { operations: 1e9, memory: 1e8, fixed: 0.25 };
        let compute = device.line(&model).of(100.0);
        let forward = 100.0 * model.operations() / 1e9;
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} is not {b}");
        close(compute.forward + compute.backward, 0.25 + 3.0 * forward);
        close(compute.backward, 2.0 * compute.forward);
        // Weights and gradients are read, weights are written.
        close(compute.update, 3.0 * 4.0 * 129_068.0 / 1e8);
    }

    #[test]
    fn a_batch_is_shared_or_grows() {
        assert_eq!(Batch::Shared(256).most(4), Some(64));
        assert_eq!(Batch::Shared(256).most(512), None);
        assert_eq!(Batch::Each(256).most(512), Some(256));
        // All devices wait for the device with one sample more, and the batch does not grow.
        assert_eq!(Batch::Shared(257).most(256), Some(2));
        assert_eq!(
            [Batch::Shared(257), Batch::Each(257)].map(|of| of.of_all(256)),
            [257.0, 65792.0]
        );
    }

    #[test]
    fn one_device_is_as_fast_as_itself_and_k_at_most_k_times() {
        for batch in [Batch::Shared(4096), Batch::Each(256)] {
            let scenario = scenario(batch, Wire::Ethernet100);
            for sum in sums() {
                assert_eq!(scenario.speed_up(1, sum), Some(1.0));
                for devices in [2, 8, 64, 1024] {
                    let speed_up = scenario.speed_up(devices, sum).unwrap();
                    assert!(speed_up < devices as f64, "{speed_up} on {devices}: {sum:?}");
                }
            }
        }
    }

    #[test]
    fn lenets_batch_of_256_has_a_best_number_of_devices() {
        let ring = Sum { way: Way::Ring, overlap: true };
        let shared = scenario(Batch::Shared(256), Wire::Ethernet10);
        let best = shared.best(256, ring);
        assert!(best < 256, "{best}");
        assert!(shared.speed_up(256, ring) < shared.speed_up(best, ring));
    }
}
