//! The originals of the exercises and of their checks.
//!
//! git has the originals: of a check in the last commit, of an exercise in the last commit that changed its check, because a
//! learner commits answers and does not edit checks. In a checkout without git, the first command copies both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use harness::report::file;

use super::progress::FOLDER;
use super::tree::{self, Exercise, Tree};

/// The mark of an exercise that has its task.
const TASK: &str = "// TODO";

/// Copies every exercise and every check that has no copy, in a checkout without git. An exercise without its task was edited
/// before this command, and gets no copy.
pub fn keep(tree: &Tree) -> anyhow::Result<()> {
    if tree.root.join(".git").exists() {
        return Ok(());
    }
    for exercise in &tree.exercises {
        for path in [exercise.file(), exercise.check()] {
            // A command that needs an unreadable file reports the error.
            let Ok(text) = tree::read(&path) else { continue };
            let has_task = String::from_utf8_lossy(&text).contains(TASK);
            let copy = copy_of(tree, &path);
            if !copy.exists() && (has_task || path == exercise.check()) {
                write(&copy, &text)?;
            }
        }
    }
    Ok(())
}

/// The original of an exercise, and whether it is a copy. Fails when neither a copy nor git has the original.
pub fn original(tree: &Tree, exercise: &Exercise) -> anyhow::Result<(Vec<u8>, bool)> {
    let copy = copy_of(tree, &exercise.file());
    if copy.exists() {
        let text = tree::read(&copy).with_context(|| format!("{}", copy.display()))?;
        return Ok((text, true));
    }
    let check = format!("checks/{}.rs", exercise.name);
    let commit = git(tree, &["rev-list", "--max-count=1", "HEAD", "--", &check])?;
    let commit = String::from_utf8_lossy(&commit).trim().to_owned();
    let text = git(tree, &["cat-file", "blob", &format!("{commit}:./{}.rs", exercise.name)])?;
    Ok((text, false))
}

/// The exercises whose check is not the original, each with the command that restores its check.
pub fn edited_checks(tree: &Tree) -> Vec<(&Exercise, String)> {
    // A file that was only written again is no change after a refresh.
    let _ = git(tree, &["update-index", "-q", "--refresh"]);
    let changed = ["diff-index", "-z", "--name-only", "--relative", "HEAD", "--", "checks"];
    let changed = String::from_utf8(git(tree, &changed).unwrap_or_default()).unwrap_or_default();
    let restoring = |exercise: &Exercise| {
        let (check, copy) = (exercise.check(), copy_of(tree, &exercise.check()));
        let (path, from) = (tree.relative(&check), tree.relative(&copy));
        let of_check = |path: &str| !path.is_empty() && check.ends_with(path);
        match copy.exists() {
            true if fs::read(&copy).ok() == fs::read(&check).ok() => None,
            true => Some(format!("cp {from} {path}")),
            false if changed.split('\0').any(of_check) => {
                Some(format!("git checkout HEAD -- {path}"))
            }
            false => None,
        }
    };
    tree.exercises.iter().filter_map(|one| Some((one, restoring(one)?))).collect()
}

/// The command that restores the check of an exercise, if the check was edited.
pub fn edited_check(tree: &Tree, exercise: &Exercise) -> Option<String> {
    let mut edited = edited_checks(tree).into_iter();
    edited.find(|(one, _)| one.name == exercise.name).map(|(_, command)| command)
}

/// The copy of a file of the package.
fn copy_of(tree: &Tree, path: &Path) -> PathBuf {
    let inside = path.strip_prefix(&tree.package).unwrap_or(path);
    tree.root.join(FOLDER).join("given").join(inside)
}

/// The output of git, run in the folder of the exercises: the checkout may be a part of a repository. The commands are those for
/// scripts, whose output no setting of the user changes. Fails with all of git's message, which may have a remedy, and when git
/// prints nothing.
fn git(tree: &Tree, words: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new("git");
    command.args(words).current_dir(&tree.package);
    // A hook of git, and a shell in it, name a repository, which need not be the checkout.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    let answer = command.output().context("git cannot be started")?;
    if !answer.status.success() || answer.stdout.is_empty() {
        match String::from_utf8_lossy(&answer.stderr).trim() {
            "" => bail!("git has no commit with it"),
            why => bail!("git: {why}"),
        }
    }
    Ok(answer.stdout)
}

/// Writes a file, and makes its folder.
pub fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let written = fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| file::write(path, |file| file.write_all(text)));
    written.with_context(|| format!("{}", path.display()))
}
