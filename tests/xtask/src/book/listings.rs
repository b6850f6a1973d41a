//! A chapter prints its code: nearly whole, each part once, below the path of its file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::page::Page;
use super::{Book, Problem};

/// The pages that keep this rule, each with its stage's folder and the files of it that the page prints, `.rs` left out.
const CHAPTERS: [(&str, &str, &str); 8] = [
    (
        "ch01-single-gpu.md",
        "01-single-gpu",
        "src/lenet src/init src/layers src/sgd src/gradient_check src/train",
    ),
    (
        "ch02-all-reduce.md",
        "02-params-and-allreduce",
        "src/params src/communicator/collectives src/communicator/all_reduce/naive \
         src/communicator/all_reduce/one_shot src/communicator/all_reduce/tree \
         src/communicator/all_reduce/ring",
    ),
    (
        "ch03-split-batch.md",
        "03-split-batch",
        "src/split src/gather src/loader src/sampler/mod src/sampler/breakage",
    ),
    (
        "ch04-data-parallel.md",
        "04-scratch-data-parallel",
        "src/train_batch src/train src/replicas src/evaluate src/reproducible src/fixed_tree \
         src/tree_sum",
    ),
    (
        "ch05-concise-wrapper.md",
        "05-concise-wrapper",
        "examples/own_model src/network src/model src/data_parallel src/ddp/bucket \
         src/ddp/reducer src/ddp/worker src/ddp/broken src/optimizer src/resnet",
    ),
    ("ch05b-batch-norm.md", "05-concise-wrapper", "src/batch_norm"),
    (
        "ch06-model-parallel.md",
        "06-model-parallel",
        "src/pipeline/schedule src/pipeline/orders src/pipeline/check src/pipeline/timeline \
         src/pipeline/predict src/pipeline/worker/mod src/pipeline/worker/step \
         src/pipeline/worker/evaluate src/partition",
    ),
    (
        "ch06b-tensor-parallel.md",
        "06-model-parallel",
        "src/mesh src/tensor_parallel/mappings src/tensor_parallel/linear \
         src/tensor_parallel/sharding src/tensor_parallel/group",
    ),
];

/// The percentage of a file's code that its chapter prints, at least.
const AT_LEAST: usize = 80;

/// How far above a listing its path may be, in lines.
const NEAR: usize = 5;

/// Files that a chapter does not print, listings that it prints twice, and listings without a path.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for (name, stage, files) in CHAPTERS {
        if let Some(page) = book.page(Path::new(name)) {
            let files = files.split_whitespace().map(|file| format!("{stage}/{file}.rs"));
            problems.extend(check_page(book, page, files)?);
        }
    }
    Ok(problems)
}

fn check_page(
    book: &Book,
    page: &Page,
    files: impl Iterator<Item = String>,
) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let mut printed: BTreeMap<PathBuf, BTreeSet<usize>> = BTreeMap::new();
    let lines: Vec<&str> = page.text.lines().collect();
    for include in &page.includes {
        let Some(file) = book.resolve(page, &include.path) else { continue };
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let path = file.display().to_string();
        let above = &lines[include.line.saturating_sub(NEAR + 1)..include.line - 1];
        if !above.iter().any(|line| line.contains(&path)) {
            problems.push(Problem::on(page, include.line, format!("no path {path} above it")));
        }
        let source = std::fs::read_to_string(book.root.join(&file))?;
        let of_file = printed.entry(file).or_default();
        for line in lines_of(&source, include.anchor.as_deref()) {
            if !of_file.insert(line) {
                let again = format!("{path}: line {line} is printed twice");
                problems.push(Problem::on(page, include.line, again));
                break;
            }
        }
    }
    for file in files {
        let source = std::fs::read_to_string(book.root.join(&file))?;
        let code = code_lines(&source);
        let none = BTreeSet::new();
        let printed = printed.get(Path::new(&file)).unwrap_or(&none);
        let share = code.intersection(printed).count() * 100 / code.len().max(1);
        if share < AT_LEAST {
            let what = format!("{} prints {share} % of this file", page.name.display());
            problems.push(Problem::of(file, format!("{what}: at least {AT_LEAST} are wanted")));
        }
    }
    Ok(problems)
}

fn lines_of(source: &str, anchor: Option<&str>) -> Vec<usize> {
    let numbered = source.lines().enumerate().map(|(line, text)| (line + 1, text.trim()));
    let Some(anchor) = anchor else { return numbered.map(|(line, _)| line).collect() };
    let (begin, end) = (format!("// ANCHOR: {anchor}"), format!("// ANCHOR_END: {anchor}"));
    let inside = numbered.skip_while(|(_, text)| *text != begin).skip(1);
    inside.take_while(|(_, text)| *text != end).map(|(line, _)| line).collect()
}

/// The lines with code, without comments and tests, counted from 1.
fn code_lines(source: &str) -> BTreeSet<usize> {
    let lines = source.lines().take_while(|line| *line != "#[cfg(test)]").enumerate();
    let code = lines.filter(|(_, text)| !text.trim().is_empty() && !text.trim().starts_with("//"));
    code.map(|(line, _)| line + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! A file.\n\nuse a;\n// ANCHOR: f\nfn f() {\n    // Why.\n    g();\n}\n\
                          // ANCHOR_END: f\n\n#[cfg(test)]\nmod tests {}\n";

    #[test]
    fn comments_and_tests_are_no_code() {
        assert_eq!(code_lines(SOURCE), [3, 5, 7, 8].into());
        assert_eq!(lines_of(SOURCE, Some("f")), [5, 6, 7, 8]);
        assert_eq!(lines_of(SOURCE, None).len(), 12);
    }
}
