//! Recordings of runs: a hash of every tensor in every step, one line of JSON for each.
//!
//! The lines of a step stand in the order in which the step computes the tensors: images, parameters, buffers of rank 0, loss,
//! gradients. After the last step, a recording has parameters and buffers once more, under the number of the next step: a run
//! that resumes this one begins with them.

use std::io;

use serde::{Deserialize, Serialize};

/// One tensor at one time, or the loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counted from 1 over the whole run, also in a run that resumes another.
    pub step: usize,
    /// The rank.
    pub rank: usize,
    /// `images`, `parameter`, `buffer`, `loss` or `gradient`.
    pub kind: String,
    /// The name of the tensor. The name of images is the number of their shard.
    pub name: String,
    /// The hash of type, shape and bytes. The hash of the loss is its bits.
    pub hash: String,
}

/// Reads a recording, without a last line that ends early. Fails when a line is not an entry: the message has its number.
pub fn read(from: impl io::Read) -> io::Result<Vec<Entry>> {
    let entries = serde_json::Deserializer::from_reader(from).into_iter::<Entry>();
    let whole = entries.take_while(|entry| !entry.as_ref().is_err_and(serde_json::Error::is_eof));
    whole.collect::<Result<_, _>>().map_err(|error| {
        // At the end of a line serde_json is at column 0 of the next one.
        let number = error.line() - usize::from(error.line() > 1 && error.column() == 0);
        let text = format!("line {number} is not of a recording: {error}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let line = r#"{"step":1,"rank":0,"kind":"loss","name":"loss","hash":"00"}"#;
        assert_eq!(read(format!("{line}\n{line}\n").as_bytes()).unwrap().len(), 2);
        // A run that was killed in the middle of a line.
        assert_eq!(read(format!("{line}\n{}", &line[..20]).as_bytes()).unwrap().len(), 1);
        let refused = |number, of: &mut dyn io::Read| {
            let error = read(of).unwrap_err().to_string();
            assert!(error.contains(&format!("line {number} is not of a recording")), "{error}");
        };
        refused(2, &mut format!("{line}\nnonsense\n").as_bytes());
        refused(2, &mut format!("{line}\n{}\n{line}\n", &line[..20]).as_bytes());
        // Files without an end.
        refused(1, &mut io::repeat(b'"'));
        refused(1, &mut io::repeat(0));
    }
}
