//! Smaller defaults on a CPU, where an epoch should take seconds.

use devices::DevicePlan;
use trainer::TrainArguments;

use crate::resnet;

/// The planes of ResNet-18's first group on a CPU.
const WIDTH_ON_A_CPU: usize = 16;

/// Returns the planes of ResNet-18's first group: the number in the flag, or the default for the devices.
pub fn width(flag: Option<u32>, plan: &DevicePlan) -> usize {
    match flag {
        Some(width) => width as usize,
        None if plan.is_of_slices() => WIDTH_ON_A_CPU,
        None => resnet::WIDTH,
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
