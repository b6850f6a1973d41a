//! A thread that a connection lives in.
//!
//! NCCL's end of a connection belongs to the thread that made it. So it gets a thread of its own: its rank's threads
//! put orders into a channel, and each order has a channel for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::{CudaDevice, Tensor};
use cudarc::nccl::safe::Id;

use super::collective::Kind;
use super::connection::Connection;
use super::{failure, nccl};
use crate::communicator::Error;
use crate::launcher::Place;
use crate::thread::{GRACE, asleep};

/// What a rank wants of its connection.
enum Order {
    /// Something that all ranks do together.
    Collective { tensor: Tensor, kind: Kind, answer: Sender<Result<Tensor, Error>> },
    /// Its end.
    Leave,
}

/// The way to the thread.
#[derive(Clone)]
pub(super) struct Post {
    orders: Sender<Order>,
    timeout: Duration,
    /// Whether an order has failed: then the ranks no longer agree on what comes next.
    failed: Arc<AtomicBool>,
}

impl Post {
    /// Starts the thread, and joins the others in it; all ranks call this together.
    ///
    /// # Errors
    ///
    /// When NCCL cannot connect the ranks, or not all of them have come before `timeout`.
    pub(super) fn start(
        name: &str,
        device: &CudaDevice,
        place: &Place,
        timeout: Duration,
    ) -> Result<(Self, JoinHandle<()>), Error> {
        let (orders, ordered) = channel();
        let (joined, outcome) = channel();
        let work = {
            let (device, place) = (device.clone(), place.clone());
            move || {
                // The same for all: it says where they meet, as `NCCL_COMM_ID` is set.
                let id = Id::new().map_err(|error| nccl(error).into());
                let join =
                    |id| Connection::join(&device, place.rank, place.world_size, id, timeout);
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
        let thread = builder.spawn(work).map_err(candle_core::Error::wrap)?;
        match asleep(&outcome, timeout) {
            Ok(Ok(())) => Ok((Self { orders, timeout, failed: Arc::default() }, thread)),
            Ok(Err(error)) => Err(error),
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

    /// Orders what all ranks do together, and waits for it.
    pub(super) fn order(&self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        let (answer, answered) = channel();
        let order = Order::Collective { tensor: tensor.clone(), kind, answer };
        let outcome = match self.orders.send(order) {
            // A connection notices by itself that its time is up, unless NCCL does not come back from a call.
            Ok(()) => match asleep(&answered, self.timeout.saturating_add(GRACE)) {
                Ok(outcome) => outcome,
                Err(RecvTimeoutError::Disconnected) => Err(gone()),
                Err(RecvTimeoutError::Timeout) => Err(failure(
                    "NCCL does not come back from a call: another rank stopped or stalls"
                        .to_owned(),
                )),
            },
            Err(_) => Err(gone()),
        };
        self.failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    }

    /// How long it waits for the other ranks.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether an order has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Lets the thread end, whoever still has a way to it.
    pub(super) fn leave(&self) {
        // If it is gone already, so much the better.
        let _ = self.orders.send(Order::Leave);
    }
}

/// Does what is ordered, in that order.
fn serve(connection: &Connection, orders: &Receiver<Order>) {
    for order in orders {
        match order {
            Order::Leave => break,
            Order::Collective { tensor, kind, answer } => {
                // A rank that is gone needs no answer.
                let _ = answer.send(connection.run(&tensor, kind));
            }
        }
    }
}

fn gone() -> Error {
    failure("NCCL: the thread of the connection is gone".to_owned())
}
