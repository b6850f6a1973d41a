//! More devices than cores compute no faster, and a ring of k devices has 2 (k − 1) messages in a row, each with a k-th of the
//! bytes.

use cost_model::link::Link;

pub fn predict(alone: f64, cores: usize, devices: usize, bytes: f64, link: &Link) -> f64 {
    let compute = alone / devices.min(cores) as f64;
    let messages = 2.0 * (devices as f64 - 1.0);
    compute + messages * (link.latency + bytes / devices as f64 * link.wire)
}

exercises::check!(ch08_predict, predict, run);
