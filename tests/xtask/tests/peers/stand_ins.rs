//! A shell script in place of both sides, with answers that are known.

use super::alone;
use crate::*;

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/stand-in.sh");

/// A folder with these answers, and those that every run asks for.
pub(crate) fn answers(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let versions = ("versions.py", r#"{"python": "3.0", "torch": "2.0", "mpi4py": null}"#);
    for (name, answer) in files.iter().chain([&versions]) {
        fs::write(folder.path().join(name), answer).unwrap();
    }
    folder
}

pub(crate) fn peers(answers: &Path, flags: &[&str]) -> Command {
    let mut command = alone(&["peers", "--ours", STAND_IN, "--python", STAND_IN]);
    command.env("ANSWERS", answers);
    command.arg("--output").arg(answers.join("out.json")).args(flags);
    command
}

pub(crate) fn stored(answers: &Path) -> Value {
    serde_json::from_slice(&fs::read(answers.join("out.json")).unwrap()).unwrap()
}
