//! The exercises of the checkout in which the command runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use harness::cli::UsageError;
use serde_json::Value;

use super::cargo;

pub const PACKAGE: &str = "exercises";

pub const HERE: &str = "run this in a checkout of the course";

/// The most names that are suggested for an unknown name.
const OFFERED: usize = 3;

/// A suggested name has at most one other letter for so many letters.
const NEAR: usize = 2;

#[derive(Clone, Debug)]
pub struct Tree {
    pub root: PathBuf,
    pub package: PathBuf,
    pub target: PathBuf,
    /// The folder of cargo's intermediate files: `target`, unless the user's settings name another one.
    pub build: PathBuf,
    pub edition: String,
    /// In the order of the package's manifest. Never empty.
    pub exercises: Vec<Exercise>,
}

#[derive(Clone, Debug)]
pub struct Exercise {
    /// `ch02_ring`: the name of its file and of its program.
    pub name: String,
    /// The folder of the package.
    folder: PathBuf,
}

impl Tree {
    /// Finds the workspace upwards from the current folder, and its exercises.
    pub fn find() -> anyhow::Result<Self> {
        let metadata = cargo::metadata()?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let root = PathBuf::from(text(&metadata["workspace_root"]));
        let mut packages = list(&metadata["packages"]).into_iter();
        let package = packages
            .find(|package| package["name"] == PACKAGE)
            .with_context(|| format!("{HERE}: {} has no package `{PACKAGE}`", root.display()))?;
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().unwrap_or(&root).to_owned();
        let exercise = |target: &Value| {
            let exercise = Exercise { name: text(&target["name"]), folder: folder.clone() };
            (exercise.file() == Path::new(&text(&target["src_path"]))).then_some(exercise)
        };
        let mut exercises: Vec<_> = list(&package["targets"]).iter().filter_map(exercise).collect();
        // cargo lists targets by name; the manifest has them in the course's order.
        let manifest =
            fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
        exercises.sort_by_key(|exercise| manifest.find(&format!("\"{}\"", exercise.name)));
        if exercises.is_empty() {
            bail!("the package `{PACKAGE}` names no program `NAME` with the path \"NAME.rs\"");
        }
        let [target, build] =
            ["target_directory", "build_directory"].map(|name| text(&metadata[name]).into());
        let edition = text(&package["edition"]);
        Ok(Self { root, package: folder, target, build, edition, exercises })
    }

    /// The exercise with this name, or the only exercise with this topic (`ring`), beginning (`ch01_p`) or part (`entropy`).
    /// The path of a file of the exercise is a name, too. Fails when no exercise fits, or several.
    pub fn named(&self, asked: &str) -> anyhow::Result<&Exercise> {
        let is_name = |part: &&str| self.exercises.iter().any(|exercise| exercise.name == *part);
        let mut parts = asked.split(['/', '\\']).map(|part| part.trim_end_matches(".rs"));
        let wanted = parts.find(is_name).unwrap_or(asked.trim_end_matches('/'));
        let wanted = wanted.to_lowercase().replace('-', "_");
        let fits: [fn(&Exercise, &str) -> bool; 4] = [
            |exercise, wanted| exercise.name == wanted,
            |exercise, wanted| exercise.topic() == wanted,
            |exercise, wanted| exercise.name.starts_with(wanted),
            |exercise, wanted| exercise.name.contains(wanted),
        ];
        let fitting = |fits: fn(&Exercise, &str) -> bool| -> Vec<&Exercise> {
            self.exercises.iter().filter(|exercise| fits(exercise, &wanted)).collect()
        };
        let fitting = fits.map(fitting).into_iter().find(|fitting| !fitting.is_empty());
        let refusal = match fitting.as_deref() {
            Some([exercise]) => return Ok(exercise),
            Some(several) => format!("'{asked}' fits several exercises: {}", names(several)),
            None => {
                let changes = |exercise: &&Exercise| {
                    let to = |name: &str| strsim::damerau_levenshtein(&wanted, name);
                    to(&exercise.name).min(to(exercise.topic()))
                };
                let mut nearest: Vec<&Exercise> = self.exercises.iter().collect();
                nearest.retain(|exercise| NEAR * changes(exercise) <= wanted.chars().count());
                nearest.sort_by_key(changes);
                nearest.truncate(OFFERED);
                let instead = match names(&nearest) {
                    none if none.is_empty() => "`cargo course list` shows all".to_owned(),
                    names => format!("the nearest: {names}"),
                };
                format!("no exercise is called '{asked}'; {instead}")
            }
        };
        Err(UsageError::new(refusal).into())
    }

    /// A path relative to the workspace's folder.
    pub fn relative<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// The page that the check of an exercise names, if the page exists.
    pub fn page(&self, exercise: &Exercise) -> Option<PathBuf> {
        let page = self.root.join(exercise.header()?.0);
        page.is_file().then_some(page)
    }
}

impl Exercise {
    /// The file that the learner edits.
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.rs", self.name))
    }

    pub fn check(&self) -> PathBuf {
        self.folder.join("checks").join(format!("{}.rs", self.name))
    }

    /// Whether the stage's program can run with the answer.
    pub fn has_run(&self) -> bool {
        self.folder.join("runs").join(format!("{}.rs", self.name)).is_file()
    }

    /// A file of our answers: `solution.rs`, `hint.md`, or `wrong.diff` with the mistakes.
    pub fn answer(&self, file: &str) -> PathBuf {
        self.folder.with_file_name("answers").join(&self.name).join(file)
    }

    /// `ch02` of `ch02_ring`.
    pub fn chapter(&self) -> &str {
        self.name.split_once('_').map_or(&self.name, |(chapter, _)| chapter)
    }

    /// `ring` of `ch02_ring`.
    fn topic(&self) -> &str {
        self.name.split_once('_').map_or(&self.name, |(_, topic)| topic)
    }

    pub fn text(&self) -> anyhow::Result<String> {
        let file = self.file();
        let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8");
        let text = read(&file).and_then(|bytes| String::from_utf8(bytes).map_err(no_text));
        text.with_context(|| {
            format!("{} (`cargo course reset {}` brings it back)", file.display(), self.name)
        })
    }

    /// The page and the title, from the check's first line: "//! Chapter 2, `book/src/PAGE.md`: TITLE." The learner may
    /// delete the same line of the exercise.
    fn header(&self) -> Option<(String, String)> {
        let text = fs::read_to_string(self.check()).ok()?;
        let (_, rest) = text.lines().next()?.split_once('`')?;
        let (page, title) = rest.split_once("`: ")?;
        Some((page.to_owned(), title.trim_end_matches('.').to_owned()))
    }

    /// The title of the exercise. Empty if the check has none.
    pub fn title(&self) -> String {
        self.header().map(|(_, title)| title).unwrap_or_default()
    }

    pub fn heading(&self) -> String {
        format!("{}: {}", self.name, self.title()).trim_end_matches(": ").to_owned()
    }
}

/// Reads a regular file. Fails for a pipe, which may keep its reader waiting for ever.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file; move it away first"));
    }
    fs::read(path)
}

fn names(exercises: &[&Exercise]) -> String {
    exercises.iter().map(|exercise| exercise.name.as_str()).collect::<Vec<_>>().join(", ")
}
