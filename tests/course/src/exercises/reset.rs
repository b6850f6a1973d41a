//! `cargo course solution`, and `cargo course reset`: restores the original of an exercise, and puts the learner's text aside.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _, stderr, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use harness::cli::UsageError;
use harness::report::{line, paragraph};

use super::given::{self, write};
use super::progress::{FOLDER, Progress, Standing};
use super::tree::{self, Exercise, Tree};

pub fn run(tree: &Tree, exercise: &Exercise, yes: bool) -> anyhow::Result<()> {
    let name = &exercise.name;
    let path = exercise.file();
    let (given, is_copy) = given::original(tree, exercise).with_context(|| {
        let path = tree.relative(&path);
        format!("the original of {path} is not known here, and is in a fresh copy of the course")
    })?;
    let question = format!("Bring {name} back as it was given, and put your version aside?");
    if on_disk(&path)?.as_ref() != Some(&given) && !yes && !confirm(&question)? {
        return Ok(line("Nothing was changed")?);
    }
    // After the question: an editor may save another version while the learner decides.
    let mine = on_disk(&path)?;
    let mut aside = None;
    if mine.as_ref() != Some(&given) {
        // In this order, a failure never loses the learner's text.
        aside = mine.as_ref().map(|mine| put_aside(tree, exercise, mine)).transpose()?;
        replace(&path, mine.as_deref(), &given)?;
    }
    Progress::forget(tree, exercise)?;
    // A learner may have edited the exercise before the first command.
    let found =
        "your first `cargo course` command found it; a fresh copy of the course has the original";
    let as_before = if is_copy { found } else { "it was given" };
    paragraph(format_args!("{} is as {as_before}", tree.relative(&path)))?;
    if let Some(aside) = aside {
        line(format_args!("what you had written is in {}", tree.relative(&aside)))?;
    }
    Ok(())
}

/// Prints the course's solution. Asks first while the learner's answer does not pass.
pub fn solution(tree: &Tree, exercise: &Exercise, yes: bool) -> anyhow::Result<()> {
    let solved = Progress::load(tree)?.of(exercise) == Standing::Solved;
    let question = format!("{} is not solved yet. Show our solution?", exercise.name);
    if !solved && !yes && !confirm(&question)? {
        let name = &exercise.name;
        return Ok(line(format_args!("A hint may be enough: cargo course hint {name}"))?);
    }
    let path = exercise.answer("solution.rs");
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    Ok(line(text.trim_end())?)
}

/// Asks a question. Enter means no. Fails without a terminal.
fn confirm(question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        let refusal = format!("nobody can be asked here: {question} If so, add --yes");
        return Err(UsageError::new(refusal).into());
    }
    let mut terminal = stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Stores the learner's text under an unused name, and returns the path.
fn put_aside(tree: &Tree, exercise: &Exercise, text: &[u8]) -> anyhow::Result<PathBuf> {
    let named = |number| tree.root.join(FOLDER).join(format!("{}-{number}.rs", exercise.name));
    let free = (1..).map(named).find(|path| !path.exists()).context("a number is free")?;
    write(&free, text)?;
    Ok(free)
}

/// The learner's text, or `None` without a file.
fn on_disk(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match tree::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// Replaces the text that was put aside. Fails when the file has another text.
fn replace(path: &Path, put_aside: Option<&[u8]>, text: &[u8]) -> anyhow::Result<()> {
    if on_disk(path)?.as_deref() != put_aside {
        bail!("{} was saved just now, and stays as it is; try again", path.display());
    }
    write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_aside_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ch01_sum.rs");
        let saved = |text: &str| fs::write(&path, text).expect("it can be written");
        let replaced = |put_aside| replace(&path, put_aside, b"given").map(|()| fs::read(&path));
        for (put_aside, newer) in [(None, "newer"), (Some(&b"older"[..]), "newer")] {
            saved(newer);
            let refused = replaced(put_aside).expect_err("another text").to_string();
            assert!(refused.contains("ch01_sum.rs was saved just now"), "{refused}");
            assert_eq!(fs::read(&path).expect("it is there"), newer.as_bytes());
        }
        replaced(Some(b"newer")).expect("the same text").expect("it is there");
        assert_eq!(fs::read(&path).expect("it is there"), b"given");
        fs::remove_file(&path).expect("it is there");
        replaced(Some(b"given")).expect_err("it has gone");
        replaced(None).expect("there is none").expect("it is there");
        assert_eq!(fs::read(&path).expect("it is there"), b"given");
    }
}
