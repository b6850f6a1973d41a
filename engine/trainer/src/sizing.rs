//! Smaller defaults on a CPU, where an epoch should take seconds.

use devices::DevicePlan;
use itertools::Itertools as _;

use crate::TrainArguments;

/// The planes of ResNet-18's first group, as published.
pub const WIDTH: usize = 64;

/// The planes of ResNet-18's first group on a CPU.
const WIDTH_ON_A_CPU: usize = 16;

/// Returns the planes of ResNet-18's first group: the number in the flag, or the default for the devices.
pub fn width(flag: Option<u32>, plan: &DevicePlan) -> usize {
    let default = if plan.is_of_slices() { WIDTH_ON_A_CPU } else { WIDTH };
    flag.map_or(default, |width| width as usize)
}

/// On a CPU, limits the training and test images, unless flags do. Returns whether this default limits the training images.
pub fn limit_images(
    train: &mut TrainArguments,
    plan: &DevicePlan,
    (training, test): (usize, usize),
) -> bool {
    let limited = plan.is_of_slices() && train.train_size.is_none();
    if plan.is_of_slices() {
        train.train_size.get_or_insert(training);
        train.test_size.get_or_insert(test);
    }
    limited
}

/// Returns a note about the defaults that were used: the planes of ResNet-18's first group, and part of the images.
pub fn note(width: Option<usize>, part: bool) -> Option<String> {
    let planes = width.map(|width| format!("width {width} in place of {WIDTH} (--width)"));
    let images = part.then(|| "part of the images (--train-size)".to_owned());
    let smaller = planes.into_iter().chain(images).join(", and ");
    (!smaller.is_empty()).then(|| format!("sized to a CPU: {smaller}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defaults_are_noted() {
        assert_eq!(note(None, false), None);
        let note = |width, part| note(width, part).expect("a note");
        let width = "sized to a CPU: width 16 in place of 64 (--width)";
        assert_eq!(note(Some(16), false), width);
        let images = "part of the images (--train-size)";
        assert_eq!(note(None, true), format!("sized to a CPU: {images}"));
        assert_eq!(note(Some(16), true), format!("{width}, and {images}"));
    }
}
