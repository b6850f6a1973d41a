//! Exercises, the pages that set them, and their index.

use super::{EXERCISE, OTHER, SUMMARY, addition, expect, fault, small_book, write};
use crate::*;

const INDEX: &str = "book/src/exercises.md";
const ENTRIES: &str = "tests/exercises/Cargo.toml";

#[test]
fn an_exercise_and_its_page_name_each_other() {
    fault(EXERCISE, "two.md", "three.md", &["ch01_adding.rs: there is no page book/src/three.md"]);
    fault(EXERCISE, "two.md", "one.md", &["book/src/one.md does not name this exercise"]);
    fault(EXERCISE, "//! Set on book/src/two.md.\n", "", &["names no page"]);
    fault(OTHER, "`ch01_adding`", "`ch01_added`", &["two.md:5: there is no exercise ch01_added"]);
}

/// A book with two exercises, an index of them, and their manifest.
fn book_with_an_index(rows: &str) -> TempDir {
    let folder = small_book();
    let exercises = "name = \"exercises\"\n[[bin]]\nname = \"ch01_adding\"\npath = \"a\"\n\n\
                     [[bin]]\nname = \"ch01_more\"\n\n[[bin]]\nname = \"verify\"\n";
    let more = EXERCISE.replace("adding", "more");
    let pages =
        [(ENTRIES, exercises), (INDEX, rows), (&more, "//! Set on book/src/exercises.md.\n")];
    for (path, text) in pages {
        write(folder.path(), path, text);
    }
    let summary = fs::read_to_string(folder.path().join(SUMMARY)).unwrap();
    write(folder.path(), SUMMARY, &format!("{summary}- [Index](exercises.md)\n"));
    folder
}

#[test]
fn the_index_has_every_exercise_once_and_in_order() {
    let head = "# Index\n\n| exercise | command |\n| --- | --- |\n";
    let (adding, more) = ("| `ch01_adding` | check ch01_adding |\n", "| `ch01_more` | more |\n");
    let index = |rows: &[&str]| book_with_an_index(&format!("{head}{}", rows.concat()));
    expect(&index(&[adding, more]), &[]);
    expect(
        &index(&[more, adding]),
        &["exercises.md:5: here ch01_more, but tests/exercises/Cargo.toml has ch01_adding next"],
    );
    expect(
        &index(&[adding, adding, more]),
        &["exercises.md:6: here ch01_adding, but tests/exercises/Cargo.toml has ch01_more next"],
    );
    expect(
        &index(&[adding, more, adding]),
        &["exercises.md:7: here ch01_adding, but tests/exercises/Cargo.toml has the end next"],
    );
    expect(&index(&[adding, "| `ch01_more` | check ch01_adding |\n"]), &["row of ch01_more names"]);
    let without = index(&[adding, "\nAnd ch01_more.\n"]);
    expect(&without, &["here the end, but tests/exercises/Cargo.toml has ch01_more next"]);
}

#[test]
fn exercises_without_an_index_are_told() {
    addition(ENTRIES, "[[bin]]\nname = \"ch01_adding\"\n", &["there is no index, exercises.md"]);
}
