//! The channels between ranks: one for every ordered pair, made when either of the two first comes to it.
//!
//! Most pairs never do: in a ring a rank sends to one other, in a tree to a handful. A thousand ranks that were all
//! connected beforehand would have a million channels, half a gigabyte.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::communicator::Received;
use harness::lock::locked;

/// A rank at one of the two ends has let go of it.
#[derive(Debug)]
pub(super) struct Closed;

/// The channels of all ranks.
#[derive(Debug)]
pub(super) struct Channels {
    of_ranks: Vec<Ends>,
}

/// One rank's ends, each under the number of the rank at the other end; `None` once the rank has let go of them.
///
/// Whoever needs both locks of a channel takes the sender's first.
#[derive(Debug)]
// Ranks that send at the same time would otherwise take a line of the cache from each other.
#[repr(align(128))]
struct Ends {
    to: Mutex<Option<BTreeMap<usize, Sender<Received>>>>,
    from: Mutex<Option<BTreeMap<usize, Inbox>>>,
}

/// A channel's end with the receiver. The lock is never contended: it lets the rank's own worker threads share it.
pub(super) type Inbox = Arc<Mutex<Receiver<Received>>>;

impl Channels {
    pub(super) fn new(world_size: usize) -> Self {
        let none = || Ends {
            to: Mutex::new(Some(BTreeMap::new())),
            from: Mutex::new(Some(BTreeMap::new())),
        };
        Self { of_ranks: (0..world_size).map(|_| none()).collect() }
    }

    pub(super) fn world_size(&self) -> usize {
        self.of_ranks.len()
    }

    /// Puts a message into the channel from one rank to another.
    pub(super) fn send(&self, from: usize, to: usize, message: Received) -> Result<(), Closed> {
        let mut mine = locked(&self.of_ranks[from].to);
        let channel = match mine.as_mut().ok_or(Closed)?.entry(to) {
            Entry::Occupied(channel) => channel.into_mut(),
            Entry::Vacant(place) => place.insert(self.connect(from, to).ok_or(Closed)?),
        };
        channel.send(message).map_err(|_| Closed)
    }

    /// Where messages from one rank to another arrive.
    pub(super) fn inbox(&self, from: usize, to: usize) -> Result<Inbox, Closed> {
        let known = || match &*locked(&self.of_ranks[to].from) {
            Some(inboxes) => Ok(inboxes.get(&from).cloned()),
            None => Err(Closed),
        };
        if let Some(inbox) = known()? {
            return Ok(inbox);
        }
        // The sender may make it at this very moment.
        if let Some(theirs) = &mut *locked(&self.of_ranks[from].to)
            && let Entry::Vacant(place) = theirs.entry(to)
            && let Some(channel) = self.connect(from, to)
        {
            place.insert(channel);
        }
        // If there is none now, the sender has ended and has never sent anything.
        known()?.ok_or(Closed)
    }

    /// Makes the channel from one rank to another, if that has not let go of its ends. The sender's lock is held.
    fn connect(&self, from: usize, to: usize) -> Option<Sender<Received>> {
        let mut inboxes = locked(&self.of_ranks[to].from);
        let (sender, receiver) = channel();
        inboxes.as_mut()?.insert(from, Arc::new(Mutex::new(receiver)));
        Some(sender)
    }

    /// Lets go of a rank's ends: whoever waits for it is told so, and whoever sends to it.
    pub(super) fn close(&self, rank: usize) {
        let Ends { to, from } = &self.of_ranks[rank];
        drop((locked(to).take(), locked(from).take()));
    }

    /// Whether a rank has let go of its ends.
    pub(super) fn has_closed(&self, rank: usize) -> bool {
        locked(&self.of_ranks[rank].to).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::communicator::Memory;

    fn message(number: u32) -> Received {
        Received::new(Tensor::new(number, &Device::Cpu).unwrap(), Memory::Own)
    }

    fn next(channels: &Channels, from: usize, to: usize) -> Option<u32> {
        let inbox = channels.inbox(from, to).ok()?;
        let message = locked(&inbox).recv().ok()?;
        Some(message.to_scalar().unwrap())
    }

    #[test]
    fn there_are_channels_between_those_that_exchange_messages_and_no_others() {
        let ranks = 1000;
        let channels = Channels::new(ranks);
        for rank in 0..ranks {
            channels.send(rank, (rank + 1) % ranks, message(7)).unwrap();
        }
        assert_eq!(next(&channels, ranks - 1, 0), Some(7));
        let count = |ends: &Ends| {
            let [to, from] = [
                locked(&ends.to).as_ref().map(BTreeMap::len),
                locked(&ends.from).as_ref().map(BTreeMap::len),
            ];
            assert_eq!((to, from), (Some(1), Some(1)));
        };
        channels.of_ranks.iter().for_each(count);
    }

    /// Both find the same channel, whoever comes first.
    #[test]
    fn sender_and_receiver_may_come_to_a_channel_at_the_same_time() {
        for number in 0..1000 {
            let channels = Channels::new(2);
            thread::scope(|scope| {
                scope.spawn(|| channels.send(0, 1, message(number)).unwrap());
                assert_eq!(next(&channels, 0, 1), Some(number));
            });
        }
    }

    #[test]
    fn what_was_sent_before_the_end_arrives() {
        let channels = Channels::new(3);
        channels.send(0, 1, message(1)).unwrap();
        channels.close(0);
        assert_eq!(next(&channels, 0, 1), Some(1));
        assert_eq!(next(&channels, 0, 1), None);
        // To one that never heard of it, and from one that never talked to it.
        assert_eq!(next(&channels, 0, 2), None);
        assert!(channels.send(2, 0, message(2)).is_err());
        // Nor does it send any more itself.
        assert!(channels.send(0, 2, message(3)).is_err() && channels.inbox(1, 0).is_err());
        assert!(channels.has_closed(0) && !channels.has_closed(1));
    }
}
