//! An exercise names the page that sets it, and the page names the exercise.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::{Book, Problem};

static PAGE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"book/src/([\w-]+\.md)").expect("a valid expression"));
pub(super) static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\bch\d\d_[a-z0-9_]+\b").expect("a valid expression"));

/// Exercises that no page sets, or that name another one; names of exercises that are none.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let folder = Path::new("tests/exercises");
    let names = names(&book.root.join(folder))?;
    let mut problems = Vec::new();
    for name in &names {
        let file = folder.join(name).with_extension("rs");
        let text = std::fs::read_to_string(book.root.join(&file))?;
        // Its comment at the top, not what the code below may say.
        let top: String = text.lines().take_while(|line| line.starts_with("//")).collect();
        let what = match PAGE.captures(&top) {
            None => "its comment at the top names no page (book/src/….md)".to_owned(),
            Some(found) => match book.page(Path::new(&found[1])) {
                None => format!("there is no page {}", &found[0]),
                Some(page) if NAME.find_iter(&page.text).any(|named| named.as_str() == name) => {
                    continue;
                }
                Some(_) => format!("{} does not name this exercise", &found[0]),
            },
        };
        problems.push(Problem::of(file, what));
    }
    for page in book.pages() {
        for (line, words) in page.text.lines().enumerate() {
            for named in
                NAME.find_iter(words).filter(|n| !names.iter().any(|name| name == n.as_str()))
            {
                let what = format!("there is no exercise {}", named.as_str());
                problems.push(Problem::on(page, line + 1, what));
            }
        }
    }
    Ok(problems)
}

/// The exercises, each a file; none where there is no such folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
