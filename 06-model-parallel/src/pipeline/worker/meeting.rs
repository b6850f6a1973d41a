//! Before the first step: what shape will arrive here, and what shape is sent on?
//!
//! A receiver has to say what it expects. Only the first stage knows: a sample of the data. So one sample
//! of zeros goes through the first stage, which tells the next one what came out; that one does the same.

use candle_core::{DType, Module, ModuleT, Shape, Tensor};
use concise_wrapper::Network;
use ops::backward::no_grad;
use params_and_allreduce::communicator::{Communicator, Error};

/// Shapes of one sample, without the batch's axis.
pub(super) struct Shapes {
    /// Of what arrives at a stage.
    pub input: Vec<usize>,
    /// Of what it sends on.
    pub output: Vec<usize>,
}

/// The shapes of this stage; all stages call this together. `sample` is a sample's of the data.
pub(super) fn shapes<M: ModuleT>(
    line: &(impl Communicator + ?Sized),
    network: &Network<M>,
    sample: &[usize],
) -> Result<Shapes, Error> {
    let (stage, stages) = (line.rank(), line.world_size());
    let input = match stage {
        0 => sample.to_vec(),
        _ => receive(line, stage - 1)?,
    };
    let zeros = Tensor::zeros(shape(1, &input), network.dtype(), network.device())?;
    // As in evaluation: the statistics of batch norms stay as they are.
    let output = no_grad(|| network.forward(&zeros))?;
    let output = match output.dims() {
        [1, output @ ..] => output.to_vec(),
        other => {
            let text =
                format!("one sample of {input:?} becomes {other:?}: a batch's axis is the first");
            return Err(candle_core::Error::Msg(text).into());
        }
    };
    if stage + 1 < stages {
        send(line, stage + 1, &output)?;
    }
    Ok(Shapes { input, output })
}

/// The shape of so many samples.
pub(super) fn shape(rows: usize, sample: &[usize]) -> Shape {
    [&[rows], sample].concat().into()
}

fn send(line: &(impl Communicator + ?Sized), to: usize, dims: &[usize]) -> Result<(), Error> {
    let device = line.device();
    let dims: Vec<u32> = dims.iter().map(|&dim| dim as u32).collect();
    line.send(to, &Tensor::new(&[dims.len() as u32], device)?)?;
    // A tensor without elements is not sent.
    if dims.is_empty() { Ok(()) } else { line.send(to, &Tensor::new(dims, device)?) }
}

fn receive(line: &(impl Communicator + ?Sized), from: usize) -> Result<Vec<usize>, Error> {
    let rank = line.recv(from, &Shape::from(1), DType::U32)?.to_vec1::<u32>()?[0] as usize;
    if rank == 0 {
        return Ok(Vec::new());
    }
    let dims = line.recv(from, &Shape::from(rank), DType::U32)?.to_vec1::<u32>()?;
    Ok(dims.into_iter().map(|dim| dim as usize).collect())
}
