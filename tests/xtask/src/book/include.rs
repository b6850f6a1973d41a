//! Every include leads to a file, and to an anchor in it; every anchor is included somewhere.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::directive::Include;
use super::outputs::FOLDER;
use super::page::Page;
use super::{Book, Problem, files_below, relative};

static ANCHOR: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"ANCHOR(_END)?:\s*([\w-]+)").expect("a valid expression"));

pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for page in book.pages() {
        for include in &page.includes {
            if let Some(what) = wrong(book, page, include)? {
                problems.push(Problem::on(page, include.line, what));
            }
        }
    }
    Ok(problems)
}

fn wrong(book: &Book, page: &Page, include: &Include) -> io::Result<Option<String>> {
    let Include { kind, path, anchor, .. } = include;
    if kind != "include" {
        return Ok(Some(format!("{{{{#{kind} …}}}}: pages use #include alone")));
    }
    let Some(file) = book.resolve(page, path).filter(|file| book.root.join(file).is_file()) else {
        return Ok(Some(format!("there is no file {path}")));
    };
    let Some(anchor) = anchor else { return Ok(None) };
    let text = std::fs::read_to_string(book.root.join(&file))?;
    if anchor.chars().all(|c| c.is_ascii_digit() || c == ':') {
        if !file.starts_with(FOLDER) {
            return Ok(Some(format!("{path}:{anchor}: lines move, so name an anchor")));
        }
        // Of an output, some lines can be shown. mdBook shows nothing in place of lines that are not there.
        let (first, last) = anchor.split_once(':').unwrap_or((anchor, anchor));
        let (lines, number) = (text.lines().count(), |text: &str| text.parse::<usize>().ok());
        let there = number(first).zip(number(last));
        let there = there.is_some_and(|(first, last)| 1 <= first && first <= last && last <= lines);
        return Ok((!there)
            .then(|| format!("{path}:{anchor}: the last line is between the first and {lines}")));
    }
    let anchors = Anchors::of(&text);
    Ok(match (anchors.begins(anchor), anchors.ends(anchor)) {
        (true, true) => None,
        (true, false) => Some(format!("{}: \"ANCHOR_END: {anchor}\" is missing", file.display())),
        _ => Some(format!("{} has no anchor {anchor}", file.display())),
    })
}

/// Anchors in the stages, the engine and the exercises that no page includes, that do not end, or that are there twice.
pub fn check_anchors_are_used(book: &Book) -> io::Result<Vec<Problem>> {
    let mut used: BTreeSet<(PathBuf, &str)> = BTreeSet::new();
    for page in book.pages() {
        for include in &page.includes {
            if let (Some(file), Some(anchor)) = (book.resolve(page, &include.path), &include.anchor)
            {
                used.insert((file, anchor));
            }
        }
    }
    let mut problems = Vec::new();
    for folder in source_folders(&book.root)? {
        for path in files_below(&folder, "rs")? {
            let file = relative(&path, &book.root);
            let anchors = Anchors::of(&std::fs::read_to_string(&path)?);
            for (line, name) in &anchors.begin {
                let twice = anchors.begin.iter().filter(|(_, other)| other == name).count() > 1;
                let what = if twice {
                    format!("anchor {name} is in this file twice")
                } else if !anchors.ends(name) {
                    format!("anchor {name} does not end: \"ANCHOR_END: {name}\" is missing")
                } else if !used.contains(&(file.clone(), name.as_str())) {
                    format!("no page includes anchor {name}")
                } else {
                    continue;
                };
                problems.push(Problem { file: file.clone(), line: Some(*line), what });
            }
        }
    }
    Ok(problems)
}

/// Where a course's code is: the numbered stages, the engine and the exercises.
fn source_folders(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("engine"), root.join("tests/exercises")];
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name.starts_with(|first: char| first.is_ascii_digit()) {
            folders.push(path);
        }
    }
    Ok(folders)
}

struct Anchors {
    begin: Vec<(usize, String)>,
    end: Vec<String>,
}

impl Anchors {
    fn of(text: &str) -> Self {
        let mut anchors = Self { begin: Vec::new(), end: Vec::new() };
        for (line, words) in text.lines().enumerate() {
            let Some(found) = ANCHOR.captures(words) else { continue };
            let name = found[2].to_owned();
            if found.get(1).is_some() {
                anchors.end.push(name);
            } else {
                anchors.begin.push((line + 1, name));
            }
        }
        anchors
    }

    fn begins(&self, name: &str) -> bool {
        self.begin.iter().any(|(_, begin)| begin == name)
    }

    fn ends(&self, name: &str) -> bool {
        self.end.iter().any(|end| end == name)
    }
}
