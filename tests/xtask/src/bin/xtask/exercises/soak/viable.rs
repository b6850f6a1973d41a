//! The changes that compile, all in one test binary.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::super::cargo::{self, Diagnostic, Message, cargo};
use super::super::compile;
use super::super::tree::{Exercise, Tree};
use super::super::verify::TARGET;
use super::super::wrong;
use super::mutate::Mutant;
use course::process::How;

/// The compiler finds mistakes in a few passes, and tells only those of the first that finds any.
const ROUNDS: usize = 12;

#[derive(Debug)]
pub(super) struct Viable {
    pub(super) executable: PathBuf,
    /// With the name of the module that each is in.
    pub(super) mutants: Vec<(String, Mutant)>,
}

/// Compiles the solution with each change in a module of its own, and leaves out the changes that do not
/// compile; none after Ctrl-C.
pub(super) fn compile(
    tree: &Tree,
    exercise: &Exercise,
    mutants: Vec<Mutant>,
) -> anyhow::Result<Option<Viable>> {
    let all = tree.target.join("soak");
    // The answers of another exercise would be compiled again.
    if all.exists() {
        fs::remove_dir_all(&all).with_context(|| format!("{}", all.display()))?;
    }
    let mut mutants: Vec<(String, Mutant)> =
        (1..).map(|number: usize| format!("change_{number:03}")).zip(mutants).collect();
    for _ in 0..ROUNDS {
        wrong::write(&all, exercise, mutants.iter().map(|(name, one)| (&**name, &*one.text)))?;
        match round(tree, &all)? {
            Round::Interrupted => return Ok(None),
            Round::Compiled(executable) => {
                let module = |(name, mutant)| (format!("wrong_{name}"), mutant);
                let mutants = mutants.into_iter().map(module).collect();
                return Ok(Some(Viable { executable, mutants }));
            }
            Round::Errors { files, rendered } => {
                let before = mutants.len();
                let stems = files.iter().filter_map(|file| file.file_stem()?.to_str());
                let broken: BTreeSet<&str> = stems.collect();
                mutants.retain(|(name, _)| !broken.contains(&**name));
                if mutants.len() == before {
                    bail!("{} does not compile, and not because of a change:\n{rendered}", TARGET);
                }
            }
        }
    }
    bail!("after {ROUNDS} rounds there are still changes of {} that do not compile", exercise.name)
}

enum Round {
    Compiled(PathBuf),
    /// The files that errors are in, and the compiler's messages.
    Errors {
        files: BTreeSet<PathBuf>,
        rendered: String,
    },
    Interrupted,
}

fn round(tree: &Tree, wrong_answers: &Path) -> anyhow::Result<Round> {
    let mut command = cargo(&tree.root);
    compile::arguments(&mut command, TARGET);
    command.args(["--quiet", "--message-format=json"]).env(compile::WRONG_ANSWERS, wrong_answers);
    let build = cargo::build(&mut command, false)?;
    let succeeded = build.succeeded();
    let (mut executable, mut files, mut rendered) = (None, BTreeSet::new(), String::new());
    for message in build.messages {
        match message {
            Message::Artifact { target, executable: Some(file), .. } if target.name == TARGET => {
                executable = Some(file);
            }
            Message::Compiler { message, .. } if message.level.starts_with("error") => {
                rendered.push_str(message.rendered.as_deref().unwrap_or_default());
                files.extend(places(&message));
            }
            _ => {}
        }
    }
    match (build.how, executable) {
        (How::Interrupted, _) => Ok(Round::Interrupted),
        (_, Some(executable)) if succeeded => Ok(Round::Compiled(executable)),
        _ => Ok(Round::Errors { files, rendered: rendered + &build.said }),
    }
}

/// Where an error is: its own places, and those of its notes, since a mistake in a signature shows in the
/// check that calls it.
fn places(message: &Diagnostic) -> BTreeSet<PathBuf> {
    let own = message.spans.iter().map(|span| span.file_name.clone());
    own.chain(message.children.iter().flat_map(places)).collect()
}
