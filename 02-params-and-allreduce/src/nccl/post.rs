//! A thread that a connection lives in.
//!
//! NCCL's end of a connection belongs to the thread that made it. So it gets a thread of its own: its rank's threads
//! put orders into a channel, and each order has a channel for its answer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use candle_core::{CudaDevice, Tensor};
use cudarc::nccl::safe::Id;

use super::collective::Kind;
use super::connection::Connection;
use super::{failure, nccl};
use crate::communicator::Error;
use crate::launcher::Place;

/// What a rank wants done, together with all others.
pub(super) struct Order {
    tensor: Tensor,
    kind: Kind,
    answer: Sender<Result<Tensor, Error>>,
}

/// Starts a thread and joins the others in it; all ranks call this together. Its end comes when nobody can order
/// any more.
///
/// # Errors
///
/// When NCCL cannot connect the ranks, or not all of them have come before `timeout`.
pub(super) fn start(
    name: &str,
    device: &CudaDevice,
    place: &Place,
    timeout: Duration,
) -> Result<Sender<Order>, Error> {
    let (orders, ordered) = channel();
    let (joined, outcome) = channel();
    let work = {
        let (device, place) = (device.clone(), place.clone());
        move || {
            // The same for all: it says where they meet, as `NCCL_COMM_ID` is set.
            let id = Id::new().map_err(|error| nccl(error).into());
            let join = |id| Connection::join(&device, place.rank, place.world_size, id, timeout);
            match id.and_then(join) {
                // Whoever waited for it may have given up by now.
                Err(error) => drop(joined.send(Err(error))),
                Ok(connection) => {
                    if joined.send(Ok(())).is_ok() {
                        serve(&connection, &ordered);
                    }
                }
            }
        }
    };
    let builder = thread::Builder::new().name(format!("nccl {name}"));
    builder.spawn(work).map_err(candle_core::Error::wrap)?;
    match outcome.recv_timeout(timeout) {
        Ok(outcome) => outcome.map(|()| orders),
        Err(RecvTimeoutError::Disconnected) => Err(gone()),
        Err(RecvTimeoutError::Timeout) => Err(failure(format!(
            "rank {} waited {:.1} s at {}: not all of the {} processes have come",
            place.rank,
            timeout.as_secs_f64(),
            place.meeting,
            place.world_size
        ))),
    }
}

/// Does what is ordered, in that order.
fn serve(connection: &Connection, orders: &Receiver<Order>) {
    for Order { tensor, kind, answer } in orders {
        // A rank that is gone needs no answer.
        let _ = answer.send(connection.run(&tensor, kind));
    }
}

/// Orders something, and waits for it.
pub(super) fn order(orders: &Sender<Order>, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    let (answer, answered) = channel();
    let order = Order { tensor: tensor.clone(), kind, answer };
    // The connection has the time limit.
    orders.send(order).ok().and_then(|()| answered.recv().ok()).unwrap_or_else(|| Err(gone()))
}

fn gone() -> Error {
    failure("NCCL: the thread of the connection is gone".to_owned())
}
