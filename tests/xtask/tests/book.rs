//! The book keeps its rules: `xtask::book` says which.

use crate::*;

#[test]
fn every_rule_is_kept() {
    let book = Book::open(&root()).unwrap();
    // Without pages, every rule would be kept.
    assert!(book.pages().filter(|page| !page.blocks.is_empty()).count() > 10);
    let problems = book.problems();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The weights that the runs of a recorded output ended with.
fn recorded_hashes(name: &str) -> Vec<String> {
    let text = in_the_book(&format!("outputs/{name}.txt")).unwrap();
    text.split(", weights ").skip(1).map(|rest| rest[..8].to_owned()).collect()
}

/// Stage 4 promises the same bits on any number of devices; the recorded runs have to show it.
#[test]
fn recorded_runs_with_shards_end_with_the_same_weights() {
    let two = recorded_hashes("ch04-shards-2-devices");
    let four = recorded_hashes("ch04-shards-4-devices");
    assert!(two.len() > 1 && four.len() > 1, "{two:?} {four:?}");
    assert!(two.iter().chain(&four).all(|hash| *hash == two[0]), "{two:?} {four:?}");
}

/// Stage 6 promises that a pipeline whose micro-batches are stage 5's shards has the same bits.
#[test]
fn recorded_pipelines_end_with_the_weights_of_recorded_shards() {
    let shards = recorded_hashes("ch05-shards-2-devices");
    for (name, pipelines) in [("ch06-bits-pipeline", 2), ("ch06-bits-mesh", 1)] {
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
