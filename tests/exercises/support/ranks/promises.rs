//! Tensors to which a rank has promised not to write.
//!
//! In the exercises every message is a copy, so a broken promise changes nothing. If ranks share memory, a broken promise
//! sometimes changes the tensor that another rank reads. To find it every time, the numbers of a shared tensor are saved when it
//! is sent, and compared at the end.

use candle_core::{Result, Tensor};

use crate::expectation::numbers;

/// A part of the failure of a rank that has broken a promise.
pub const PROMISE_BROKEN: &str = " was written to afterwards";

/// The law of promises.
pub const PROMISE: &str =
    "a shared tensor is not written to again, and an update writes to a variable: `send` it";

/// A tensor that a rank has shared.
#[derive(Debug)]
struct Promise {
    /// The memory itself.
    memory: Tensor,
    /// The numbers at that time.
    held: Vec<u64>,
    /// A description of the call.
    told: String,
}

/// All tensors that a rank has shared.
#[derive(Debug, Default)]
pub(super) struct Promises(Vec<Promise>);

impl Promises {
    /// Records a tensor that is shared with a rank.
    pub(super) fn share(&mut self, to: usize, tensor: &Tensor) -> Result<()> {
        self.0.push(Promise::new(tensor, format!("shared with rank {to}"))?);
        Ok(())
    }

    /// Fails with a description of the first broken promise.
    pub(super) fn kept(&self) -> std::result::Result<(), String> {
        match self.0.iter().find(|promise| !promise.is_kept()) {
            Some(Promise { told, .. }) => {
                Err(format!("broke a promise: a tensor that it had {told}{PROMISE_BROKEN}"))
            }
            None => Ok(()),
        }
    }
}

impl Promise {
    fn new(tensor: &Tensor, told: String) -> Result<Self> {
        // A detached tensor shares the memory of its variable.
        let memory = tensor.detach();
        Ok(Self { held: bits(&memory)?, memory, told })
    }

    fn is_kept(&self) -> bool {
        bits(&self.memory).is_ok_and(|now| now == self.held)
    }
}

/// The bits of a tensor's numbers: as bits, NaN equals NaN.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(numbers(tensor)?.into_iter().map(f64::to_bits).collect())
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn variable() -> Var {
        Var::from_tensor(&Tensor::new(&[1.0, f64::NAN], &Device::Cpu).unwrap()).unwrap()
    }

    fn write(variable: &Var) {
        variable.set(&variable.zeros_like().unwrap()).unwrap();
    }

    #[test]
    fn what_is_shared_is_never_written_to() {
        let (mut promises, variable) = (Promises::default(), variable());
        promises.share(2, &variable.copy().unwrap()).unwrap();
        promises.share(1, variable.as_tensor()).unwrap();
        promises.kept().unwrap();
        write(&variable);
        let broken =
            "broke a promise: a tensor that it had shared with rank 1 was written to afterwards";
        assert_eq!(promises.kept(), Err(broken.to_owned()));
    }
}
