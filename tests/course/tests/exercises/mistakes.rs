//! A wrong command, or a command in the wrong place, gets one line.

use super::fixture::{Checkout, tool_in};
use crate::*;

#[test]
fn a_wrong_name_gets_the_nearest_ones() {
    let checkout = Checkout::new();
    for command in ["check", "hint", "watch", "solution", "reset"] {
        for (name, error) in [
            ("rnig", "no exercise is called 'rnig'; the nearest: ch02_ring"),
            ("conv", "no exercise is called 'conv'; `cargo course list` shows all"),
            ("ch0", "'ch0' fits several exercises: ch01_sum, ch02_ring"),
        ] {
            let refused = checkout.course(&format!("{command} {name}")).code(2).stdout("");
            refused.stderr(diff(format!("error: {error}\n")));
        }
    }
    // A part is enough, in any case, with any dash; so is a path.
    let file = "tests/exercises/ch02_ring.rs";
    for part in ["ring", "ch02", "CH02-Ring", "rin", "ch02_ring/", "CH02_RING/", file] {
        checkout.says(&format!("hint {part}"), "ch02_ring");
    }
}

#[test]
fn outside_of_a_checkout_it_says_where_it_belongs() {
    let empty = tempfile::tempdir().unwrap();
    let lost = tool_in(empty.path(), &["list"]).assert().code(1).stdout("");
    lost.stderr(all(["error: run this in a checkout of the course", "Cargo.toml"]));
    let checkout = Checkout::new();
    checkout.write("other/Cargo.toml", "[package]\nname = \"other\"\n[workspace]\n");
    checkout.write("other/src/lib.rs", "");
    let other = tool_in(&checkout.path("other"), &["list"]).assert().code(1);
    other.stderr(contains("has no package `exercises`"));
    // Below the workspace's folder is inside of it.
    let below = tool_in(&checkout.path("tests/exercises/checks"), &["list"]).assert();
    below.success().stdout(contains("0 of 2 solved"));
}

#[test]
fn without_a_command_all_of_them_are_named() {
    let told = starts_with("error: a command is missing, one of: list, next, check, ")
        .and(all(["doctor", "`cargo course --help` says what they do"]))
        .and(contains("\n").count(1));
    tool(&[]).assert().code(2).stdout("").stderr(told);
}

#[test]
fn a_limit_outside_of_its_range_is_refused_with_the_range() {
    for (limit, words) in
        [("0", "check"), ("3601", "watch"), ("-1", "run"), ("soon", "check"), ("", "check")]
    {
        let words = [words, "sum", "--limit", limit];
        let told =
            starts_with("error: ").and(contains("a whole number from 1 to 3,600 is expected"));
        let told = told.or(contains("a value is required for '--limit <SECONDS>'"));
        tool(&words).assert().code(2).stdout("").stderr(told.and(contains("\n").count(1)));
    }
}

#[test]
fn the_help_of_every_command_fits_into_80_columns() {
    let commands = [
        &["--help"][..],
        &["check", "--help"],
        &["watch", "--help"],
        &["run", "--help"],
        &["hint", "--help"],
        &["reset", "-h"],
        &["divergence", "--help"],
    ];
    for words in commands {
        let help = tool(words).env("COLUMNS", "200").assert().success();
        let help = String::from_utf8(help.get_output().stdout.clone()).unwrap();
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{words:?}: {help}");
    }
}

#[test]
fn what_cargo_fails_at_is_not_the_answers_fault() {
    let checkout = Checkout::new();
    checkout.sum_is("a + b");
    // A folder that cannot be made, and a flag that no compiler has.
    let nowhere = checkout.path("Cargo.toml");
    for (variable, value, why) in [
        ("CARGO_TARGET_DIR", nowhere.to_str().unwrap(), "Cargo.toml"),
        ("RUSTFLAGS", "--bogus", "bogus"),
    ] {
        let check = checkout.tool(&["check", "sum"]).env(variable, value).assert().code(1);
        let check = check.stderr(contains("error: cargo failed, so ch01_sum was not checked\n"));
        let told = starts_with("✗ cargo failed before ch01_sum could be checked\n    ");
        check.stdout(told.and(contains(why)).and(contains("a hint").not()));
    }
    let inside = || contains("in a checkout of the course").not();
    let mut alone = checkout.tool(&["check", "sum"]);
    let alone = alone.env_remove("CARGO").env("PATH", "/nowhere").assert().code(1).stdout("");
    let why = starts_with("error: cargo cannot be started; it comes with Rust");
    alone.stderr(why.and(inside()));
    let mut elsewhere = checkout.tool(&["check", "sum"]);
    elsewhere.env("CARGO_HTTP_TIMEOUT", "soon").assert().code(1).stderr(inside());
}

#[test]
fn the_remedy_of_cargo_is_below_its_error() {
    let checkout = Checkout::new();
    let cargo = checkout.path("cargo");
    stand_in(&cargo, "printf 'error: no toolchain\nhelp: install one\n' >&2; exit 1").unwrap();
    let failed = checkout.tool(&["list"]).env("CARGO", cargo).assert().code(1).stdout("");
    failed.stderr(diff("error: cargo metadata failed: no toolchain\nhelp: install one\n"));
}

#[test]
fn a_pipe_in_an_answers_place_is_refused() {
    let checkout = Checkout::new();
    let file = checkout.path("tests/exercises/ch01_sum.rs");
    fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let course = |word: &str| checkout.tool(&[word]).timeout(Duration::from_secs(60)).assert();
    for command in ["check", "next", "watch"] {
        let told = all(["ch01_sum.rs", "it is not a regular file; move it away"]);
        course(command).code(1).stderr(told);
    }
    course("list").success().stdout(starts_with("· ch01_sum   two numbers, added\n"));
}

#[test]
fn nobody_is_asked_where_nobody_can_answer() {
    let checkout = Checkout::new();
    // Without a name, it is about the next exercise.
    let refused = checkout.course("solution").code(2).stdout("");
    refused.stderr(all(["ch01_sum is not solved yet", "--yes"]));
    checkout.course("solution sum --yes").success().stdout(contains("a + b"));
}

#[test]
fn what_cannot_be_read_is_named() {
    let checkout = Checkout::new();
    checkout.write(".course/progress.json", "{\"ch01_sum\": {\"passed\": 7}}");
    let told = all([".course/progress.json", "delete it to start over"]);
    checkout.course("list").code(1).stderr(told);
    fs::remove_dir_all(checkout.path(".course")).unwrap();
    fs::remove_file(checkout.path("tests/exercises/ch01_sum.rs")).unwrap();
    let told = contains("`cargo course reset ch01_sum` brings it back");
    checkout.course("check sum").code(1).stderr(told);
    // There is none, and then one that was edited before the first command.
    for _ in 0..2 {
        let told = all(["the original of tests/exercises/ch01_sum.rs is not known", "fresh copy"]);
        checkout.course("reset sum --yes").code(1).stderr(told);
        checkout.sum_is("a - b");
    }
}
