//! The thread that talks MPI for one line.
//!
//! What it does, over and over:
//!
//! 1. **It takes orders**: a tensor to send, a sum to make, or the notice that the rank's work is done.
//! 2. **It sends what was ordered**, and looks for arrivals until MPI has sent all of it.
//! 3. **It fetches every message that has arrived**, whether anybody waits for it yet or not.
//!
//! The third is why nobody gets stuck: a large message leaves its sender only when the receiver fetches it,
//! and a postman always does, whatever its rank is busy with. So ranks may all send first and receive then,
//! and the price is the same as between threads: what arrives early takes memory until it is asked for.
//!
//! The second waits for everything of one round before the next round begins. As every postman fetches, that
//! is soon. And it is what lets MPI read the tensors where they are: MPI's `scope` sees to it that no buffer
//! is let go while MPI still uses it.
//!
//! It is not soon where a receiver has been stopped. So while it waits for a large message to leave, or to come, a
//! postman still asks and answers who waits for whom, and says by whom it is held up: else it would be blamed itself.
//! Questions and answers are copied into a buffer that MPI has for that, and need nobody to leave.

use std::collections::VecDeque;
use std::iter;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::sleep;

use ::mpi::Tag;
use ::mpi::request::scope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Destination as _, MatchedReceiveVec as _, Source as _};

use super::abort;
use super::note::Note;
use super::pace::Pace;
use super::parcel::{Arrival, Parcel, parts, parts_mut};
use super::sum::Sum;
use super::waiting::{Waiting, WaitsFor};
use crate::thread::tell;

/// Marks a note, which is text.
const NOTE: Tag = 1;

/// Marks bytes of the tensor that the note before them announced.
const BYTES: Tag = 2;

/// Marks a question or an answer, which are notes that wait for no others.
const QUESTION: Tag = 3;

/// What a line asks of its postman.
#[derive(Debug)]
pub(super) enum Order {
    Send(Parcel),
    Sum(Sum),
    /// Ask another rank's postman whom that rank waits for.
    Ask(usize),
    /// Somebody waits from now on.
    Look,
    /// The rank's work is done: tell the others, and stay until theirs is done, too.
    Leave,
}

/// What another rank's postman answered: whom that rank waits for.
pub(super) type Answer = (usize, WaitsFor);

/// One line's connection to MPI.
pub(super) struct Postman {
    /// A copy of MPI's world: its messages meet no other copy's.
    world: Rc<SimpleCommunicator>,
    orders: Receiver<Order>,
    /// To the line, for arrivals from each rank; closed when that rank's work is done.
    inboxes: Vec<Option<Sender<Arrival>>>,
    answers: Sender<Answer>,
    pub(super) line: Arc<Waiting>,
    outgoing: Vec<Parcel>,
    sums: VecDeque<Sum>,
    leaving: bool,
}

impl Postman {
    pub(super) fn new(
        world: SimpleCommunicator,
        orders: Receiver<Order>,
        mut inboxes: Vec<Option<Sender<Arrival>>>,
        answers: Sender<Answer>,
        line: Arc<Waiting>,
    ) -> Self {
        // Nothing comes from the rank itself.
        inboxes[world.rank() as usize] = None;
        let (outgoing, sums) = Default::default();
        Self {
            world: Rc::new(world),
            orders,
            inboxes,
            answers,
            line,
            outgoing,
            sums,
            leaving: false,
        }
    }

    /// Works until all ranks' work is done.
    pub(super) fn work(mut self) {
        let mut pace = Pace::new();
        while !self.done() {
            self.step(&mut pace);
            if let Some(sum) = self.sums.pop_front() {
                let world = Rc::clone(&self.world);
                sum.make(&world, || {
                    self.step(&mut pace);
                    if self.leaving {
                        self.abandon();
                    }
                });
            }
        }
        // An answer that came too late for its question.
        self.converse();
    }

    /// The rank gave a sum up, and went on as if nothing had happened. MPI does not: a sum that has begun
    /// cannot be called off, and nobody could leave.
    fn abandon(&self) -> ! {
        let rank = self.world.rank();
        tell(&format!("rank {rank} failed: it left while a sum of all ranks was unfinished"));
        abort()
    }

    /// Whether everything is sent, and every rank has said that nothing more will come.
    fn done(&self) -> bool {
        self.leaving && self.outgoing.is_empty() && self.inboxes.iter().all(Option::is_none)
    }

