//! Devices of a `DataParallel` model that fail.

use std::sync::mpsc::channel;
use std::thread;

use candle_core::Result;

use crate::prelude::*;

/// What two calls come to, of which the first makes a device fail. Nothing else ends this if one call waits for ever.
fn after_a_failure(devices: usize, images: Tensor, labels: Vec<u32>) -> [String; 2] {
    let (done, told) = channel();
    thread::spawn(move || {
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb));
        let model =
            DataParallel::new(network.unwrap(), &DevicePlan::slices(devices).unwrap(), WAIT)
                .unwrap();
        let (samples, labels) = (labels.len(), Tensor::new(labels, &Device::Cpu).unwrap());
        let batch = LocalBatch { shards: vec![Batch { images, labels }], samples };
        let told = [0, 1].map(|_| model.backward(&batch).unwrap_err().to_string());
        drop(model);
        done.send(told).unwrap();
    });
    told.recv_timeout(WAIT).unwrap()
}

#[test]
fn one_that_fails_is_named_while_the_others_wait_for_orders() {
    let black = |images, channels| {
        Tensor::zeros((images, channels, 28, 28), DType::F32, &Device::Cpu).unwrap()
    };
    for devices in [1, 2, 4] {
        // The first device alone has a label of no class.
        let labels = [vec![99], vec![0; devices - 1]].concat();
        let [first, then] = after_a_failure(devices, black(devices, 1), labels);
        assert!(first.starts_with("rank 0 failed: "), "{devices} devices: {first}");
        assert_eq!(then, first);
    }
    // The images of all devices do not fit.
    let [first, then] = after_a_failure(3, black(6, 3), vec![0; 6]);
    assert!(first.starts_with("rank ") && first.contains(" failed: "), "{first}");
    assert_eq!(then, first);
}

/// LeNet, on the device that has black images among its own for longer than others wait.
struct Stalls(LeNet);

const TIMEOUT: Duration = Duration::from_millis(300);

impl ModuleT for Stalls {
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        if images.max_all()?.to_scalar::<f32>()? == 0.0 {
            thread::sleep(Duration::from_secs(2));
        }
        self.0.forward_t(images, train)
    }
}

/// The other devices wait for it, and so each of them knows which is late.
#[test]
fn one_that_stalls_in_a_backward_pass_is_named() {
    for devices in [2, 3] {
        let network =
            Network::new(1, DType::F32, &Device::Cpu, |vb, _| Ok(Stalls(LeNet::new(vb)?)));
        let model =
            DataParallel::new(network.unwrap(), &DevicePlan::slices(devices).unwrap(), TIMEOUT)
                .unwrap();
        let grey = Tensor::ones((devices - 1, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
        let images = grey.pad_with_zeros(0, 0, 1).unwrap();
        let labels = Tensor::zeros(devices, DType::U32, &Device::Cpu).unwrap();
        let share = LocalBatch { shards: vec![Batch { images, labels }], samples: devices };
        let told = model.backward(&share).unwrap_err().to_string();
        let late = format!("waited 0.3 s: rank {} is alive but sends nothing", devices - 1);
        assert!(told.starts_with("rank ") && told.ends_with(&late), "{told}");
    }
}
