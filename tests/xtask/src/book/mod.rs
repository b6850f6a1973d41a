//! The book's pages, and the rules that they keep.
//!
//! mdBook puts *nothing* where an anchor is missing and only logs a file that is not there. So the rules
//! are checked here, on the sources and without mdBook, in every test run.

pub mod built;
pub mod code;
pub mod commands;
pub mod comments;
pub mod dedent;
pub mod directive;
pub mod exercises;
pub mod figures;
pub mod folded;
pub mod include;
pub mod index;
pub mod links;
pub mod listings;
pub mod numbers;
pub mod outputs;
pub mod page;
pub mod recorded;
pub mod summary;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use page::Page;

/// The book in a checkout.
#[derive(Clone, Debug)]
pub struct Book {
    root: PathBuf,
    pages: Vec<Page>,
}

/// A rule that is not kept, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub file: PathBuf,
    /// From 1; `None` where it is about the whole file.
    pub line: Option<usize>,
    pub what: String,
}

/// Finds what is wrong with a book, in one respect.
pub type Rule = fn(&Book) -> io::Result<Vec<Problem>>;

/// All rules, by name.
pub const RULES: [(&str, Rule); 14] = [
    ("summary", summary::check),
    ("includes", include::check),
    ("anchors", include::check_anchors_are_used),
    ("code", code::check),
    ("comments", comments::check),
    ("outputs", outputs::check),
    ("recorded", recorded::check),
    ("figures", figures::check),
    ("links", links::check),
    ("listings", listings::check),
    ("folded", folded::check),
    ("exercises", exercises::check),
    ("index", index::check),
    ("numbers", numbers::check),
];

impl Book {
    /// Reads the pages of the book in the checkout at `root`.
    pub fn open(root: &Path) -> io::Result<Self> {
        let folder = root.join("book/src");
        let mut pages = Vec::new();
        for path in files_below(&folder, "md")? {
            let text = std::fs::read_to_string(&path)?;
            pages.push(Page::new(relative(&path, &folder), text));
        }
        Ok(Self { root: root.to_owned(), pages })
    }

    /// The checkout.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All pages but the table of contents, by name.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter().filter(|page| page.name != Path::new(summary::FILE))
    }

    /// All pages as they are read: in the order of the table of contents, and then those that it leaves out.
    pub fn in_order(&self) -> Vec<&Page> {
        let mut pages: Vec<&Page> = self.pages().collect();
        let listed = self.page(Path::new(summary::FILE)).map_or(Vec::new(), summary::pages);
        let place = |page: &&Page| listed.iter().position(|name| *name == page.name);
        pages.sort_by_key(|page| place(page).unwrap_or(listed.len()));
        pages
    }

    /// A page by its path below `book/src`.
    pub fn page(&self, name: &Path) -> Option<&Page> {
        self.pages.iter().find(|page| page.name == name)
    }

    /// Everything that is wrong, in order.
    pub fn problems(&self) -> io::Result<Vec<Problem>> {
        let mut problems = Vec::new();
        for (_, rule) in RULES {
            problems.extend(rule(self)?);
        }
        problems.sort();
        Ok(problems)
    }

    /// Files with this ending in a folder of the book; none where there is no such folder.
    fn files(&self, folder: &str, ending: &str) -> io::Result<Vec<PathBuf>> {
        files_below(&self.root.join("book").join(folder), ending)
    }

    /// The files that pages include, below the root.
    fn included(&self) -> BTreeSet<PathBuf> {
        self.pages()
            .flat_map(|page| page.includes.iter().map(move |include| (page, include)))
            .filter_map(|(page, include)| self.resolve(page, &include.path))
            .collect()
    }

    /// Where a path that is written in a page leads, below the root; `None` when it leaves the checkout.
    fn resolve(&self, page: &Page, path: &str) -> Option<PathBuf> {
        let mut resolved = page.path();
        resolved.pop();
        for part in path.split('/') {
            match part {
                "." | "" => {}
                ".." if !resolved.pop() => return None,
                ".." => {}
                part => resolved.push(part),
            }
        }
        Some(resolved)
    }
}

impl Problem {
    /// A problem on a line of a page.
    fn on(page: &Page, line: usize, what: impl fmt::Display) -> Self {
        Self { file: page.path(), line: Some(line), what: what.to_string() }
    }

    /// A problem of a whole file, at a path below the root.
    fn of(file: impl Into<PathBuf>, what: impl fmt::Display) -> Self {
        Self { file: file.into(), line: None, what: what.to_string() }
    }
}

/// `book/src/ch01.md:12: …`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

/// All files with this ending below a folder, sorted; none where there is no such folder.
fn files_below(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A path without the folder that it is in.
fn relative(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_owned()
}

/// The name of a file without folder and ending.
fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
