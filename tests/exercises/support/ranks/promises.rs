//! What a rank has promised not to write to.
//!
//! Here messages are copies, whichever way they are sent, so a broken promise would change nothing. Where ranks
//! share memory it changes what another rank reads: now and then, by bad luck. So it is found out in another way:
//! what memory held when it was handed out is kept beside it, and compared at the end.

use candle_core::{Result, Tensor};

use crate::expectation::numbers;

/// What is said of a rank that has written to what it had handed out.
pub const PROMISE_BROKEN: &str = " was written to afterwards";

/// The law that this breaks.
pub const PROMISE: &str = "what is shared is not written to again; a variable is: `send` it";

/// Memory that a rank has handed out.
#[derive(Debug)]
struct Promise {
    /// The memory itself.
    memory: Tensor,
    /// What it held.
    held: Vec<u64>,
    /// What was done with it, and for whom.
    told: String,
}

/// What a rank has shared.
#[derive(Debug, Default)]
pub(super) struct Promises(Vec<Promise>);

impl Promises {
    /// Nobody will write to it again.
    pub(super) fn share(&mut self, to: usize, tensor: &Tensor) -> Result<()> {
        self.0.push(Promise::new(tensor, format!("shared with rank {to}"))?);
        Ok(())
    }

    /// Whether all are kept so far; else what became of the first that is not.
    pub(super) fn kept(&self) -> std::result::Result<(), String> {
        match self.0.iter().find(|promise| !promise.is_kept()) {
            Some(Promise { told, .. }) => {
                Err(format!("broke a promise: what it had {told}{PROMISE_BROKEN}"))
            }
            None => Ok(()),
        }
    }
}

impl Promise {
    fn new(tensor: &Tensor, told: String) -> Result<Self> {
        // Detached, a variable's tensor has the variable's memory.
        let memory = tensor.detach();
        Ok(Self { held: bits(&memory)?, memory, told })
    }

    fn is_kept(&self) -> bool {
        bits(&self.memory).is_ok_and(|now| now == self.held)
    }
}

/// The numbers of a tensor, so that NaN equals NaN.
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
        let broken = "broke a promise: what it had shared with rank 1 was written to afterwards";
        assert_eq!(promises.kept(), Err(broken.to_owned()));
    }
}
