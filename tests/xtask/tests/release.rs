//! One version, one date, one licence, one oldest compiler: wherever the course names them.

use xtask::release::notes;
use xtask::stored;

use crate::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_files_that_name_the_release_agree() {
    let [changelog, citation] =
        ["CHANGELOG.md", "CITATION.cff"].map(|name| stored::text(name).unwrap());
    let asked = tool(&["release-notes", "9.9.9"]).assert().code(1);
    asked.stderr(contains("version 9.9.9 was asked for, and Cargo.toml has"));
    let run = tool(&["release-notes"]).assert();
    // Before a release, the changes are under "Unreleased".
    match notes(VERSION, &changelog, &citation) {
        Ok(notes) => run.success().stdout(format!("{notes}\n")),
        Err(wrong) => {
            assert!(wrong.len() == 1 && wrong[0].contains("\"Unreleased\""), "{wrong:#?}");
            run.code(1).stderr(contains(&*wrong[0]))
        }
    };
}

#[test]
fn a_reader_is_told_version_oldest_compiler_and_licences() {
    let [readme, citation, introduction] =
        ["README.md", "CITATION.cff", "book/src/introduction.md"]
            .map(|name| stored::text(name).unwrap());
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    // The paragraph in the place of badges.
    let facts = readme.split("\n\n").find(|it| it.starts_with("Version ")).unwrap();
    assert!(facts.starts_with(&format!("Version {VERSION} (")), "not {VERSION}: {facts}");
    assert!(facts.contains(&format!("· Rust {oldest} or newer ·")), "not {oldest}: {facts}");
    assert!(readme.contains(&format!("A Rust toolchain ({oldest} or newer")), "not {oldest}");
    assert!(introduction.contains(&format!("A Rust toolchain, {oldest} or newer")), "not {oldest}");
    for licence in env!("CARGO_PKG_LICENSE").split(" OR ") {
        let file = format!("LICENSE-{}", licence.split('-').next().unwrap().to_uppercase());
        assert!(!stored::text(&file).unwrap().is_empty(), "{file} is empty");
        assert!(facts.contains(&format!("[{licence}]({file})")), "no {licence}: {facts}");
        assert!(citation.contains(&format!("\n  - {licence}\n")), "CITATION.cff: no {licence}");
    }
}

#[test]
fn a_release_has_its_own_section_or_the_reasons_against_it() {
    let changelog = "# Changelog\n\n## Unreleased\n\n## 1.2.0 – 2026-01-02\n\n### Added\n\n- A thing.\n\n\
                     ## 1.1.0 – 2025-01-02\n\n- Less.\n";
    let citation = "version: 1.2.0\ntitle: \"A course\"\ndate-released: \"2026-01-02\"\n";
    assert_eq!(notes("1.2.0", changelog, citation).unwrap(), "### Added\n\n- A thing.");
    for (version, from, to, expected) in [
        ("1.3.0", "", "", "the newest release is 1.2.0, of the date 2026-01-02; write \"## 1.3.0"),
        ("1.3.0", "", "", "CITATION.cff: the version is 1.2.0, and 1.3.0 in Cargo.toml"),
        ("1.2.0", "## 1", "### 1", "the newest release is none"),
        ("1.2.0", " – 2026-01-02", "", "of the date none"),
        ("1.2.0", "\"2026-01-02\"", "2026-01-03", "2026-01-03, and 2026-01-02 in CHANGELOG.md"),
        ("1.2.0", "version: ", "versions: ", "CITATION.cff: the version is none"),
        ("1.2.0", "date-released", "released", "date-released is none"),
        ("1.2.0", "### Added\n\n- A thing.\n", "", "says nothing of version 1.2.0"),
        ("1.2.0", "Unreleased\n", "Unreleased\n\n- More.\n", "under \"Unreleased\""),
    ] {
        let [changelog, citation] = [changelog, citation].map(|text| text.replace(from, to));
        let wrong = notes(version, &changelog, &citation).unwrap_err().join("\n");
        assert!(wrong.contains(expected), "no \"{expected}\" in {wrong}");
    }
}
