//! The order of a GPU's work, and its time.

use candle_core::{DType, Tensor};
use devices::Moment;
use harness::report::trace::TracedDevice as _;

use super::device;
use crate::parameters::overwrite;
use crate::relu;

/// What is queued after a moment is not waited for. A real GPU might have come to it before it is asked; the simulated
/// one does nothing until somebody waits for it.
#[test]
fn a_gpu_is_waited_for_up_to_a_moment_and_no_further() {
    let Some(device) = device() else { return };
    let (here, there) = (device.tensors(), device.beside());
    let values = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();
    let ones = Tensor::ones(1000, DType::F32, here).unwrap();
    let twos = (&ones + &ones).unwrap();
    let moment = Moment::of(here).unwrap();
    let carried = moment.carry(&twos, there).unwrap();
    assert!(!carried.device().same_device(here));
    assert_eq!(values(&carried), [2.0; 1000]);

    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("SIMULATED_GPUS") && !set("SIMULATED_GPU_EAGER") {
        let moment = Moment::of(here).unwrap();
        // This breaks the rule that the tensor must stay as it is: a copy that waited for this later write, too,
        // would hold ones.
        overwrite(&twos, &ones).unwrap();
        assert_eq!(values(&moment.carry(&twos, there).unwrap()), [2.0; 1000]);
        assert_eq!(values(&twos), [1.0; 1000]);
    }
}

#[test]
fn a_gpu_is_timed_by_its_own_events() {
    let Some(device) = device() else { return };
    let mut clock = device.clock().expect("a GPU has a clock");
    assert_eq!(clock.mark(), Some(0));
    relu(&Tensor::ones((70, 31), DType::F32, device.tensors()).unwrap()).unwrap();
    assert_eq!(clock.mark(), Some(1));
    let times = clock.times();
    assert!(times.len() == 2 && times[0] <= times[1], "{times:?}");
}
