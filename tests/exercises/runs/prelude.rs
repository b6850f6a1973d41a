//! Names that most runs use.

pub(super) use std::fs;
pub(super) use std::ops::Range;
pub(super) use std::sync::Arc;
pub(super) use std::time::{Duration, Instant};

pub(super) use candle_core::{DType, Device, Shape, Tensor};
pub(super) use concise_wrapper::resnet::ResNet18;
pub(super) use concise_wrapper::{Ddp, Error as ModelError, Model, Network};
pub(super) use datasets::source::LoadedData;
pub(super) use datasets::{Batch, CLASSES, Dataset, PIXELS, Split, synthetic};
pub(super) use devices::DevicePlan;
pub(super) use harness::records::{BatchSums, EpochRecord, TrainOptions};
pub(super) use harness::report::{Report, counted, line, paragraph};
pub(super) use harness::statistics::median;
pub(super) use model_state::parameters::{Parameters, Snapshot};
pub(super) use model_state::weights_hash::WeightsHash;
pub(super) use ops::difference::largest_difference;
pub(super) use params_and_allreduce::Algorithm;
pub(super) use params_and_allreduce::communicator::{
    Communicator, Error as CommError, SharedCommunicator,
};
pub(super) use params_and_allreduce::thread::{Rank, run_ranks};
pub(super) use scratch_data_parallel::{Error as TrainError, allreduce_sums, train_batch};
pub(super) use single_gpu::lenet::Lenet;
pub(super) use single_gpu::sgd::sgd;
pub(super) use single_gpu::train::{Step, local_gradients};
pub(super) use split_batch::loader::{LocalBatch, Shards};

pub(super) use super::Run;
pub(super) use super::training::{
    ROUNDING, SILENT, TIMEOUT, Training, With, conclusion, difference, images, milliseconds,
    options, show, table,
};
pub(super) use crate::classifier::Classifier;
pub(super) use crate::outcome::{in_a_row, in_groups};
pub(super) use crate::ranks::Rank as Peer;
