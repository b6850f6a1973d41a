//! What most of these tests name.

pub(crate) use std::ops::Range;
pub(crate) use std::sync::Arc;
pub(crate) use std::time::{Duration, Instant};

pub(crate) use candle_core::{DType, Device, ModuleT, Tensor, Var};
pub(crate) use candle_nn::VarBuilder;
pub(crate) use checkpoints::{Checkpoints, Configuration};
pub(crate) use concise_wrapper::batch_norm::Norms;
pub(crate) use concise_wrapper::ddp::{Ddp, Reduction};
pub(crate) use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
pub(crate) use concise_wrapper::resnet::ResNet18;
pub(crate) use concise_wrapper::train::train;
pub(crate) use concise_wrapper::{Error, Model, Network, Store};
pub(crate) use datasets::loader::Epochs;
pub(crate) use datasets::source::LoadedData;
pub(crate) use datasets::{CLASSES, Dataset, PIXELS, SAMPLE};
pub(crate) use devices::DevicePlan;
pub(crate) use harness::records::{BatchSums, TrainOptions};
pub(crate) use harness::report::Report;
pub(crate) use model_parallel::execute::Settings;
pub(crate) use model_parallel::execute::unit::Whole;
pub(crate) use model_parallel::layers::{Layers, Stage};
pub(crate) use model_parallel::mesh::{Axis, Mesh};
pub(crate) use model_parallel::tensor_parallel::{by_column, by_row, gather, part};
pub(crate) use model_parallel::{
    Action, Bytes, Checked, Cost, Executor, Instruction, Kind, Schedule, Timeline, UNBOUNDED, check,
};
pub(crate) use model_state::weights_hash::WeightsHash;
pub(crate) use ops::difference::{largest_difference, relative_difference};
pub(crate) use ops::update::overwrite;
pub(crate) use ops::{flatten, linear};
pub(crate) use params_and_allreduce::Algorithm;
pub(crate) use params_and_allreduce::communicator::{Alone, Communicator, SharedCommunicator};
pub(crate) use params_and_allreduce::thread::{Rank, run_ranks};
pub(crate) use single_gpu::evaluate::BATCH;
pub(crate) use split_batch::loader::{LocalBatch, ShardLoader};
