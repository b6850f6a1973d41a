//! Tests of the order of a GPU's work, and of its time.

use candle_core::{DType, Tensor};
use devices::Event;
use harness::report::trace::TracedDevice as _;

use super::device;
use crate::parameters::overwrite;
use crate::relu;

/// A copy waits for the event and not for later work.
///
/// A real GPU might have done the later work before the copy. The simulated GPU does nothing until a thread waits for it.
#[test]
fn a_copy_waits_for_its_event_and_no_later_work() {
    let Some(device) = device() else { return };
    let (here, there) = (device.tensors(), device.side_stream());
    let values = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();
    let ones = Tensor::ones(1000, DType::F32, here).unwrap();
    let twos = (&ones + &ones).unwrap();
    let event = Event::record(here).unwrap();
    let copy = event.to_device(&twos, there).unwrap();
    assert!(!copy.device().same_device(here));
    assert_eq!(values(&copy), [2.0; 1000]);
    // The memory of `twos` is freed in the order of its own stream, which does not wait for the
    // copy.
    there.synchronize().unwrap();

    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("SIMULATED_GPUS") && !set("SIMULATED_GPU_EAGER") {
        let event = Event::record(here).unwrap();
        // This breaks the rule that the tensor must not change. A copy that waited for this later
        // write would have ones.
        overwrite(&twos, &ones).unwrap();
        assert_eq!(values(&event.to_device(&twos, there).unwrap()), [2.0; 1000]);
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
