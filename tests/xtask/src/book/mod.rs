//! The book's pages, and the rules that they keep.
//!
//! mdBook puts *nothing* where an anchor is missing, and only logs a missing file. So every test run checks the rules,
//! on the sources and without mdBook.

pub mod built;
mod code;
pub mod commands;
mod exercises;
mod figures;
pub mod outputs;
pub mod page;
mod sources;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use page::Page;
use walkdir::WalkDir;

/// The table of contents.
const CONTENTS: &str = "SUMMARY.md";

/// The folders with files that pages show or name, except the numbered stages.
const FOLDERS: [&str; 3] = ["book", "engine", "tests"];

/// The files among them that the rules read.
const READ: [&str; 8] = ["cu", "html", "json", "md", "rs", "svg", "toml", "txt"];

/// The book in a checkout, and the files that its pages are about.
#[derive(Clone, Debug)]
pub struct Book {
    root: PathBuf,
    /// In the order of the table of contents.
    pages: Vec<Page>,
    contents: Page,
    /// The texts, by their paths below the root.
    files: BTreeMap<PathBuf, String>,
}

/// The problems that a rule has found.
#[derive(Clone, Debug, Default)]
pub struct Found(Vec<String>);

/// Finds the problems of a book, in one respect.
type Rule = fn(&Book, &mut Found);

/// The rules of the book, by name.
const RULES: [(&str, Rule); 8] = [
    ("contents", text::contents),
    ("anchors", sources::anchors),
    ("listings", sources::listings),
    ("folded", sources::folded),
    ("outputs", outputs::files),
    ("figures", figures::check),
    ("exercises", exercises::exercises),
    ("index", exercises::index),
];

/// Lines of a page, each with its mistake.
type Wrong = Vec<(usize, String)>;

/// Finds the problems of a page, in one respect.
type RuleOfPage = fn(&Book, &Page) -> Wrong;

/// The rules of every page and of the table of contents, by name.
const RULES_OF_PAGES: [(&str, RuleOfPage); 7] = [
    ("links", text::links),
    ("comments", text::comments),
    ("numbers", text::numbers),
    ("printed", text::printed),
    ("includes", sources::includes),
    ("code", code::check),
    ("recorded", outputs::recorded),
];

impl Book {
    /// Reads the book of the checkout at `root`.
    pub fn open(root: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(root)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let is_stage = name.starts_with(|first: char| first.is_ascii_digit());
            if is_stage || FOLDERS.contains(&&*name) {
                for path in READ.iter().flat_map(|ending| files_below(&root.join(&name), ending)) {
                    let text = std::fs::read_to_string(&path)?;
                    files.insert(relative(&path, root), text);
                }
            }
        }
        let page = |(path, text): (&PathBuf, &String)| {
            let name = path.strip_prefix(page::FOLDER).ok()?.to_owned();
            (name.extension()? == "md").then(|| Page::new(name, text.clone()))
        };
        let mut pages: Vec<Page> = files.iter().filter_map(page).collect();
        let contents = pages.iter().position(|page| page.name == Path::new(CONTENTS));
        let contents = contents.map_or_else(Page::default, |at| pages.remove(at));
        let place = |page: &Page| {
            contents.links.iter().position(|link| contents.leads_to(link) == page.path())
        };
        pages.sort_by_key(|page| place(page).unwrap_or(usize::MAX));
        Ok(Self { root: root.to_owned(), pages, contents, files })
    }

    /// All pages but the table of contents, in its order.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter()
    }

    /// Everything that is wrong, by rule.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut tell = |name: &str, rule: &dyn Fn(&mut Found)| {
            let mut found = Found::default();
            rule(&mut found);
            problems.extend(found.0.iter().map(|problem| format!("{name}: {problem}")));
        };
        for (name, rule) in RULES {
            tell(name, &|found| rule(self, found));
        }
        for (name, rule) in RULES_OF_PAGES {
            let on = |page: &Page, found: &mut Found| {
                rule(self, page).iter().for_each(|(line, what)| found.on(page, *line, what));
            };
            tell(name, &|found| self.pages().chain([&self.contents]).for_each(|it| on(it, found)));
        }
        problems
    }

    fn page(&self, name: &str) -> Option<&Page> {
        self.pages.iter().find(|page| page.name == Path::new(name))
    }

    /// The text of a file, by its path below the root.
    fn text(&self, file: impl AsRef<Path>) -> Option<&str> {
        self.files.get(file.as_ref()).map(String::as_str)
    }

    /// The files with this ending below a folder, and their texts.
    fn files(&self, folder: &str, ending: &str) -> impl Iterator<Item = (&Path, &str)> {
        let files = self.files.iter().map(|(path, text)| (path.as_path(), text.as_str()));
        files.filter(move |(path, _)| {
            path.starts_with(folder) && path.extension().is_some_and(|it| it == ending)
        })
    }

    /// Whether a page includes a file.
    fn includes(&self, file: &Path) -> bool {
        self.pages.iter().flat_map(|page| &page.includes).any(|include| include.file == file)
    }
}

impl Found {
    fn on(&mut self, page: &Page, line: usize, what: impl fmt::Display) {
        self.at(page.path(), line, what);
    }

    /// `book/src/ch01.md:12: …`
    fn at(&mut self, file: impl AsRef<Path>, line: usize, what: impl fmt::Display) {
        self.0.push(format!("{}:{line}: {what}", file.as_ref().display()));
    }
}

/// All files with this ending below a folder, sorted; none if there is no such folder.
fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let kept = |entry: &walkdir::DirEntry| entry.file_name() != "target";
    let entries = WalkDir::new(folder).sort_by_file_name().into_iter().filter_entry(kept).flatten();
    let paths = entries.map(walkdir::DirEntry::into_path);
    paths.filter(|path| path.extension().is_some_and(|it| it == ending) && path.is_file()).collect()
}

fn relative(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_owned()
}

/// The name of a file without folder and ending.
fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
