//! The book keeps its rules: `xtask::book` says which.

use xtask::{interactive, stored};

use crate::*;

#[test]
fn every_rule_is_kept() {
    let book = Book::open(&root()).unwrap();
    // Without pages, every rule would be kept.
    assert!(book.pages().filter(|page| !page.blocks.is_empty()).count() > 10);
    let problems = book.problems();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The recorded runs show a promise of stage 4: any number of devices gives the same bits. The runs also show a promise of
/// stage 6: a pipeline on stage 5's shards as micro-batches gives the bits of stage 5.
#[test]
fn recorded_runs_end_with_the_same_weights() {
    // The first run of stage 6 takes the whole batch, which is another function.
    for (name, others, runs, like) in [
        ("ch04-shards-2-devices", 0, 3, "ch04-shards-2-devices"),
        ("ch04-shards-4-devices", 0, 3, "ch04-shards-2-devices"),
        ("ch06-bits-pipeline", 1, 3, "ch05-shards-2-devices"),
        ("ch06-bits-mesh", 1, 2, "ch05-shards-2-devices"),
    ] {
        let hashes = |name: &str| -> Vec<String> {
            let text = stored::text(&format!("book/outputs/{name}.txt")).unwrap();
            text.split(", weights ").skip(1).map(|rest| rest[..8].to_owned()).collect()
        };
        let (hashes, like) = (hashes(name), hashes(like));
        assert_eq!(hashes.len(), others + runs, "{name}: {hashes:?}");
        assert!(
            hashes[others..].iter().all(|hash| *hash == like[0]),
            "{name}: {hashes:?} {like:?}"
        );
    }
}

#[test]
fn interactive_figures_are_current_and_fit_into_their_pages() {
    for (command, figure, most) in [
        ("steps", interactive::steps as fn() -> _, 40_000),
        ("schedules", interactive::schedules, 150_000),
        ("sharded", interactive::sharded, 100_000),
    ] {
        let files = figure().unwrap().files;
        for (name, now) in &files {
            let old = stored::text(&format!("book/{name}")).unwrap();
            let same = old.lines().zip(now.lines()).take_while(|(old, now)| old == now).count();
            assert!(old == *now, "book/{name}, line {}: run `cargo xtask {command}`", same + 1);
        }
        // A page has all of the data, in a script.
        let (name, data) = &files[0];
        assert!(data.len() < most, "{name}: {} bytes", data.len());
        assert!(data.lines().all(|line| !line.is_empty()), "{name}: a blank line ends HTML");
        let otherwise = ["</", "{{"].iter().find(|end| data.contains(**end));
        assert_eq!(otherwise, None, "{name}: this means something else in a script");
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
