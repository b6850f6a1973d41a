//! The changes that compile, all in one program.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;

use super::super::verify::build::{self, Module, TARGET};
use super::super::wrong;
use super::mutate::Mutant;
use course::exercises::cargo;
use course::exercises::tree::{Exercise, Tree};
use course::process::How;

/// The compiler finds errors in a few passes, and prints only the errors of the first pass that has some.
const ROUNDS: usize = 12;

#[derive(Debug)]
pub(super) struct Viable {
    pub(super) executable: PathBuf,
    pub(super) mutants: Vec<(Module, Mutant)>,
}

/// Compiles the solution with each change in a separate module, and leaves out the changes that do not compile; none
/// after Ctrl-C.
pub(super) fn compile(
    tree: &Tree,
    exercise: &Exercise,
    mutants: Vec<Mutant>,
) -> anyhow::Result<Option<Viable>> {
    let folder = tree.target.join("soak");
    let module = |(number, mutant): (usize, Mutant)| {
        let name = format!("change_{number:03}");
        let path = folder.join(&exercise.name).join(format!("{name}.rs"));
        (Module { exercise: exercise.name.clone(), name, path, strict: false }, mutant)
    };
    let mut mutants: Vec<(Module, Mutant)> = (1..).zip(mutants).map(module).collect();
    wrong::write(
        &folder,
        exercise,
        mutants.iter().map(|(one, mutant)| (&*one.name, &*mutant.text)),
    )?;
    for _ in 0..ROUNDS {
        let modules: Vec<Module> = mutants.iter().map(|(module, _)| module.clone()).collect();
        let mut command = build::command(tree, "build", &folder.join("candidates.rs"), &modules)?;
        command.args(["--quiet", "--message-format=json"]);
        let build = cargo::build(&mut command, false, &|| true)?;
        if let How::Interrupted = build.how {
            return Ok(None);
        }
        if let Some(executable) = build::executable(&build) {
            return Ok(Some(Viable { executable, mutants }));
        }
        let (files, rendered) = build::errors(&build);
        let broken: BTreeSet<PathBuf> = files.into_iter().collect();
        let before = mutants.len();
        mutants.retain(|(module, _)| !broken.contains(&module.path));
        if mutants.len() == before {
            let said = rendered + &build.said;
            bail!("{TARGET} does not compile, and not because of a change:\n{said}");
        }
    }
    bail!("after {ROUNDS} rounds there are still changes of {} that do not compile", exercise.name)
}
