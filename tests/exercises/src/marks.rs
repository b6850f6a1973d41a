//! Images that leave a mark: an update tells which of them it was made of, and how much each counted.
//!
//! Image i is black but for pixel i. In a [`Classifier`] only its gradient moves the weights of that pixel.

use candle_core::{DType, Device, Result, Tensor};
use single_gpu::data::{Batch, CLASSES, PIXELS, SIDE};

use crate::classifier::Classifier;

/// So many images with labels 0 to 9 in turn: `[samples, 1, 28, 28]` (f64) and `[samples]`.
///
/// # Errors
///
/// When there are more than an image has pixels.
pub fn images(samples: usize) -> Result<Batch> {
    let images = Tensor::eye(PIXELS, DType::F64, &Device::Cpu)?.narrow(0, 0, samples)?;
    let labels: Vec<u32> = (0..samples).map(|sample| label(sample) as u32).collect();
    Ok(Batch {
        images: images.reshape((samples, 1, SIDE, SIDE))?,
        labels: Tensor::from_vec(labels, samples, &Device::Cpu)?,
    })
}

fn label(sample: usize) -> usize {
    sample % CLASSES
}

/// By how much the gradient of each of so many [`images`] went into an update, from the model before it and
/// the values of its parameters afterwards.
///
/// # Errors
///
/// When the weights are not those of a [`Classifier`].
pub fn counted(
    before: &Classifier,
    after: &[(String, Tensor)],
    samples: usize,
) -> Result<Vec<f64>> {
    let weights = &before.parameters().snapshot()?[0].1;
    let update = (weights - &after[0].1)?.to_vec2::<f64>()?;
    let gradient = before.gradients(&images(samples)?)?.gradients[0].to_vec2::<f64>()?;
    // Of an image's ten numbers the one at its label is far from zero.
    let count = |sample: usize| update[sample][label(sample)] / gradient[sample][label(sample)];
    Ok((0..samples).map(count).collect())
}

/// The samples that count, of what [`counted`] returns.
pub fn taking_part(counted: &[f64]) -> Vec<usize> {
    let counts = |&sample: &usize| {
        // Written so that NaN counts.
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

/// A number without the digits that are rounding.
pub fn short(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
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

#[cfg(test)]
mod tests {
    use single_gpu::sgd::sgd;

    use super::*;

    #[test]
    fn an_update_tells_what_it_was_made_of() {
        let before = Classifier::new(1, &Device::Cpu).unwrap();
        let model = Classifier::new(1, &Device::Cpu).unwrap();
        let all = images(12).unwrap();
        let cut = |tensor: &Tensor| tensor.narrow(0, 3, 5).unwrap();
        let some = Batch { images: cut(&all.images), labels: cut(&all.labels) };
        sgd(model.parameters(), &model.gradients(&some).unwrap().gradients, 0.5, 10).unwrap();
        let after = model.parameters().snapshot().unwrap();
        let counted = counted(&before, &after, 12).unwrap();
        assert_eq!(taking_part(&counted), [3, 4, 5, 6, 7]);
        assert_eq!(taking_part(&[0.0, 0.1, f64::NAN]), [1, 2]);
        assert!(counted[3..8].iter().all(|count| (count - 0.05).abs() < 1e-12), "{counted:?}");
    }

    #[test]
    fn counts_are_put_into_words() {
        assert_eq!(in_words(&[4, 5, 6]), "samples 4 to 6");
        assert_eq!(in_words(&[4, 6]), "samples [4, 6]");
        assert_eq!(in_words(&[4]), "samples [4]");
        assert_eq!(in_words(&[]), "no sample");
        assert_eq!([2.0, 1.0 / 3.0, 0.1234].map(multiple), ["2 times", "1/3 of", "0.123 times"]);
        assert_eq!(short(0.1 + 0.2), 0.3);
    }
}
