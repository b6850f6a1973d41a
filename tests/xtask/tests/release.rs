//! One version, one date, one licence, one oldest compiler: wherever the course names them.

use xtask::release::{disagreements, notes, sections};

use crate::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n## 1.2.0 – 2026-01-02\n\n### Added\n\n- A thing.\n\n\
                         ## 1.1.0 – 2025-01-02\n\n- Less.\n";
const CITATION: &str =
    "cff-version: 1.2.0\ntitle: \"A course\"\nversion: 1.2.0\ndate-released: \"2026-01-02\"\n";

fn of_the_course(name: &str) -> String {
    let path = root().join(name);
    // Git may have been told to end lines as another system does.
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

#[test]
fn the_files_that_name_the_release_agree() {
    let found =
        disagreements(VERSION, &of_the_course("CHANGELOG.md"), &of_the_course("CITATION.cff"));
    assert!(found.is_empty(), "{found:#?}");
}

/// The README's paragraph that stands where others have badges.
fn first_facts() -> String {
    let readme = of_the_course("README.md");
    let paragraph = readme.split("\n\n").find(|paragraph| paragraph.starts_with("Version "));
    paragraph.unwrap().to_owned()
}

#[test]
fn version_and_oldest_compiler_are_what_a_reader_is_told() {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let facts = first_facts();
    assert!(facts.starts_with(&format!("Version {VERSION} (")), "not {VERSION}: {facts}");
    assert!(facts.contains(&format!("· Rust {oldest} or newer ·")), "not {oldest}: {facts}");
    for (file, said) in [
        ("README.md", format!("A Rust toolchain ({oldest} or newer")),
        ("book/src/introduction.md", format!("A Rust toolchain, {oldest} or newer")),
    ] {
        assert!(of_the_course(file).contains(&said), "{file} does not say \"{said}\"");
    }
}

#[test]
fn every_licence_is_there_and_named() {
    let (facts, citation) = (first_facts(), of_the_course("CITATION.cff"));
    for licence in env!("CARGO_PKG_LICENSE").split(" OR ") {
        let file = format!("LICENSE-{}", licence.split('-').next().unwrap().to_uppercase());
        assert!(!of_the_course(&file).is_empty(), "{file} is empty");
        assert!(facts.contains(&format!("[{licence}]({file})")), "no {licence}: {facts}");
        let cited = format!("\n  - {licence}\n");
        assert!(citation.contains(&cited), "CITATION.cff does not have {licence}");
    }
}

#[test]
fn a_release_tells_its_own_section() {
    assert_eq!(notes("1.2.0", CHANGELOG, CITATION).unwrap(), "### Added\n\n- A thing.");
    let versions: Vec<_> = sections(CHANGELOG).into_iter().map(|section| section.version).collect();
    assert_eq!(versions, ["Unreleased", "1.2.0", "1.1.0"]);
}

/// What is told when one text is replaced in changelog and citation.
#[track_caller]
fn told(version: &str, from: &str, to: &str, expected: &str) {
    let (changelog, citation) = (CHANGELOG.replace(from, to), CITATION.replace(from, to));
    let wrong = notes(version, &changelog, &citation).unwrap_err();
    assert!(wrong.iter().any(|what| what.contains(expected)), "no \"{expected}\" in {wrong:#?}");
}

#[test]
fn whatever_stands_against_a_release_is_told() {
    told(
        "1.3.0",
        "",
        "",
        "the newest release in CHANGELOG.md is 1.2.0, Cargo.toml has version 1.3.0",
    );
    told("1.3.0", "", "", "CITATION.cff has version 1.2.0, Cargo.toml 1.3.0");
    told("1.2.0", "## 1", "### 1", "CHANGELOG.md has no release");
    told("1.2.0", " – 2026-01-02", "", "does not date version 1.2.0");
    told("1.2.0", "\"2026-01-02\"", "2026-01-03", "on 2026-01-03, CHANGELOG.md on 2026-01-02");
    told("1.2.0", "\nversion", "\nversions", "CITATION.cff has no version");
    told("1.2.0", "\ndate-released", "\nreleased", "CITATION.cff has no date-released");
    told("1.2.0", "### Added\n\n- A thing.\n", "", "says nothing of version 1.2.0");
    told("1.2.0", "Unreleased\n", "Unreleased\n\n- More.\n", "under \"Unreleased\"");
}

#[test]
fn the_tool_prints_the_notes_or_what_stands_against_them() {
    let run = tool(&["release-notes", VERSION]).assert();
    // While the next release is being written, its changes stand under "Unreleased".
    match notes(VERSION, &of_the_course("CHANGELOG.md"), &of_the_course("CITATION.cff")) {
        Ok(notes) => run.success().stdout(format!("{notes}\n")),
        Err(wrong) => run.code(1).stderr(contains(wrong.join("; "))),
    };
    let asked = tool(&["release-notes", "9.9.9"]).assert().code(1);
    asked.stderr(contains(format!(
        "version 9.9.9 was asked for, and Cargo.toml has version {VERSION}"
    )));
}
