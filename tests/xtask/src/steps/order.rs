//! The order of messages in steps. The messages of a step can travel at the same time.
//!
//! The speed of the threads says nothing about an algorithm. A rank sends its messages in its own order, each after the
//! arrival of all messages that the rank took earlier, and it takes messages in its own order. In one step, the link of a
//! rank carries at most one message out and one message in. Each message travels as early as these rules allow.

use std::collections::VecDeque;

use anyhow::ensure;

use super::Message;
use super::recorder::Event;

/// Returns the messages of all ranks' events, step by step. A step has the order of the senders.
/// Fails when a message is never taken, or when ranks take messages in an order in which they cannot arrive.
pub(super) fn in_steps(mut logs: Vec<VecDeque<Event>>) -> anyhow::Result<Vec<Vec<Message>>> {
    // The place of the event in which a rank takes its next message.
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
        // A message that arrives in this step is sent on in the next step.
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
