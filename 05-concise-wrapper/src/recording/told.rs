//! A difference of two recordings, in words: where it is, and what made it.

use std::fmt;

use super::Entry;
use super::divergence::{Divergence, Gap};

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, equal, gap, is_over, shards } = self;
        let called = |Entry { kind, name, .. }: &Entry| match kind == name {
            true => kind.clone(),
            false => format!("{kind} {name}"),
        };
        let told = |entry: &Option<Entry>| match entry {
            Some(entry) => format!("{} {}", called(entry), entry.hash),
            None => "nothing".to_owned(),
        };
        if let Some(Entry { step, rank, .. }) = first.as_ref().or(second.as_ref()) {
            let what = match gap {
                Some(Gap::Ends(which)) => format!("the {which} recording ends here"),
                _ => "the first difference".to_owned(),
            };
            let when = match is_over {
                true => format!("after step {}", step.saturating_sub(1)),
                false => format!("step {step}"),
            };
            writeln!(f, "{when}, rank {rank}: {what}, after {equal} equal tensors")?;
        }
        writeln!(f, "  first recording:  {}", told(first))?;
        write!(f, "  second recording: {}", told(second))?;
        match gap {
            Some(Gap::Ends(_)) => {
                return write!(f, "\n  in the middle of a step: nothing differs up to there");
            }
            Some(Gap::Lacks(which, entry)) => {
                write!(f, "\n  the {which} recording lacks {} there", called(entry))?;
                return if entry.kind == "images" { write!(f, ", on any rank") } else { Ok(()) };
            }
            None => {}
        }
        match first.as_ref().or(second.as_ref()).map(|entry| entry.kind.as_str()) {
            Some("images") if let Some((first, second)) = shards => write!(
                f,
                "\n  the two cut a batch into {first} and {second} shards: --shards makes them the same on any number of \
                 devices"
            ),
            Some("images") => {
                write!(f, "\n  the two have other images: compare seed, batch and sampler")
            }
            Some("parameter" | "buffer") if *is_over => {
                write!(f, "\n  made by the update of that step")
            }
            Some("parameter" | "buffer") if first.as_ref().is_some_and(|entry| entry.step > 1) => {
                write!(f, "\n  made by the update of the step before")
            }
            Some("parameter" | "buffer") => write!(f, "\n  the two began with other weights"),
            Some("loss") => write!(f, "\n  made by the forward pass"),
            Some("gradient") => {
                write!(f, "\n  made by the backward pass, or by the sum over the ranks")
            }
            _ => Ok(()),
        }
    }
}
