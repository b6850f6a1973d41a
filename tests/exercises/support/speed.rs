//! How fast a device is, as measured.

/// The cost of a step on a device: seconds that do not depend on its shard, and seconds for each sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds that any shard costs: starting kernels, copying, waiting.
    pub fixed: f64,
    /// Seconds that each sample costs.
    pub per_sample: f64,
}

impl Speed {
    /// The seconds for a shard of `samples` samples. An empty shard takes no time.
    pub fn seconds(self, samples: usize) -> f64 {
        if samples == 0 { 0.0 } else { self.fixed + self.per_sample * samples as f64 }
    }
}

/// The seconds that a step takes with these shares: all devices wait for the slowest.
pub fn step_seconds(devices: &[Speed], shares: &[usize]) -> f64 {
    let seconds = devices.iter().zip(shares).map(|(device, &samples)| device.seconds(samples));
    seconds.fold(0.0, f64::max)
}
