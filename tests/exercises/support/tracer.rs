//! Samples that leave a trace in an update: an update shows which samples took part, and how much each counted.
//!
//! Sample i is black except for pixel i. No other sample changes the [`Classifier`]'s weights of that pixel, so these weights
//! depend on sample i alone.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use datasets::{Batch, CLASSES, PIXELS, SIDE};

use crate::classifier::Classifier;

/// These samples as a batch, in f64; sample i shows pixel i, and has the label i mod 10.
/// Fails when an image has fewer pixels than that.
pub fn batch(samples: Range<usize>) -> Result<Batch> {
    let size = samples.len();
    let images = Tensor::eye(PIXELS, DType::F64, &Device::Cpu)?.narrow(0, samples.start, size)?;
    let labels: Vec<u32> = samples.map(|sample| label(sample) as u32).collect();
    Ok(Batch {
        images: images.reshape((size, 1, SIDE, SIDE))?,
        labels: Tensor::from_vec(labels, size, &Device::Cpu)?,
    })
}

fn label(sample: usize) -> usize {
    sample % CLASSES
}

/// The factor with which the gradient of each of the first `samples` samples was subtracted from the weights.
///
/// `before` has the weights before the update, and `after` is a
/// [snapshot](model_state::parameters::Parameters::snapshot) after the update.
/// Fails when the weights are of another model.
pub fn counted(
    before: &Classifier,
    after: &[(String, Tensor)],
    samples: usize,
) -> Result<Vec<f64>> {
    let weights = &before.parameters().snapshot()?[0].1;
    let update = (weights - &after[0].1)?.to_vec2::<f64>()?;
    let gradient = before.gradients(&batch(0..samples)?)?.gradients[0].to_vec2::<f64>()?;
    // Among a sample's ten numbers, the number at its label is far from zero.
    let count = |sample: usize| update[sample][label(sample)] / gradient[sample][label(sample)];
    Ok((0..samples).map(count).collect())
}

/// The samples with a factor that is not zero, from the result of [`counted`].
pub fn taking_part(counted: &[f64]) -> Vec<usize> {
    let counts = |&sample: &usize| {
        // NaN counts.
        let nothing = counted[sample].abs() <= 1e-12;
        !nothing
    };
    (0..counted.len()).filter(counts).collect()
}

/// `samples 4 to 7`, or a list where there are gaps.
pub fn in_words(samples: &[usize]) -> String {
    match samples {
        [] => "no sample".to_owned(),
        [first, .., last] if last - first + 1 == samples.len() => {
            format!("samples {first} to {last}")
        }
        some => format!("samples {some:?}"),
    }
}

/// `2 times`, `1/3 of`, or `1.234 times` where it is no simple fraction. Nearly 1, as f32 would give, has all its digits.
pub fn multiple(times: f64) -> String {
    if (1e-12..1e-5).contains(&(times - 1.0).abs()) {
        return format!("{times:.12} times (was it computed in f32?)");
    }
    for divisor in 1..=20u32 {
        let numerator = times * f64::from(divisor);
        if (numerator - numerator.round()).abs() < 1e-6 && numerator > 0.5 {
            return match divisor {
                1 => format!("{numerator:.0} times"),
                _ => format!("{numerator:.0}/{divisor} of"),
            };
        }
    }
    format!("{times:.3} times")
}
