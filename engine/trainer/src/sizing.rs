//! Smaller defaults on a CPU, where an epoch should take seconds.

use devices::DevicePlan;
use harness::report::counted;

use crate::TrainArguments;

/// The planes of ResNet-18's first group, as published.
pub const WIDTH: usize = 64;

/// The planes of ResNet-18's first group on a CPU.
const WIDTH_ON_A_CPU: usize = 16;

/// Returns the planes of ResNet-18's first group: the number in the flag, or the default for the devices.
pub fn width(flag: Option<u32>, plan: &DevicePlan) -> usize {
    match flag {
        Some(width) => width as usize,
        None if plan.is_of_slices() => WIDTH_ON_A_CPU,
        None => WIDTH,
    }
}

/// On a CPU, limits the numbers of training and test images, unless `--train-size` and `--test-size` are given. Returns
/// whether the training images are limited by this default.
pub fn limit_images(
    train: &mut TrainArguments,
    plan: &DevicePlan,
    (training, test): (u64, u64),
) -> bool {
    if !plan.is_of_slices() {
        return false;
    }
    let limited = train.train_size.is_none();
    train.train_size.get_or_insert(training);
    train.test_size.get_or_insert(test);
    limited
}

/// Returns a note about the defaults that were used: the planes of ResNet-18's first group, and part of the images.
pub fn note(width: Option<usize>, part: bool) -> Option<String> {
    let planes =
        |width| format!("{} in the first group in place of {WIDTH}", counted(width, "plane"));
    let planes = width.map(|width| (planes(width), "--width"));
    let images = part.then(|| ("part of the images".to_owned(), "--train-size"));
    let (what, flags): (Vec<_>, Vec<_>) = planes.into_iter().chain(images).unzip();
    let (what, verb) = (what.join(", and "), if flags.len() > 1 { "change" } else { "changes" });
    let flags = flags.join(" and ");
    (!flags.is_empty()).then(|| format!("sized to a CPU: {what}; {flags} {verb} that"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_asked_for_is_noted() {
        assert_eq!(note(None, false), None);
        let told = |width, part| note(width, part).expect("a note");
        assert!(told(Some(16), true).ends_with("--width and --train-size change that"));
        let planes =
            "sized to a CPU: 16 planes in the first group in place of 64; --width changes that";
        assert_eq!(told(Some(16), false), planes);
        let images = "sized to a CPU: part of the images; --train-size changes that";
        assert_eq!(told(None, true), images);
    }
}
