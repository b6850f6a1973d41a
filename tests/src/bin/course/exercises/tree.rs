//! Where the exercises are: in the checkout that the command is run from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use harness::cli::UsageError;

use super::cargo;

pub(super) const PACKAGE: &str = "exercises";

pub(super) const HERE: &str = "run this in a checkout of the course";

/// So many names are offered in place of one that is none.
const OFFERED: usize = 3;

/// Of so many letters that were typed, one may be another in a name that is offered.
const NEAR: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) package: PathBuf,
    pub(super) target: PathBuf,
    pub(super) edition: String,
    /// In the course's order, which is that of the package's manifest. Never empty.
    pub(super) exercises: Vec<Exercise>,
}

#[derive(Clone, Debug)]
pub(super) struct Exercise {
    /// `ch02_ring`: the name of its folder and of its test target.
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

impl Tree {
    /// Finds the workspace upwards from the current folder, and its exercises. The reader's file of an exercise that has
    /// none yet is made, as it is given.
    pub(super) fn find() -> anyhow::Result<Self> {
        let metadata = cargo::metadata(Path::new("."))?;
        let root = metadata.workspace_root;
        let package = metadata.packages.into_iter().find(|package| package.name == PACKAGE);
        let Some(package) = package else {
            bail!("{HERE}: {} has no package `{PACKAGE}`", root.display())
        };
        let folder = package.manifest_path.parent().unwrap_or(&root).to_owned();
        let exercise = |target: cargo::Target| {
            let exercise = Exercise { folder: folder.clone(), name: target.name };
            (target.src_path == exercise.file()).then_some(exercise)
        };
        let mut exercises: Vec<Exercise> =
            package.targets.into_iter().filter_map(exercise).collect();
        // cargo tells targets by name; the manifest has them in the course's order.
        let manifest = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("{}", package.manifest_path.display()))?;
        exercises.sort_by_key(|exercise| manifest.find(&format!("\"{}\"", exercise.name)));
        if exercises.is_empty() {
            bail!("the package `{PACKAGE}` names no test `NAME` with the path \"NAME/check.rs\"");
        }
        Ok(Self {
            root,
            package: folder,
            edition: package.edition,
            target: metadata.target_directory,
            exercises,
        })
    }

    /// The exercise of that name, or the only one that the name fits: without its chapter (`ring`), at the
    /// beginning (`ch01_p`), anywhere (`entropy`). Or the one that the path of a file is in.
    pub(super) fn named(&self, asked: &str) -> anyhow::Result<&Exercise> {
        let is_name = |part: &&str| self.exercises.iter().any(|exercise| exercise.name == *part);
        let in_path = asked.split(['/', '\\']).find(is_name);
        let wanted =
            in_path.unwrap_or(asked.trim_end_matches('/')).to_lowercase().replace('-', "_");
        let fits: [&dyn Fn(&Exercise) -> bool; 4] = [
            &|exercise| exercise.name == wanted,
            &|exercise| exercise.topic() == wanted,
            &|exercise| exercise.name.starts_with(&wanted),
            &|exercise| exercise.name.contains(&wanted),
        ];
        for fit in fits {
            match self.exercises.iter().filter(|one| fit(one)).collect::<Vec<_>>()[..] {
                [] => {}
                [exercise] => return Ok(exercise),
                ref several => {
                    let names = names(several.iter().copied());
                    let refusal = format!("'{asked}' fits several exercises: {names}");
                    return Err(UsageError::new(refusal).into());
                }
            }
        }
        let changes = |exercise: &Exercise| {
            let to = |name: &str| strsim::damerau_levenshtein(&wanted, name);
            to(&exercise.name).min(to(exercise.topic()))
        };
        let near = |exercise: &&Exercise| NEAR * changes(exercise) <= wanted.chars().count();
        let mut nearest: Vec<&Exercise> = self.exercises.iter().filter(near).collect();
        nearest.sort_by_key(|exercise| changes(exercise));
        nearest.truncate(OFFERED);
        let instead = match names(nearest.into_iter()) {
            none if none.is_empty() => "`cargo course list` shows all".to_owned(),
            names => format!("the nearest: {names}"),
        };
        Err(UsageError::new(format!("no exercise is called '{asked}'; {instead}")).into())
    }

