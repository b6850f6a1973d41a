//! What layers ask for, without giving it to them.
//!
//! A layer that is built asks for its tensors by name and shape. Here it gets one number for each, which it sees in
//! every place of the shape: that takes no memory, however large the tensor would be.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use candle_nn::var_builder::SimpleBackend;
use concise_wrapper::weights::is_buffer;
use harness::lock::locked;

/// Names and shapes, in the order in which they were asked for.
type Wishes = Arc<Mutex<Vec<(String, Shape)>>>;

/// The parameters that `build` asks for, each once; not the buffers.
pub(crate) fn of(
    build: impl FnOnce(&VarBuilder<'_>) -> Result<()>,
) -> Result<Vec<(String, Shape)>> {
    let wishes = Wishes::default();
    let backend = Box::new(Noted { wishes: Arc::clone(&wishes) });
    build(&VarBuilder::from_backend(backend, DType::F32, Device::Cpu))?;
    let wishes = std::mem::take(&mut *locked(&wishes));
    Ok(wishes)
}

/// What is behind the builder.
struct Noted {
    wishes: Wishes,
}

impl SimpleBackend for Noted {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if is_buffer(name) {
            // Norms insist on a variable, which has memory: as many numbers as a layer has channels.
            return Ok(Var::zeros(shape, dtype, device)?.into_inner());
        }
        let number = Tensor::zeros((), dtype, device)?.broadcast_as(&shape)?;
        let mut wishes = locked(&self.wishes);
        match wishes.iter().find(|(known, _)| known == name) {
            Some((_, known)) if *known != shape => {
                bail!("{name} is asked for as {known:?} and as {shape:?}")
            }
            Some(_) => {}
            None => wishes.push((name.to_owned(), shape)),
        }
        Ok(number)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} cannot be made without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        // Whatever is asked for is given.
        true
    }
}