    /// Does what there is to do, or waits a moment if that is nothing.
    fn step(&mut self, pace: &mut Pace) {
        let mut busy = self.converse();
        busy |= self.send();
        busy |= self.fetch();
        if busy {
            return pace.event();
        }
        let Some(nap) = pace.nap(self.line.whom() != WaitsFor::Nobody) else {
            return;
        };
        match self.orders.recv_timeout(nap) {
            Ok(order) => {
                self.take(order);
                pace.event();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => sleep(nap),
        }
    }

    /// Takes all orders, and asks and answers; `false` if there was nothing of the kind.
    pub(super) fn converse(&mut self) -> bool {
        let mut busy = false;
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.take(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => break self.leave(),
            }
            busy = true;
        }
        while let Some((from, text)) = self.note(QUESTION) {
            match text.parse() {
                Ok(Note::Ask) => self.tell(from, &Note::Answer(self.line.whom())),
                // Nobody has to be listening any more: the question had a time limit.
                Ok(Note::Answer(whom)) => drop(self.answers.send((from, whom))),
                _ => self.deliver(from, Arrival::Unreadable { text }),
            }
            busy = true;
        }
        busy
    }

    /// Sends a question or an answer; it returns at once, whatever became of the receiver.
    fn tell(&self, to: usize, note: &Note) {
        let text = note.to_string();
        self.world.process_at_rank(to as i32).buffered_send_with_tag(text.as_bytes(), QUESTION);
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Send(parcel) => self.outgoing.push(parcel),
            Order::Sum(sum) => self.sums.push_back(sum),
            Order::Ask(rank) => self.tell(rank, &Note::Ask),
            Order::Look => {}
            Order::Leave => self.leave(),
        }
    }

    fn leave(&mut self) {
        if mem::replace(&mut self.leaving, true) {
            return;
        }
        let me = self.world.rank() as usize;
        let others = (0..self.inboxes.len()).filter(|rank| *rank != me);
        self.outgoing.extend(others.map(|rank| Parcel::note(rank, &Note::Farewell)));
    }

    /// Sends everything that is to be sent now; `false` for nothing.
    fn send(&mut self) -> bool {
        let parcels = mem::take(&mut self.outgoing);
        if parcels.is_empty() {
            return false;
        }
        scope(|scope| {
            let mut pending = Vec::new();
            for parcel in &parcels {
                let to = self.world.process_at_rank(parcel.to as i32);
                let note = to.immediate_send_with_tag(scope, parcel.note.as_slice(), NOTE);
                let part = |part| to.immediate_send_with_tag(scope, part, BYTES);
                let all = iter::once(note).chain(parts(&parcel.bytes).map(part));
                pending.extend(all.map(|request| (parcel.to, request)));
            }
            self.attend(pending, Self::fetch);
        });
        true
    }

    /// Fetches a message that has arrived; `false` if none has.
    fn fetch(&mut self) -> bool {
        let Some((from, text)) = self.note(NOTE) else {
            return false;
        };
        match text.parse() {
            Ok(Note::Tensor { dtype, dims }) => match Arrival::len(dtype, &dims) {
                Some(len) => {
                    let bytes = self.bytes(from, len);
                    self.deliver(from, Arrival::Tensor { dtype, dims, bytes });
                }
                None => self.deliver(from, Arrival::Unreadable { text }),
            },
            Ok(Note::Farewell) => self.inboxes[from] = None,
            _ => self.deliver(from, Arrival::Unreadable { text }),
        }
        true
    }

    /// A note of this kind that has arrived, and from whom.
    fn note(&self, kind: Tag) -> Option<(usize, String)> {
        let (message, status) = self.world.any_process().immediate_matched_probe_with_tag(kind)?;
        let from = status.source_rank() as usize;
        let (text, _) = (message, status).matched_receive_vec::<u8>();
        Some((from, String::from_utf8_lossy(&text).into_owned()))
    }

    /// The bytes of a tensor whose note has come. Their sender is sending them at this moment.
    fn bytes(&mut self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        scope(|scope| {
            let sender = self.world.process_at_rank(from as i32);
            let part = |part| (from, sender.immediate_receive_into_with_tag(scope, part, BYTES));
            let pending = parts_mut(&mut bytes).map(part).collect();
            // Nothing else is fetched meanwhile: it could be this sender's next message.
            self.attend(pending, |_| false);
        });
        bytes
    }

    /// Puts an arrival where the line will look for it. If the rank has left, nobody will.
    fn deliver(&self, from: usize, arrival: Arrival) {
        if let Some(inbox) = &self.inboxes[from] {
            drop(inbox.send(arrival));
        }
    }
}
