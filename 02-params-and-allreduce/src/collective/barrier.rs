//! Barrier: nobody goes on before all have arrived.
//!
//! In round 1 a rank tells the next one that it is there, in round 2 the one two further, then four,
//! eight, … Whoever has heard from all its senders knows of twice as many ranks after each round. Five
//! ranks, and of whose arrival rank 0 knows:
//!
//! ```text
//! round 1   hears from 4             knows of 4 0
//! round 2   hears from 3             knows of 2 3 4 0    (3 has heard from 2)
//! round 3   hears from 1             knows of all        (1 has heard of 0 4 3)
//! ```
//!
//! ⌈log₂ n⌉ rounds, and the messages are empty: what counts is that they come.

use candle_core::{DType, Tensor};

use crate::communicator::{Communicator, Error};

/// Waits until every rank has called this.
///
/// # Errors
///
/// When another rank stops or stalls.
pub fn barrier(communicator: &impl Communicator) -> Result<(), Error> {
    if let Some(engine) = communicator.collectives() {
        // Nobody has a sum before everybody has brought a number.
        let number = Tensor::zeros(1, DType::F32, communicator.device())?;
        return engine.sum(&number).map(drop);
    }
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let nothing = Tensor::zeros(0, DType::U8, communicator.device())?;
    let mut distance = 1;
    while distance < world_size {
        communicator.send((rank + distance) % world_size, &nothing)?;
        let from = (rank + world_size - distance) % world_size;
        communicator.recv(from, nothing.shape(), nothing.dtype())?;
        distance *= 2;
    }
    Ok(())
}
