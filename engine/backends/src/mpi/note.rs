//! What one rank's postman writes to another's.

use std::fmt;
use std::str::FromStr;

use candle_core::DType;

use super::waiting::WaitsFor;

/// A short text that travels in front of a tensor, or alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A tensor's bytes follow: `tensor f32 2 3`.
    Tensor { dtype: DType, dims: Vec<usize> },
    /// The sender's work is done, and nothing but answers will follow: `farewell`.
    Farewell,
    /// Whom does the receiver wait for? `ask`
    Ask,
    /// `answer 3`, `answer all`, `answer nobody`, `answer held 3`
    Answer(WaitsFor),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { dtype, dims } => {
                write!(f, "tensor {}", dtype.as_str())?;
                dims.iter().try_for_each(|size| write!(f, " {size}"))
            }
            Self::Farewell => f.write_str("farewell"),
            Self::Ask => f.write_str("ask"),
            Self::Answer(WaitsFor::Rank(rank)) => write!(f, "answer {rank}"),
            Self::Answer(WaitsFor::HeldUpBy(rank)) => write!(f, "answer held {rank}"),
            Self::Answer(WaitsFor::All) => f.write_str("answer all"),
            Self::Answer(WaitsFor::Nobody) => f.write_str("answer nobody"),
        }
    }
}

/// Not a note: the sender is another program, or another version of this one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

impl FromStr for Note {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let mut words = text.split(' ');
        let kind = words.next();
        let note = match kind {
            Some("tensor") => {
                let dtype = words.next().and_then(|word| word.parse().ok()).ok_or(Unreadable)?;
                let dims = words.by_ref().map(number).collect::<Result<_, _>>()?;
                Self::Tensor { dtype, dims }
            }
            Some("farewell") => Self::Farewell,
            Some("ask") => Self::Ask,
            Some("answer") => Self::Answer(match words.next().ok_or(Unreadable)? {
                "all" => WaitsFor::All,
                "nobody" => WaitsFor::Nobody,
                "held" => WaitsFor::HeldUpBy(number(words.next().ok_or(Unreadable)?)?),
                rank => WaitsFor::Rank(number(rank)?),
            }),
            _ => return Err(Unreadable),
        };
        words.next().map_or(Ok(note), |_| Err(Unreadable))
    }
}

fn number(word: &str) -> Result<usize, Unreadable> {
    word.parse().map_err(|_| Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let of = |dtype, dims: &[usize]| Note::Tensor { dtype, dims: dims.to_vec() };
        for note in [
            of(DType::F32, &[2, 3]),
            of(DType::BF16, &[]),
            of(DType::I64, &[0]),
            of(DType::U8, &[usize::MAX, 1]),
            Note::Farewell,
            Note::Ask,
            Note::Answer(WaitsFor::Nobody),
            Note::Answer(WaitsFor::All),
            Note::Answer(WaitsFor::Rank(7)),
            Note::Answer(WaitsFor::HeldUpBy(7)),
        ] {
            assert_eq!(note.to_string().parse(), Ok(note));
        }
    }

    #[test]
    fn anything_else_cannot() {
        for text in [
            "",
            "tensor",
            "tensor f33 1",
            "tensor f32 -1",
            "answer",
            "answer x",
            "answer held",
            "ask 1",
            "hello",
        ] {
            assert_eq!(text.parse::<Note>(), Err(Unreadable), "{text}");
        }
    }
}
