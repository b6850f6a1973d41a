//! The state of a connection: messages on their way, and questions of other ranks.
//!
//! No call here blocks. Ranks may therefore all send first and receive then, and a rank that was stopped delays only the ranks
//! that need its messages.

#![expect(unsafe_code, reason = "MPI's objects are pointers, which Rust keeps in one thread")]

use std::collections::VecDeque;
use std::mem;

use ::mpi::Tag;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, MatchedReceiveVec as _, Source as _};

use super::transfer::{Header, Transfer, decode_words, encode_words};
use super::wait_graph::{Answer, NOBODY};

/// Marks the header of a message.
const HEADER: Tag = 1;

/// Marks the bytes of a tensor, behind its header.
const BYTES: Tag = 2;

/// Marks a control message: three words, of which the first is one of those below.
const CONTROL: Tag = 3;

/// Asks for which rank the receiver waits.
const ASK: u64 = 0;

/// Answers: the rank that the sender waits for, and whether a part of its message has arrived.
const ANSWER: u64 = 1;

/// Asks rank 0 for the right to report a failure.
const CLAIM: u64 = 2;

/// Grants this right, to the first rank that has asked.
const GRANT: u64 = 3;

/// The state of a connection.
pub(super) struct Progress {
    pub(super) world: SimpleCommunicator,
    rank: usize,
    outgoing: Vec<Transfer<u8>>,
    /// By sender, in the order in which they were sent: every message that has arrived and was not taken. The header is
    /// `None` if the sender is another program.
    incoming: Vec<VecDeque<(Option<Header>, Transfer<u8>)>>,
    /// The rank that this rank waits for, [`NOBODY`] or all.
    pub(super) waits_for: usize,
    /// Of all ranks, since the last question.
    pub(super) answers: Vec<Option<Answer>>,
    /// On rank 0: whether a rank has the right to report a failure.
    granted: bool,
    /// Whether this rank has this right.
    pub(super) may_report: bool,
    /// Whether this rank has begun an all-reduce and given up waiting for it.
    pub(super) gave_up_a_sum: bool,
    /// Whether this rank's work is done.
    pub(super) has_left: bool,
}

// SAFETY: MPI was initialised for several threads. Any thread may use its objects, and a lock lets one thread at a time.
unsafe impl Send for Progress {}

impl Progress {
    pub(super) fn new(world: SimpleCommunicator) -> Self {
        let (rank, world_size) = (world.rank() as usize, world.size() as usize);
        Self {
            world,
            rank,
            outgoing: Vec::new(),
            incoming: (0..world_size).map(|_| VecDeque::new()).collect(),
            waits_for: NOBODY,
            answers: vec![None; world_size],
            granted: false,
            may_report: false,
            gave_up_a_sum: false,
            has_left: false,
        }
    }

    /// Starts to send a message.
    pub(super) fn send(&mut self, to: usize, header: Vec<u8>, bytes: Vec<u8>) {
        self.start(to, header, HEADER);
        self.start(to, bytes, BYTES);
    }

    fn start(&mut self, to: usize, bytes: Vec<u8>, tag: Tag) {
        let mut transfer = Transfer::send(&self.world.process_at_rank(to as i32), bytes, tag);
        if !transfer.is_complete() {
            self.outgoing.push(transfer);
        }
    }

    /// Takes the next message of a rank, if it has arrived. A farewell stays.
    pub(super) fn take(&mut self, from: usize) -> Option<(Option<Header>, Vec<u8>)> {
        if self.has_farewell(from) {
            return Some((Some(Header::Farewell), Vec::new()));
        }
        let (header, bytes) = self.incoming[from].pop_front_if(|(_, bytes)| bytes.is_complete())?;
        Some((header, bytes.into_memory()))
    }

    /// Asks all ranks for which rank they wait.
    pub(super) fn ask(&mut self) {
        self.answers.fill(None);
        self.answers[self.rank] = Some(self.answer());
        for other in self.other_ranks() {
            self.control(other, [ASK, 0, 0]);
        }
    }

    /// Asks for the right to report a failure.
    pub(super) fn claim(&mut self) {
        self.control(0, [CLAIM, 0, 0]);
    }

    /// This rank's work is done.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
        let farewell = Header::Farewell.encode().unwrap_or_default();
        for other in self.other_ranks() {
            self.start(other, farewell.clone(), HEADER);
        }
    }

    fn other_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.incoming.len()).filter(move |&other| other != rank)
    }

    /// Lets MPI work: fetches every message that has arrived, whether this rank waits for it or not, and answers questions.
    pub(super) fn advance(&mut self) {
        while let Some((from, header)) = self.probe(HEADER) {
            let header = Header::decode(&header);
            let len = header.as_ref().map_or(0, Header::following_bytes);
            let process = self.world.process_at_rank(from as i32);
            let bytes = Transfer::receive(&process, len, BYTES);
            self.incoming[from].push_back((header, bytes));
        }
        while let Some((from, message)) = self.probe(CONTROL) {
            match decode_words(&message)[..] {
                [ASK, ..] => {
                    let Answer { waits_for, arriving } = self.answer();
                    self.control(from, [ANSWER, waits_for as u64, arriving.into()]);
                }
                [ANSWER, waits_for, arriving] => {
                    let (waits_for, arriving) = (waits_for as usize, arriving != 0);
                    self.answers[from] = Some(Answer { waits_for, arriving });
                }
                [CLAIM, ..] if !mem::replace(&mut self.granted, true) => {
                    self.control(from, [GRANT, 0, 0]);
                }
                [GRANT, ..] => self.may_report = true,
                _ => {}
            }
        }
        self.outgoing.retain_mut(|transfer| !transfer.is_complete());
        if self.has_left {
            // Nobody takes these messages any more.
            for from in self.other_ranks() {
                while !self.has_farewell(from) && self.take(from).is_some() {}
            }
        }
    }

    /// Receives a small message that has arrived, and returns its sender.
    fn probe(&self, tag: Tag) -> Option<(usize, Vec<u8>)> {
        let (message, status) = self.world.any_process().immediate_matched_probe_with_tag(tag)?;
        let from = status.source_rank() as usize;
        Some((from, (message, status).matched_receive_vec().0))
    }

    fn control(&mut self, to: usize, words: [u64; 3]) {
        self.start(to, encode_words(words), CONTROL);
    }

    fn answer(&self) -> Answer {
        let arriving = self.incoming.get(self.waits_for).is_some_and(|it| !it.is_empty());
        Answer { waits_for: self.waits_for, arriving }
    }

    fn has_farewell(&self, from: usize) -> bool {
        matches!(self.incoming[from].front(), Some((Some(Header::Farewell), _)))
    }

    /// Whether a message is on its way.
    pub(super) fn is_busy(&self) -> bool {
        !self.outgoing.is_empty() || self.incoming.iter().any(|messages| !messages.is_empty())
    }

    /// Whether everything is sent, and the work of all ranks is done.
    pub(super) fn is_done(&self) -> bool {
        self.has_left
            && self.outgoing.is_empty()
            && self.other_ranks().all(|other| self.has_farewell(other))
    }
}
