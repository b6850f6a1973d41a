//! The library of the authors' tool and of the tests: the rules of the book, the data of figures, and the text forms of numbers,
//! files, machines and releases.

#![expect(missing_docs, reason = "the tool and its tests are the only readers")]

use std::path::{Path, PathBuf};

/// A regular expression that is compiled once.
#[macro_export]
macro_rules! pattern {
    ($name:ident, $text:expr $(,)?) => {
        static $name: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new($text).expect("a valid expression"));
    };
}

pub mod book;
pub mod interactive;
pub mod lists;
pub mod machine;
pub mod number;
pub mod pictures;
pub mod release;
pub mod schedules;
pub mod sharded;
pub mod steps;
pub mod stored;

pub use machine::Machine;

/// The checkout that this tool was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("")).to_owned()
}