    /// A path as it is told: from the workspace's folder.
    pub(super) fn relative<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// The page of an exercise in `book/src`: of the chapter's pages, such as `ch05-….md` and `ch05b-….md`, the one that
    /// lists the exercise, or else the first. There may be none.
    pub(super) fn page(&self, exercise: &Exercise) -> Option<PathBuf> {
        let is_of_chapter = |page: &PathBuf| {
            let name = page.file_name().unwrap_or_default().to_string_lossy();
            let rest = name.strip_prefix(exercise.chapter()).unwrap_or_default();
            rest.trim_start_matches(char::is_alphabetic).starts_with('-') && rest.ends_with(".md")
        };
        let folder = fs::read_dir(self.root.join("book").join("src")).ok()?;
        let pages = folder.filter_map(|entry| Some(entry.ok()?.path()));
        let mut pages: Vec<PathBuf> = pages.filter(is_of_chapter).collect();
        pages.sort();
        let listed = format!("`tests/exercises/{}.rs`", exercise.name);
        let lists =
            |page: &&PathBuf| fs::read_to_string(page).is_ok_and(|text| text.contains(&listed));
        pages.iter().find(lists).or(pages.first()).cloned()
    }
}

impl Exercise {
    /// What the reader writes.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.rs", self.name))
    }

    /// What the reader starts from.
    pub(super) fn given(&self) -> PathBuf {
        self.file()
    }

    pub(super) fn check(&self) -> PathBuf {
        self.folder.join("checks").join(format!("{}.rs", self.name))
    }

    fn answers(&self) -> PathBuf {
        self.folder.with_file_name("answers").join(&self.name)
    }

    pub(super) fn solution(&self) -> PathBuf {
        self.answers().join("solution.rs")
    }

    pub(super) fn hint(&self) -> PathBuf {
        self.answers().join("hint.md")
    }

    pub(super) fn wrong(&self) -> PathBuf {
        self.answers().join("wrong.diff")
    }

    /// `ch02` of `ch02_ring`.
    pub(super) fn chapter(&self) -> &str {
        self.name.split_once('_').map_or(&self.name, |(chapter, _)| chapter)
    }

    /// `ring` of `ch02_ring`.
    fn topic(&self) -> &str {
        self.name.split_once('_').map_or(&self.name, |(_, topic)| topic)
    }

    pub(super) fn text(&self) -> anyhow::Result<String> {
        let file = self.file();
        let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8");
        let text = read(&file).and_then(|bytes| String::from_utf8(bytes).map_err(no_text));
        text.with_context(|| {
            format!("{} (`cargo course reset {}` brings it back)", file.display(), self.name)
        })
    }

    /// What the exercise is about: what the first line of its comment says after the chapter's page. Empty
    /// where the reader has another comment.
    pub(super) fn title(&self) -> String {
        let text = self.text().unwrap_or_default();
        let comment = text.lines().find_map(|line| line.strip_prefix("//! ")).unwrap_or_default();
        let title = comment.split_once(".md`: ").map_or("", |(_, title)| title);
        title.trim_end_matches('.').to_owned()
    }

    pub(super) fn heading(&self) -> String {
        let heading = format!("{}: {}", self.name, self.title());
        heading.trim_end_matches(": ").to_owned()
    }
}

/// Reads a regular file. What else could have its name, such as a pipe, may keep its reader waiting for ever.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file; move it away first"));
    }
    fs::read(path)
}

fn names<'a>(exercises: impl Iterator<Item = &'a Exercise>) -> String {
    exercises.map(|exercise| exercise.name.as_str()).collect::<Vec<_>>().join(", ")
}
