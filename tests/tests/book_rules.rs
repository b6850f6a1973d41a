//! Each rule of the book finds what it is there for: a small book that keeps them all, and one fault at a
//! time.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::fs;
use std::path::Path;

use course_tests::book::{Book, built, commands};
use tempfile::TempDir;

const SUMMARY: &str = "book/src/SUMMARY.md";
const PAGE: &str = "book/src/one.md";
const OTHER: &str = "book/src/two.md";
const CODE: &str = "01-stage/src/lib.rs";
const OUTPUT: &str = "book/outputs/run.txt";
const RECORDINGS: &str = "book/outputs/machine.json";
const DATA: &str = "book/data/times.json";
const FIGURE: &str = "book/figures/drawing.svg";
const EXERCISE: &str = "tests/exercises/ch01_adding/exercise.rs";

/// A checkout that keeps every rule.
fn small_book() -> TempDir {
    let files = [
        (SUMMARY, "# Summary\n\n[One](one.md)\n- [Two](two.md)\n"),
        (
            PAGE,
            "# One\n\nA step takes 27.1 ms, 29 % of theirs, and 3.5× as fast; see [two](two.md#a-heading) and\n\
             [the web](https://example.com).\n\n```rust\n{{#include ../../01-stage/src/lib.rs:adding}}\n```\n\n\
             <figure>\n{{#include ../figures/drawing.svg}}\n<figcaption>Drawn.</figcaption>\n</figure>\n\n\
             ```console\n{{#include ../outputs/run.txt}}\n```\n\nThe run took 6.1 s.\n",
        ),
        (
            OTHER,
            "# Two\n\n## A heading\n\nDo `ch01_adding`:\n\n```console,fails\n$ cargo test --test ch01_adding\n```\n\n\
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

/// Adds a file, likewise.
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

#[test]
fn the_summary_has_every_page_once_and_nothing_else() {
    fault(SUMMARY, "- [Two](two.md)\n", "", &["book/src/two.md: is not in SUMMARY.md"]);
    fault(
        SUMMARY,
        "two.md",
        "to.md",
        &["SUMMARY.md:4: there is no page \"to.md\"", "two.md: is not"],
    );
    fault(SUMMARY, "[Two]", "[One](one.md)\n- [Two]", &["SUMMARY.md:4: one.md is listed twice"]);
    fault(SUMMARY, "two.md", "", &["there is no page \"\"", "two.md: is not in"]);
}

#[test]
fn a_comment_stands_behind_what_it_is_about() {
    fault(
        PAGE,
        "\n[the web]",
        "\n<!-- source: a book --> [the web]",
        &["one.md:4: a comment begins this line"],
    );
    fault(PAGE, "\n[the web]", " <!-- source: a book -->\n[the web]", &[]);
}

#[test]
fn an_include_leads_to_a_file_and_an_anchor() {
    let unused = "lib.rs:1: no page includes anchor adding";
    fault(
        PAGE,
        "lib.rs:adding",
        "lib.rs:ading",
        &[unused, "one.md:7: 01-stage/src/lib.rs has no anchor ading"],
    );
    fault(
        PAGE,
        "lib.rs:adding",
        "bib.rs:adding",
        &[unused, "one.md:7: there is no file ../../01-stage/src/bib.rs"],
    );
    fault(PAGE, "lib.rs:adding", "lib.rs:1:3", &[unused, "lines move, so name an anchor"]);
    fault(PAGE, "#include ../../01", "#rustdoc_include ../../01", &["pages use #include alone"]);
    fault(
        PAGE,
        "../figures/drawing.svg",
        "../figures/draw.svg",
        &[
            "drawing.svg: no page includes this figure",
            "one.md:11: there is no file ../figures/draw.svg",
        ],
    );
    fault(
        PAGE,
        "../../01-stage",
        "../../../../01-stage",
        &[unused, "there is no file ../../../../01-stage"],
    );
}

#[test]
fn an_anchor_begins_once_ends_and_is_included() {
    let missing = "\"ANCHOR_END: adding\" is missing";
    fault(CODE, "// ANCHOR_END: adding\n", "", &[missing, missing]);
    fault(
        CODE,
        "fn add",
        "// ANCHOR: adding\nfn add",
        &["lib.rs:1: anchor adding is in this file twice", "lib.rs:2: "],
    );
    addition(
        "02-stage/src/a.rs",
        "// ANCHOR: b\n// ANCHOR_END: b\n",
        &["02-stage/src/a.rs:1: no page includes anchor b"],
    );
}

#[test]
fn code_is_included_or_says_that_it_is_a_sketch() {
    fault(OTHER, "text,sketch", "text", &["two.md:11: this code is not from the course's crates"]);
    fault(
        PAGE,
        "lib.rs:adding}}\n",
        "lib.rs:adding}}\nadd();\n",
        &["one.md:6: this code is not from"],
    );
    fault(OTHER, "```text,sketch\nx ← y\n```", "    x ← y", &["two.md:11: indented code"]);
    fault(OTHER, "x ← y\n", "", &[]);
    fault(OTHER, "text,sketch\nx ← y\n", "rust\n", &["an empty code block"]);
}

#[test]
fn a_console_block_is_a_whole_output_or_commands() {
    let typed = "$ cargo test --test ch01_adding\n";
    fault(OTHER, typed, &format!("{typed}ok\n"), &["two.md:7: \"ok\" is no command"]);
    fault(OTHER, typed, "", &["an empty console block"]);
    fault(OTHER, "console,fails", "console,fail", &["`fail` behind `console`"]);
    fault(
        PAGE,
        "run.txt}}",
        "run.txt:1}}",
        &["one.md:15: a recorded output is shown whole", "one.md:16: "],
    );
    fault(PAGE, "```console", "```text", &["one.md:15: ../outputs/run.txt is an output"]);
    fault(
        PAGE,
        "../outputs/run.txt",
        "../../01-stage/src/lib.rs",
        &[
            "run.txt: no page shows this output",
            "one.md:15: ../../01-stage/src/lib.rs is not below book/outputs",
        ],
    );
}

#[test]
fn an_output_is_shown_begins_with_its_command_and_was_recorded() {
    fault(OUTPUT, "$ cargo", "cargo", &["run.txt: its first line is not the command"]);
    fault(
        OUTPUT,
        "loss 0.29  6.1 s\n",
        "",
        &[
            "run.txt: not recorded yet: `cargo course outputs run`",
            "one.md:19: \"6.1 s\" is in no output",
        ],
    );
    fault(
        RECORDINGS,
        "\"run\"",
        "\"ran\"",
        &["there is no output ran.txt", "run.txt: not recorded yet"],
    );
    fault(RECORDINGS, "}}", "", &["machine.json: "]);
    addition(
        "book/outputs/more.txt",
        "$ ls\nx\n",
        &["more.txt: no page shows", "more.txt: not recorded"],
    );
}

#[test]
fn a_figure_works_inside_a_page() {
    fault(FIGURE, "<line/>\n", "\n<line/>\n", &["drawing.svg: a blank line"]);
    fault(FIGURE, "<svg", "<?xml version=\"1.0\"?>\n<svg", &["<svg …> to </svg> and nothing else"]);
    fault(FIGURE, "role=\"img\" ", "", &["readers who cannot see it"]);
    fault(FIGURE, "<line/>", "<image href=\"https://example.com/x.png\"/>", &["fetches something"]);
    fault(FIGURE, "<line/>", "<script>1</script>", &["fetches something"]);
    addition(
        "book/figures/more.svg",
        "<svg role=\"img\" aria-label=\"\">\n</svg>\n",
        &["no page includes this figure"],
    );
}

#[test]
fn a_link_within_the_book_leads_to_a_page_and_a_heading() {
    fault(PAGE, "two.md#a-heading", "too.md", &["one.md:3: there is no too.md"]);
    fault(PAGE, "two.md#a-heading", "two.md#heading", &["book/src/two.md has no heading #heading"]);
    fault(PAGE, "two.md#a-heading", "../../README.md", &["is not in the book"]);
    fault(PAGE, "two.md#a-heading", "../../../../README.md", &["is not in the book"]);
    fault(PAGE, "[two](two.md#a-heading)", "[two][2]", &["[two][2] has no definition"]);
    fault(PAGE, "two.md#a-heading", "#one", &[]);
}

#[test]
fn an_exercise_and_its_page_name_each_other() {
    fault(EXERCISE, "two.md", "three.md", &["exercise.rs: there is no page book/src/three.md"]);
    fault(EXERCISE, "two.md", "one.md", &["book/src/one.md does not name this exercise"]);
    fault(EXERCISE, "//! Set on book/src/two.md.\n", "", &["names no page"]);
    fault(OTHER, "`ch01_adding`", "`ch01_added`", &["two.md:5: there is no exercise ch01_added"]);
}

#[test]
fn a_number_with_a_unit_was_measured_or_has_a_source() {
    let nowhere = |number: &str| format!("\"{number}\" is in no output and in no data file");
    fault(PAGE, "27.1 ms", "27.3 ms", &[&nowhere("27.3 ms")]);
    fault(PAGE, "27.1 ms", "27.1 µs", &[&nowhere("27.1 µs")]);
    fault(PAGE, "29 %", "31 %", &[&nowhere("31 %")]);
    fault(PAGE, "3.5×", "3.6×", &[&nowhere("3.6 ×")]);
    // One digit fits too much: 27 ms would do, 30 ms would not.
    fault(PAGE, "27.1 ms", "27 ms", &[]);
    fault(PAGE, "27.1 ms", "30 ms", &[&nowhere("30 ms")]);
    fault(PAGE, "6.1 s", "6.2 s", &[&nowhere("6.2 s")]);
    fault(OTHER, " <!-- source: physics -->", "", &["two.md:15: \"3.3 ns\" is in no output"]);
    fault(OTHER, "source: physics", "source:", &[&nowhere("3.3 ns")]);
    // A caption is read as well.
    fault(PAGE, "Drawn.", "Drawn in 12 s.", &[&nowhere("12 s")]);
    // The command is not what was measured.
    fault(OUTPUT, "$ cargo run", "$ sleep 27.3 ms", &[]);
}

#[test]
fn the_commands_of_pages_are_known_with_their_marks() {
    let folder = small_book();
    let told: Vec<_> = commands::all(&Book::open(folder.path()).unwrap())
        .unwrap()
        .into_iter()
        .map(|command| (command.page, command.line, command.text, command.marks))
        .collect();
    let fails = vec!["fails".to_owned()];
    assert_eq!(
        told,
        [
            ("one.md".to_owned(), 15, "cargo run".to_owned(), vec![]),
            ("two.md".to_owned(), 7, "cargo test --test ch01_adding".to_owned(), fails),
        ]
    );
    let recordings = fs::read_to_string(folder.path().join(RECORDINGS)).unwrap();
    write(folder.path(), RECORDINGS, &recordings.replace("\"seconds\": 6", "\"seconds\": 60"));
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!(commands[0].marks, ["long"]);
    let fails = recordings.replace("\"seconds\": 6", "\"seconds\": 6, \"fails\": true");
    write(folder.path(), RECORDINGS, &fails);
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!(commands[0].marks, ["fails"]);
    // In the order in which they are read, whatever the files are called.
    write(folder.path(), SUMMARY, "# Summary\n\n[Two](two.md)\n- [One](one.md)\n");
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!((&*commands[0].page, &*commands[1].page), ("two.md", "one.md"));
}

#[test]
fn a_built_page_loads_nothing_from_another_host() {
    let told = |name: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "html/page.html", "<p><a href=\"https://example.com\">there</a>");
        write(folder.path(), &format!("html/{name}"), text);
        let problems = built::check(&folder.path().join("html")).unwrap();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (name, text) in [
        ("a.html", "<link rel=\"stylesheet\"\n href=\"css/a.css\"><script src='a.js'></script>"),
        ("a.css", "@font-face { src: url(fonts/a.woff2) } /* https://example.com */"),
        (
            "a.js",
            "// https://example.com\nfetch('toc.html'); fetch_later('https://play.rust-lang.org/x')",
        ),
    ] {
        assert!(told(name, text).is_empty(), "{name}: {:?}", told(name, text));
    }
    for (name, text) in [
        ("a.html", "<link rel=\"stylesheet\"\n href=\"https://example.com/a.css\">"),
        ("a.html", "<img alt='' src=//example.com/a.png>"),
        ("a.html", "<div style=\"background: url('http://example.com/a.png')\">"),
        ("a.html", "<pre><pre class=\"playground\"><code>"),
        ("a.svg", "<svg><image href=\"https://example.com/a.png\"/></svg>"),
        ("a.css", "@import \"https://example.com/a.css\";"),
        ("a.css", "@font-face { src: url(https://example.com/a.woff2) }"),
        ("a.js", "fetch('https://example.com/a.json')"),
        ("a.js", "script.src = \"https://example.com/a.js\""),
    ] {
        assert_eq!(told(name, text).len(), 1, "{name}: {text}: {:?}", told(name, text));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(built::check(empty.path()).is_err());
}

const INDEX: &str = "book/src/exercises.md";
const ENTRIES: &str = "tests/exercises/Cargo.toml";

/// A book with two exercises, an index of them, and their manifest.
fn book_with_an_index(rows: &str) -> TempDir {
    let folder = small_book();
    let exercises = "name = \"exercises\"\n[[test]]\nname = \"ch01_adding\"\npath = \"a\"\n\n\
                     [[test]]\nname = \"ch01_more\"\n\n[[test]]\nname = \"verify\"\n";
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
    addition(ENTRIES, "[[test]]\nname = \"ch01_adding\"\n", &["there is no index, exercises.md"]);
}
