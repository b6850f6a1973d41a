//! Samples that leave a trace in an update: which of them it was made of, and how much each counted.
//!
//! Sample i is black but for pixel i. No other sample moves the [`Classifier`]'s weights of that pixel, so
//! they tell about sample i alone.

use candle_core::{DType, Device, Result, Tensor};
use single_gpu::data::{Batch, CLASSES, PIXELS, SIDE};

use crate::classifier::Classifier;

/// So many samples; sample i shows pixel i, and has the label i mod 10.
///
/// # Errors
///
/// When the tensors cannot be made: of more samples than pixels, for instance.
pub fn batch(samples: usize) -> Result<Batch> {
    let images = Tensor::eye(PIXELS, DType::F64, &Device::Cpu)?.narrow(0, 0, samples)?;
    let labels: Vec<u32> = (0..samples).map(|sample| label(sample) as u32).collect();
    Ok(Batch {
        images: images.reshape((samples, 1, SIDE, SIDE))?,
        labels: Tensor::from_vec(labels, samples, &Device::Cpu)?,
    })
}

/// By how much the gradient of each of so many samples was taken off the weights.
///
/// `model` has the weights from before the update, `after` is a
/// [snapshot](single_gpu::parameters::Parameters::snapshot) from after it.
///
/// # Errors
///
/// When the weights are of another model.
pub fn counted(model: &Classifier, after: &[(String, Tensor)], samples: usize) -> Result<Vec<f64>> {
    let before = &model.parameters().snapshot()?[0].1;
    let update = (before - &after[0].1)?.to_vec2::<f64>()?;
    let gradient = model.gradients(&batch(samples)?)?.gradients[0].to_vec2::<f64>()?;
    // Of a sample's ten numbers the one at its label is far from zero.
    Ok((0..samples)
        .map(|sample| update[sample][label(sample)] / gradient[sample][label(sample)])
        .collect())
}

/// `2 times`, `1/3 of`, or `1.234 times` where it is no simple fraction.
pub fn multiple(times: f64) -> String {
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

fn label(sample: usize) -> usize {
    sample % CLASSES
}

#[cfg(test)]
mod tests {
    use single_gpu::sgd::sgd;

    use super::*;

    #[test]
    fn an_update_tells_what_it_was_made_of() {
        let model = || Classifier::new(1, &Device::Cpu).unwrap();
        let (updated, all) = (model(), batch(12).unwrap());
        let cut = |tensor: &Tensor| tensor.narrow(0, 3, 5).unwrap();
        let some = Batch { images: cut(&all.images), labels: cut(&all.labels) };
        let gradients = updated.gradients(&some).unwrap().gradients;
        sgd(updated.parameters(), &gradients, 0.5, 10).unwrap();
        let found = counted(&model(), &updated.parameters().snapshot().unwrap(), 12).unwrap();
        for (sample, counted) in found.into_iter().enumerate() {
            let expected = if (3..8).contains(&sample) { 0.05 } else { 0.0 };
            assert!((counted - expected).abs() < 1e-12, "sample {sample}: {counted}");
        }
    }

    #[test]
    fn multiples_are_simple_fractions_where_they_can_be() {
        assert_eq!([2.0, 1.0 / 3.0, 1.75].map(multiple), ["2 times", "1/3 of", "7/4 of"]);
        assert_eq!([0.1234, -2.0].map(multiple), ["0.123 times", "-2.000 times"]);
    }
}
