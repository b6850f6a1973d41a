//! Each rule of the book finds what it is there for: a small book that keeps them all, and one fault at a
//! time.

mod exercises;
mod includes;
mod pages;

use crate::*;

const SUMMARY: &str = "book/src/SUMMARY.md";
const PAGE: &str = "book/src/one.md";
const OTHER: &str = "book/src/two.md";
const CODE: &str = "01-stage/src/lib.rs";
const OUTPUT: &str = "book/outputs/run.txt";
const RECORDINGS: &str = "book/outputs/machine.json";
const RECORDED: &str = "book/outputs/recorded.html";
const DATA: &str = "book/data/times.json";
const FIGURE: &str = "book/figures/drawing.svg";
const EXERCISE: &str = "tests/exercises/ch01_adding.rs";

fn small_book() -> TempDir {
    let files = [
        (SUMMARY, "# Summary\n\n[One](one.md)\n- [Two](two.md)\n"),
        (
            PAGE,
            "# One\n\nA step takes 27.1 ms<!-- data: times.json/rows/0/median -->, 29 % of theirs; see [two](two.md#a-heading) and\n\
             [the web](https://example.com).\n\n```rust\n{{#include ../../01-stage/src/lib.rs:adding}}\n```\n\n\
             <figure>\n{{#include ../figures/drawing.svg}}\n<figcaption>Drawn.</figcaption>\n</figure>\n\n\
             ```console\n{{#include ../outputs/run.txt}}\n```\n{{#include ../outputs/recorded.html:run}}\n\nThe run took 6.1 s.\n",
        ),
        (
            OTHER,
            "# Two\n\n## A heading\n\nDo `ch01_adding`:\n\n```console,fails\n$ cargo course check ch01_adding\n```\n\n\
             ```text,sketch\nx ← y\n```\n\nLight needs 3.3 ns for a metre. <!-- source: physics -->\n",
        ),
        (CODE, "// ANCHOR: adding\nfn add() {}\n// ANCHOR_END: adding\n"),
        (OUTPUT, "$ cargo run\nloss 0.29  6.1 s\n"),
        (
            RECORDINGS,
            r#"{"run": {"machine": {"processor": "P", "cores": 2, "instruction_sets": [], "memory": null,
                "system": "S"}, "date": null, "seconds": 6}}"#,
        ),
        (
            RECORDED,
            "<!-- ANCHOR: run -->\n<p class=\"recorded\">Recorded on P, 2 cores, in 6 s.</p>\n\
             <!-- ANCHOR_END: run -->\n",
        ),
        (
            DATA,
            r#"{"rows": [{"unit": "seconds", "median": 0.02708, "ratio": {"median": 0.2851}}]}"#,
        ),
        (FIGURE, "<svg role=\"img\" aria-label=\"a line\">\n<line/>\n</svg>\n"),
        (EXERCISE, "//! Set on book/src/two.md.\nfn todo() {}\n"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(folder.path(), path, text);
    }
    folder
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn problems(root: &Path) -> Vec<String> {
    let problems = Book::open(root).unwrap().problems().unwrap();
    problems.iter().map(ToString::to_string).collect()
}

/// Replaces a part of one file and expects what is told then, and nothing besides.
#[track_caller]
fn fault(path: &str, part: &str, replacement: &str, told: &[&str]) {
    let folder = small_book();
    let text = fs::read_to_string(folder.path().join(path)).unwrap();
    assert!(text.contains(part), "{path} has no {part:?}");
    fs::write(folder.path().join(path), text.replacen(part, replacement, 1)).unwrap();
    expect(&folder, told);
}

#[track_caller]
fn addition(path: &str, text: &str, told: &[&str]) {
    let folder = small_book();
    write(folder.path(), path, text);
    expect(&folder, told);
}

#[track_caller]
fn expect(folder: &TempDir, told: &[&str]) {
    let problems = problems(folder.path());
    assert_eq!(problems.len(), told.len(), "{problems:#?}");
    for (problem, part) in problems.iter().zip(told) {
        assert!(problem.contains(part), "{problem:?} does not say {part:?}");
    }
}

#[test]
fn a_book_that_keeps_all_rules_has_no_problems() {
    expect(&small_book(), &[]);
}
