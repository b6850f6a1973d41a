//! Messages in steps: what can travel at the same time.
//!
//! How fast the threads happened to be says nothing about an algorithm. What counts is what has to wait for
//! what: a rank sends its messages in its own order, each not before all has arrived that it took earlier,
//! and takes messages in its own order. In one step a rank's link carries at most one message out and one
//! in. Within that, everything happens as early as it can.

use std::collections::VecDeque;

use anyhow::bail;

use super::Message;
use super::recorder::Event;

/// What a rank has still to do.
#[derive(Debug, Default)]
struct Plan {
    /// Its messages, each with how many it has to take before.
    sends: VecDeque<(usize, Message)>,
    /// From whom it takes its messages.
    takes: VecDeque<usize>,
    /// How many it has taken.
    taken: usize,
}

impl Plan {
    fn new(events: Vec<Event>) -> Self {
        let mut plan = Self::default();
        for event in events {
            match event {
                Event::Sent(message) => plan.sends.push_back((plan.takes.len(), message)),
                Event::Took(from) => plan.takes.push_back(from),
            }
        }
        plan
    }
}

/// The messages of all ranks' events, step by step; within a step in the order of their senders.
/// Fails when a message is never taken, or when ranks take them in an order in which they cannot arrive.
pub(super) fn in_steps(logs: Vec<Vec<Event>>) -> anyhow::Result<Vec<Vec<Message>>> {
    let mut plans: Vec<Plan> = logs.into_iter().map(Plan::new).collect();
    let mut steps = Vec::new();
    while plans.iter().any(|plan| !plan.sends.is_empty()) {
        let can_send = |&from: &usize| {
            let plan = &plans[from];
            plan.sends.front().is_some_and(|(before, message)| {
                *before <= plan.taken && plans[message.to].takes.front() == Some(&from)
            })
        };
        // All are found before the first one counts as arrived: what arrives in a step is sent on in the next.
        let senders: Vec<usize> = (0..plans.len()).filter(can_send).collect();
        let sent = senders.into_iter().filter_map(|from| plans[from].sends.pop_front());
        let messages: Vec<Message> = sent.map(|(_, message)| message).collect();
        if messages.is_empty() {
            let waiting = plans.iter().find_map(|plan| plan.sends.front());
            bail!("no message can go before another: {waiting:?} is never taken");
        }
        for message in &messages {
            plans[message.to].takes.pop_front();
            plans[message.to].taken += 1;
        }
        steps.push(messages);
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(from: usize, to: usize) -> Event {
        Event::Sent(Message { from, to, chunks: vec![0], sum_of: vec![from], bytes: 4 })
    }

    fn pairs(logs: Vec<Vec<Event>>) -> Vec<Vec<(usize, usize)>> {
        let steps = in_steps(logs).unwrap();
        let pair = |message: &Message| (message.from, message.to);
        steps.iter().map(|messages| messages.iter().map(pair).collect()).collect()
    }

    #[test]
    fn a_link_carries_one_message_each_way_in_a_step() {
        let exchange = vec![vec![sent(0, 1), Event::Took(1)], vec![sent(1, 0), Event::Took(0)]];
        assert_eq!(pairs(exchange), [vec![(0, 1), (1, 0)]]);
        let out = vec![vec![sent(0, 1), sent(0, 2)], vec![Event::Took(0)], vec![Event::Took(0)]];
        assert_eq!(pairs(out), [[(0, 1)], [(0, 2)]]);
        // Rank 1's comes first, since rank 2 takes it first.
        let into = vec![vec![sent(0, 2)], vec![sent(1, 2)], vec![Event::Took(1), Event::Took(0)]];
        assert_eq!(pairs(into), [[(1, 2)], [(0, 2)]]);
    }

    #[test]
    fn what_arrives_is_sent_on_in_the_next_step() {
        let chain = vec![
            vec![sent(0, 1)],
            vec![Event::Took(0), sent(1, 2)],
            vec![Event::Took(1), sent(2, 3)],
            vec![Event::Took(2)],
        ];
        assert_eq!(pairs(chain), [[(0, 1)], [(1, 2)], [(2, 3)]]);
    }

    #[test]
    fn a_message_that_nobody_takes_is_told() {
        let error = in_steps(vec![vec![sent(0, 1)], vec![]]).unwrap_err();
        assert!(error.to_string().contains("never taken"), "{error}");
    }
}
