//! From the parts that ranks hold back to the whole: for a hash, a comparison, a file.

use candle_core::{DType, ModuleT, Shape, Tensor};
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Ddp, Error, Model, Network, text};
use params_and_allreduce::communicator::{self, Communicator};
use serde::{Deserialize, Serialize};

/// A model of which a rank may hold a part only.
pub trait Whole: Model {
    /// Puts values together: `mine` are this rank's, each named like one of its [`weights`](Model::weights).
    ///
    /// What comes back are those of the whole model on the first rank that holds a part of it, and `None` on
    /// the others. All ranks call this together.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error>;
}

impl<M: ModuleT> Whole for Network<M> {
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(Some(mine))
    }
}

impl<M: ModuleT> Whole for Ddp<M> {
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(Some(mine))
    }
}

/// What is said of a tensor before it is sent.
#[derive(Serialize, Deserialize)]
struct Announced {
    name: String,
    dims: Vec<usize>,
    dtype: String,
}

/// All ranks' tensors on rank 0, one rank's after the other's, and `None` on the others; all call this
/// together. No tensor may be empty.
pub(crate) fn gathered(
    line: &(impl Communicator + ?Sized),
    mine: Snapshot,
) -> Result<Option<Snapshot>, communicator::Error> {
    let announced = |(name, tensor): &(String, Tensor)| Announced {
        name: name.clone(),
        dims: tensor.dims().to_vec(),
        dtype: tensor.dtype().as_str().to_owned(),
    };
    let announced: Vec<Announced> = mine.iter().map(announced).collect();
    let all = text::values_gathered(line, &announced)?;
    if line.rank() > 0 {
        for (_, tensor) in &mine {
            line.send(0, &tensor.to_device(line.device())?)?;
        }
        return Ok(None);
    }
    let mut whole = mine;
    for (rank, of_rank) in all.into_iter().enumerate().skip(1) {
        for Announced { name, dims, dtype } in of_rank {
            let Ok(dtype) = dtype.parse::<DType>() else {
                return Err(unknown(&name, &dtype));
            };
            let tensor = line.recv(rank, &Shape::from(dims), dtype)?;
            whole.push((name, tensor.to_device(&candle_core::Device::Cpu)?));
        }
    }
    Ok(Some(whole))
}

fn unknown(name: &str, dtype: &str) -> communicator::Error {
    candle_core::Error::Msg(format!("{name} has elements of an unknown type, {dtype}")).into()
}
