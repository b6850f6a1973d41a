//! Devices of a `DataParallel` model that fail.

use std::sync::mpsc::channel;
use std::thread;

use candle_core::{DType, Device, Tensor};
use concise_wrapper::lenet::LeNet;
use concise_wrapper::{DataParallel, Network};

use crate::{WAIT, slices};

/// What two calls come to, of which the first makes a device fail: images that do not fit, of which there are enough
/// for the first of the devices alone. Nothing else ends this if one call waits for ever.
fn after_a_failure(devices: usize, images: usize) -> [String; 2] {
    let (done, told) = channel();
    thread::spawn(move || {
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb));
        let model = DataParallel::new(network.unwrap(), &slices(devices)).unwrap();
        let images = Tensor::zeros((images, 3, 28, 28), DType::F32, &Device::Cpu).unwrap();
        let told = [0, 1].map(|_| model.predict(&images).unwrap_err().to_string());
        drop(model);
        done.send(told).unwrap();
    });
    told.recv_timeout(WAIT).unwrap()
}

#[test]
fn one_that_fails_is_named_while_the_others_wait_for_orders() {
    for devices in [1, 2, 4] {
        let [first, then] = after_a_failure(devices, 1);
        assert!(first.starts_with("rank 0 failed: "), "{devices} devices: {first}");
        assert_eq!(then, "a device has ended early");
    }
    // All of them.
    let [first, then] = after_a_failure(3, 6);
    assert!(first.starts_with("rank ") && first.contains(" failed: "), "{first}");
    assert_eq!(then, "a device has ended early");
}
