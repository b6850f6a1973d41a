//! What most tests of training name, and what they train.

pub(crate) use std::time::Duration;

pub(crate) use candle_core::{DType, Device, ModuleT, Tensor, Var};
pub(crate) use concise_wrapper::ddp::bucket::BucketCaps;
pub(crate) use concise_wrapper::ddp::{Ddp, Reduction};
pub(crate) use concise_wrapper::lenet::LeNet;
pub(crate) use concise_wrapper::optimizer::{AdamW, Extras, Momentum, Optimizer, Schedule, Sgd};
pub(crate) use concise_wrapper::resnet::ResNet18;
pub(crate) use concise_wrapper::train::train;
pub(crate) use concise_wrapper::weights::{Named, Snapshot};
pub(crate) use concise_wrapper::{DataParallel, Model, Network};
pub(crate) use course_tests::lenet::{local_batch, with_large_weights};
pub(crate) use course_tests::{Fixture, device, noise, on_gpus, on_the_cpu, plan};
pub(crate) use datasets::loader::{Epochs as _, Loader};
pub(crate) use datasets::source::LoadedData;
pub(crate) use datasets::{Batch, CLASSES, Dataset, PIXELS, SAMPLE, Split, synthetic};
pub(crate) use devices::{DeviceKind, DevicePlan};
pub(crate) use harness::records::{BatchSums, TrainOptions};
pub(crate) use harness::report::Report;
pub(crate) use model_state::parameters::{Parameter, Parameters};
pub(crate) use model_state::weights_hash::WeightsHash;
pub(crate) use ops::difference::{largest_difference, relative_difference};
pub(crate) use params_and_allreduce::communicator::{Communicator, SharedCommunicator};
pub(crate) use params_and_allreduce::thread::{Rank, RankFailure, run_ranks};
pub(crate) use params_and_allreduce::{Algorithm, get_params};
pub(crate) use single_gpu::lenet::{Layers, Lenet};
pub(crate) use single_gpu::train::{Step, local_gradients};
pub(crate) use split_batch::loader::{LocalBatch, ShardLoader};

/// The time that ranks wait for each other: far longer than any step here takes.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

pub(crate) fn lenet(dtype: DType) -> Network<LeNet> {
    Network::new(3, dtype, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap()
}

pub(crate) fn resnet18(dtype: DType) -> Network<ResNet18> {
    Network::new(3, dtype, &Device::Cpu, |vb, norms| ResNet18::new(4, norms, vb)).unwrap()
}

/// Buckets so small that LeNet and a narrow ResNet-18 have several.
pub(crate) const fn many_buckets(algorithm: Algorithm, overlap: bool) -> Reduction {
    Reduction::Buckets { caps: BucketCaps { first: 2_000, others: 40_000 }, algorithm, overlap }
}

/// Images of noise, not garments: their black borders make channels that are constant, whose normalised values are
/// rounding errors around 0, on either side of relu's kink.
pub(crate) fn noisy_images(salts: std::ops::Range<u64>) -> Dataset {
    let image = |salt| {
        let values = noise(PIXELS, salt).unwrap().to_vec1::<f64>().unwrap();
        std::array::from_fn(|pixel| (values[pixel] * 127.0 + 128.0) as u8)
    };
    let labels = (0..).map(|index| index % CLASSES as u8).take(salts.clone().count()).collect();
    Dataset::new(salts.map(image).collect(), labels).unwrap()
}
