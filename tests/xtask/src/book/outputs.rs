//! Recorded outputs: `book/outputs/NAME.txt`, first line the command, and on what each was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Book, Problem, files_below, relative, stem};
use crate::Machine;

/// Below the checkout's root.
pub const FOLDER: &str = "book/outputs";

/// Outputs that take longer are not made again by every check.
const LONG: f64 = 20.0;

/// How an output came about.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Recording {
    pub machine: Machine,
    pub date: Option<String>,
    /// How long its command took.
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fails: bool,
}

impl Recording {
    /// Whether its command takes too long for every check.
    pub fn is_long(&self) -> bool {
        self.seconds > LONG
    }
}

/// `book/outputs/machine.json`: the recordings by the names of their outputs.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Recordings(BTreeMap<String, Recording>);

impl Recordings {
    /// Where they lie, below the checkout's root.
    pub const FILE: &str = "book/outputs/machine.json";

    /// Reads them; none where there is no file.
    pub fn load(root: &Path) -> io::Result<Self> {
        match std::fs::read(root.join(Self::FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            bytes => Ok(serde_json::from_slice(&bytes?)?),
        }
    }

    /// How an output came about.
    pub fn get(&self, name: &str) -> Option<&Recording> {
        self.0.get(name)
    }

    /// Each with the name of its output, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Recording)> {
        self.0.iter().map(|(name, recording)| (&**name, recording))
    }

    /// Takes in a recording, in place of an older one.
    pub fn insert(&mut self, name: &str, recording: Recording) {
        self.0.insert(name.to_owned(), recording);
    }
}

/// Whether an output is of a run on a GPU, by its name.
pub fn needs_gpu(name: &str) -> bool {
    name.starts_with("gpu-")
}

/// The names of all outputs, in order.
pub fn names(root: &Path) -> io::Result<Vec<String>> {
    let files = files_below(&root.join(FOLDER), "txt")?;
    Ok(files.iter().map(|path| stem(path)).collect())
}

/// Outputs that no page shows, without a command, or of which nobody knows where they are from.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let shown = book.included();
    let recordings = match Recordings::load(&book.root) {
        Ok(recordings) => recordings,
        Err(error) => return Ok(vec![Problem::of(Recordings::FILE, error)]),
    };
    let mut problems = Vec::new();
    let files = book.files("outputs", "txt")?;
    for path in &files {
        let file = relative(path, &book.root);
        let text = std::fs::read_to_string(path)?;
        let name = stem(path);
        let mut wrong = |what: String| problems.push(Problem::of(file.clone(), what));
        if !shown.contains(&file) {
            wrong("no page shows this output".to_owned());
        }
        if !text.starts_with("$ ") {
            wrong("its first line is not the command that made it (`$ …`)".to_owned());
        }
        if recordings.get(&name).is_none() || text.lines().nth(1).is_none() {
            wrong(format!("not recorded yet: `cargo xtask outputs {name}`"));
        }
    }
    let names: BTreeSet<String> = files.iter().map(|path| stem(path)).collect();
    for name in recordings.0.keys().filter(|name| !names.contains(*name)) {
        problems.push(Problem::of(Recordings::FILE, format!("there is no output {name}.txt")));
    }
    Ok(problems)
}
