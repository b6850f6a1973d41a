//! What a CPU is given to do, unless flags ask for more: less, so that an epoch takes seconds.

use devices::DevicePlan;
use trainer::TrainArguments;

use crate::resnet;

/// The planes of ResNet-18's first group on a CPU.
const WIDTH_ON_A_CPU: usize = 16;

/// The planes of ResNet-18's first group: those that are `asked` for, or those that suit the devices.
pub fn width(asked: Option<u32>, plan: &DevicePlan) -> usize {
    match asked {
        Some(width) => width as usize,
        None if plan.is_of_slices() => WIDTH_ON_A_CPU,
        None => resnet::WIDTH,
    }
}

/// On a CPU, leaves so many training and test images, unless `--train-size` and `--test-size` say otherwise;
/// whether training images are left out that were not said to be.
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
