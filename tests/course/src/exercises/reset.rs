//! `cargo course reset`: an exercise as it was given, from `given.rs` beside it; the reader's text put aside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use harness::report::{file, line};

use super::progress::{FOLDER, Progress};
use super::solution::confirm;
use super::tree::{self, Exercise, Tree};

pub fn run(tree: &Tree, exercise: &Exercise, yes: bool) -> anyhow::Result<()> {
    let name = &exercise.name;
    let given = tree::read(&exercise.given()).with_context(|| {
        let given = exercise.given();
        format!("{}, to be had from a fresh copy of the course", tree.relative(&given))
    })?;
    let path = exercise.file();
    let question = format!("Bring {name} back as it was given, and put your version aside?");
    if on_disk(&path)?.as_deref() != Some(&given[..]) && !yes && !confirm(&question)? {
        line("Nothing was changed")?;
        return Ok(());
    }
    // Not before the question: an editor may save another version while it stands there.
    let mine = on_disk(&path)?;
    let mut aside = None;
    if mine.as_deref() != Some(&given[..]) {
        // In this order: whatever goes wrong, the reader's text is in one place or the other.
        aside = mine.as_ref().map(|mine| put_aside(tree, exercise, mine)).transpose()?;
        replace(&path, mine.as_deref(), &given)?;
    }
    Progress::forget(tree, exercise)?;
    line(format_args!("{} is as it was given", tree.relative(&path)))?;
    if let Some(aside) = aside {
        line(format_args!("what you had written is in {}", tree.relative(&aside)))?;
    }
    Ok(())
}

/// Stores the reader's text, whatever it is, under a name that nothing has yet, and returns it.
fn put_aside(tree: &Tree, exercise: &Exercise, text: &[u8]) -> anyhow::Result<PathBuf> {
    let folder = tree.root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let named = |number: usize| folder.join(format!("{}-{number}.rs", exercise.name));
    let free = (1..).map(named).find(|path| !path.exists()).context("a number is free")?;
    write(&free, text)?;
    Ok(free)
}

/// What the reader has written so far, whatever it is; none where there is no file.
fn on_disk(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match tree::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// Writes a text in place of the one that was put aside, and of no other.
fn replace(path: &Path, put_aside: Option<&[u8]>, text: &[u8]) -> anyhow::Result<()> {
    if on_disk(path)?.as_deref() != put_aside {
        bail!("{} was saved just now, and stays as it is; try again", path.display());
    }
    write(path, text)
}

fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    file::write(path, |file| file.write_all(text)).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_aside_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("exercise.rs");
        let saved = |text: &str| fs::write(&path, text).expect("it can be written");
        let replaced = |put_aside| replace(&path, put_aside, b"given").map(|()| fs::read(&path));
        for (put_aside, newer) in [(None, "newer"), (Some(&b"older"[..]), "newer")] {
            saved(newer);
            let refused = replaced(put_aside).expect_err("another text").to_string();
            assert!(refused.contains("exercise.rs was saved just now"), "{refused}");
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
