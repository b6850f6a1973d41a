//! Messages in steps: what can travel at the same time.
//!
//! The speed of the threads says nothing about an algorithm. What counts is what has to wait for what: a rank sends its
//! messages in its own order, each not before all has arrived that it took earlier, and takes messages in its own order. In
//! one step a rank's link carries at most one message out and one in. Within that, everything happens as early as it can.

use std::collections::VecDeque;

use anyhow::ensure;

use super::Message;
use super::recorder::Event;

/// The messages of all ranks' events, step by step; within a step in the order of their senders.
/// Fails when a message is never taken, or when ranks take them in an order in which they cannot arrive.
pub(super) fn in_steps(mut logs: Vec<VecDeque<Event>>) -> anyhow::Result<Vec<Vec<Message>>> {
    // Where a rank takes its next message, if it does.
    let take = |log: &VecDeque<Event>| log.iter().position(|event| matches!(event, Event::Took(_)));
    let mut steps = Vec::new();
    while logs.iter().flatten().any(|event| matches!(event, Event::Sent(_))) {
        let can_send = |log: &VecDeque<Event>| match log.front() {
            Some(Event::Sent(message)) => {
                let to = &logs[message.to];
                let next = take(to).map(|place| &to[place]);
                (next == Some(&Event::Took(message.from))).then(|| message.clone())
            }
            _ => None,
        };
        // All are found before the first one counts as arrived: what arrives in a step is sent on in the next.
        let messages: Vec<Message> = logs.iter().filter_map(can_send).collect();
        ensure!(!messages.is_empty(), "no message can go before another: one is never taken");
        for message in &messages {
            logs[message.from].pop_front();
            let to = &mut logs[message.to];
            take(to).and_then(|place| to.remove(place));
        }
        steps.push(messages);
    }
    Ok(steps)
}
