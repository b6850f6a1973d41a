//! What a reader does: list, next, check, hint, solution, reset.

use std::process::Command;

use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, diff, starts_with};

use crate::fixture::{Checkout, answer, stub};

#[test]
fn what_passed_is_remembered_until_the_answer_changes() {
    let checkout = Checkout::new();
    let course = |words: &[&str]| checkout.course(words).assert();
    let list = "· ch01_sum   two numbers, added\n· ch02_ring  two numbers, added\n\n\
                0 of 2 solved; next: ch01_sum (cargo course next)\n";
    course(&["list"]).success().stdout(diff(list));
    let next = contains("ch01_sum: two numbers, added")
        .and(contains("book/src/ch01-sums.md"))
        .and(contains("tests/exercises/ch01_sum/exercise.rs"));
    course(&["next"]).success().stdout(next);

    let told = starts_with("✗ ch01_sum is not written yet: its checks come to a `todo!`\n")
        .and(contains("    tests/exercises/ch01_sum/exercise.rs:7: add 2 and 3\n"))
        .and(contains("adds").or(contains("not yet implemented")).not())
        .and(contains("cargo course hint ch01_sum"))
        .and(contains("book/src/ch01-sums.md"))
        .and(contains("RUST_BACKTRACE").or(contains("panicked")).or(contains("failures:")).not());
    course(&["check"]).code(1).stdout(told).stderr(contains("2 of 2 checks fail\n"));

    checkout.sum_is("a * b");
    let law = contains("    2 + 3: expected 5, got 6\n    law: sum, then divide once\n");
    let verdict = contains("error: ch01_sum does not pass yet: 2 of 2 checks fail");
    course(&["check", "sum"]).code(1).stdout(law).stderr(verdict);

    checkout.sum_is("panic!(\"like {}\", a - a + b - b)");
    let once = contains("✗ adds\n✗ of_two_numbers_is_another_number\n    at ");
    course(&["check", "sum"]).code(1).stdout(once.and(contains("like 0").count(1)));

    checkout.sum_is("a + b");
    let passes = starts_with("✓ ch01_sum passes its 2 checks\n")
        .and(contains("1 of 2 solved; next: ch02_ring"));
    course(&["check"]).success().stdout(passes);
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum\n· ch02_ring"));
    course(&["check"]).code(1).stderr(contains("ch02_ring does not pass yet"));
    // What is solved may be compared without being asked.
    course(&["solution", "sum"]).success().stdout(diff(answer("a + b")));

    checkout.sum_is("b + a");
    let changed = starts_with("? ch01_sum").and(contains("(changed since it passed)"));
    course(&["list"]).success().stdout(changed.and(contains("next: ch01_sum")));
    checkout.sum_is("a + b");
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum"));
    // A check that demands more than it did is another check.
    let check = checkout.read("tests/exercises/ch01_sum/check.rs") + "\n// More.\n";
    checkout.write("tests/exercises/ch01_sum/check.rs", &check);
    course(&["list"]).success().stdout(starts_with("? ch01_sum"));
}

#[test]
fn the_manifest_gives_the_order() {
    let checkout = Checkout::new();
    let manifest = checkout.read("tests/exercises/Cargo.toml").replace("ch01_sum", "first");
    let manifest = manifest.replace("ch02_ring", "ch01_sum").replace("first", "ch02_ring");
    checkout.write("tests/exercises/Cargo.toml", &manifest);
    let list = checkout.course(&["list"]).assert().success();
    list.stdout(starts_with("· ch02_ring").and(contains("next: ch02_ring")));
}

#[test]
fn a_hint_comes_step_by_step() {
    let checkout = Checkout::new();
    let hint = |words: &[&str]| checkout.course(&[&["hint", "sum"], words].concat()).assert();
    let only = |number: u8| contains(format!("hint {number} of 3")).count(1);
    let one = only(1).and(contains("At both.")).and(contains("hint 2 of 3").not());
    hint(&[]).success().stdout(one);
    hint(&[]).success().stdout(only(2).and(contains("hint 1 of 3").not()));
    hint(&[]).success().stdout(only(3).and(contains("A plus.")).and(contains("the last step")));
    hint(&[]).success().stdout(only(1).and(only(2)).and(only(3)));
    // Of another exercise nothing was read.
    // Without a name it is the next exercise's.
    checkout.course(&["hint", "--all"]).assert().success().stdout(contains("ch01_sum · hint 3"));
    checkout.course(&["hint", "ring"]).assert().success().stdout(only(1));
    checkout.course(&["hint", "ring", "--all"]).assert().success().stdout(only(1).and(only(3)));
}

#[test]
fn an_exercise_comes_back_as_it_was_given() {
    let checkout = Checkout::new();
    let file = "tests/exercises/ch01_sum/exercise.rs";
    let git = |words: &[&str]| {
        let identity = ["-c", "user.name=reader", "-c", "user.email=reader@example.org"];
        let mut git = Command::new("git");
        git.args(identity)
            .args(words)
            .current_dir(checkout.path(""))
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(git.output().unwrap().status.success(), "{words:?}");
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "given"]);
    // A reader who commits has an answer as the newest version, and the TODO is gone from it.
    checkout.sum_is("a * b");
    git(&["commit", "--quiet", "--all", "--message", "mine"]);
    checkout.sum_is("a - b");

    let refused = checkout.course(&["reset", "sum"]).assert().code(2);
    refused.stderr(contains("--yes"));
    assert_eq!(checkout.read(file), answer("a - b"));

    let reset = || checkout.course(&["reset", "sum", "--yes"]).assert().success();
    reset().stdout(contains("is as it was given").and(contains(".course/ch01_sum-1.rs")));
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a - b"));
    reset().stdout(contains("is as it was given").and(contains(".course").not()));
    // Nothing that was put aside is overwritten, and a file that is gone comes back.
    checkout.sum_is("a / b");
    reset().stdout(contains(".course/ch01_sum-2.rs"));
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a - b"));
    std::fs::remove_file(checkout.path(file)).unwrap();
    reset();
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
}
