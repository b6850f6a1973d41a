//! The book keeps its rules: `xtask::book` says which.

use xtask::book::{RULES, Rule};

use crate::*;

#[test]
fn every_rule_is_kept() {
    let book = Book::open(&root()).unwrap();
    let told = |(name, rule): &(&str, Rule)| {
        let problems = rule(&book).unwrap();
        problems.iter().map(|problem| format!("{name}: {problem}")).collect::<Vec<_>>()
    };
    let told: Vec<String> = RULES.iter().flat_map(told).collect();
    assert!(told.is_empty(), "\n{}\n", told.join("\n"));
}

/// Without pages, every rule would be kept.
#[test]
fn there_is_a_book() {
    let book = Book::open(&root()).unwrap();
    let names: Vec<_> = book.pages().map(|page| page.name.display().to_string()).collect();
    for page in ["introduction", "four-ways", "ch01-single-gpu", "ch04-data-parallel", "glossary"] {
        assert!(names.contains(&format!("{page}.md")), "{page}: {names:?}");
    }
    assert!(book.pages().any(|page| !page.blocks.is_empty()));
    assert!(commands::all(&book).unwrap().len() >= 4);
}

/// The weights that the runs of a recorded output ended with.
fn recorded_hashes(name: &str) -> Vec<String> {
    let path = root().join("book/outputs").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.split(", weights ").skip(1).map(|rest| rest[..8].to_owned()).collect()
}

/// Stage 4 promises the same bits on any number of devices; the recorded runs have to show it.
#[test]
fn recorded_runs_with_shards_end_with_the_same_weights() {
    let two = recorded_hashes("ch04-shards-2-devices.txt");
    let four = recorded_hashes("ch04-shards-4-devices.txt");
    assert!(two.len() > 1 && four.len() > 1, "{two:?} {four:?}");
    assert!(two.iter().chain(&four).all(|hash| *hash == two[0]), "{two:?} {four:?}");
}

/// Stage 6 promises that a pipeline whose micro-batches are stage 5's shards has the same bits.
#[test]
fn recorded_pipelines_end_with_the_weights_of_recorded_shards() {
    let shards = recorded_hashes("ch05-shards-2-devices.txt");
    for (name, pipelines) in [("ch06-bits-pipeline.txt", 2), ("ch06-bits-mesh.txt", 1)] {
        let hashes = recorded_hashes(name);
        // Before them one device: on the whole batch, which is another function, and on micro-batches.
        assert_eq!(hashes.len(), 2 + pipelines, "{name}: {hashes:?}");
        assert!(hashes[1..].iter().all(|hash| *hash == shards[0]), "{name}: {hashes:?} {shards:?}");
    }
}

#[test]
fn figures_are_what_their_data_gives() {
    tool(&["figures", "--check"]).assert().success();
}

/// All chapters are one page when they are printed: an id would be there twice.
#[test]
fn figures_have_no_ids() {
    for entry in std::fs::read_dir(root().join("book/figures")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(" id=\""), "{}", path.display());
    }
}

#[test]
fn an_output_or_a_page_that_is_not_there_is_refused() {
    for (arguments, told) in [
        (&["outputs", "no-such-output"] as &[_], "there is no output no-such-output"),
        (&["walk", "--page", "no-such-page"], "no-such-page: there is no such page"),
        (&["outputs", "--all"], "--check"),
    ] {
        tool(arguments).assert().code(2).stderr(contains(told));
    }
}
