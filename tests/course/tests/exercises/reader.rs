//! What a reader does: list, next, check, hint, solution, reset.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use super::fixture::{Checkout, answer, stub};
use crate::*;

#[test]
fn what_passed_is_remembered_until_the_answer_changes() {
    let checkout = Checkout::new();
    let course = |words: &[&str]| checkout.course(words).assert();
    let list = "· ch01_sum   two numbers, added\n· ch02_ring  two numbers, added\n\n\
                0 of 2 solved; next: ch01_sum (cargo course next)\n";
    course(&["list"]).success().stdout(diff(list));
    let next = contains("ch01_sum: two numbers, added")
        .and(contains("read    chapter 1: mdbook serve book --open\n"))
        .and(contains("        or book/src/ch01-sums.md (its listings are links)\n"))
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
    course(&["check", "sum"]).code(1).stdout(law.clone()).stderr(verdict);

    let mut with_variables = checkout.course(&["check", "sum"]);
    with_variables.env("RUST_TEST_NOCAPTURE", "1").env("RUST_TEST_SHUFFLE", "1");
    with_variables.assert().code(1).stdout(law);

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
    let changed = starts_with("? ch01_sum").and(contains("(it has changed since it passed)"));
    let how =
        contains("\n\n`cargo course check` takes those that are not solved one after the other");
    course(&["list"]).success().stdout(changed.and(contains("next: ch01_sum")).and(how));
    checkout.sum_is("a + b");
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum"));
    // A check that demands more than it did is another check.
    let check = checkout.read("tests/exercises/ch01_sum/check.rs") + "\n// More.\n";
    checkout.write("tests/exercises/ch01_sum/check.rs", &check);
    let only_the_check = starts_with("? ch01_sum").and(contains("(its check has changed since it"));
    course(&["list"]).success().stdout(only_the_check);
    course(&["next"]).success().stdout(contains("It passed, and its check has changed since.\n"));
    checkout.sum_is("b + a");
    let both = contains("(it and its check have changed since it passed)");
    course(&["list"]).success().stdout(starts_with("? ch01_sum").and(both));
    course(&["check", "sum"]).success();
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum"));
}

#[test]
fn an_older_answer_that_comes_back_is_the_one_that_is_checked() {
    let checkout = Checkout::new();
    let file = checkout.path("tests/exercises/ch01_sum/exercise.rs");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    // As `cp -p` and `mv` bring a file back: with the time at which it was written.
    let bring_back = |body: &str| {
        checkout.sum_is(body);
        File::options().append(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    };
    let check = || checkout.course(&["check", "sum"]).assert();
    checkout.sum_is("a + b");
    check().success();
    bring_back("a * b");
    check().code(1).stdout(contains("2 + 3: expected 5, got 6"));
    checkout.course(&["list"]).assert().success().stdout(starts_with("? ch01_sum"));
    bring_back("b + a");
    check().success();
    // Somebody else's build in between is noticed as well, and here it is of another answer.
    checkout.sum_is("a - b");
    let mut cargo = Command::new(std::env::var("CARGO").unwrap());
    cargo.args(["test", "--quiet", "--release", "--package=exercises", "--test=ch01_sum"]);
    cargo.current_dir(checkout.path("")).env_remove("CARGO_TARGET_DIR");
    assert!(!cargo.output().unwrap().status.success());
    bring_back("b + a");
    check().success();
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
fn who_asks_at_the_same_time_gets_the_next_step() {
    let checkout = Checkout::new();
    let steps: String = (1..=12).map(|step| format!("## Look\n\nNumber {step}.\n\n")).collect();
    checkout.write("tests/exercises/ch01_sum/hint.md", &steps);
    // Much is remembered, so that it takes a while.
    let others = (0..50_000).map(|other| format!("\"other{other}\": {{\"hints\": 1}}"));
    let others = others.collect::<Vec<_>>().join(", ");
    checkout.write(".course/progress.json", &format!("{{{others}}}"));
    let ask = |_| {
        let mut course = Command::new(env!("CARGO_BIN_EXE_course"));
        course.args(["hint", "sum"]).current_dir(checkout.path("")).stdout(Stdio::piped());
        course.spawn().unwrap()
    };
    let asked: Vec<_> = (0..12).map(ask).collect();
    let mut told = asked.into_iter().map(|one| one.wait_with_output().unwrap().stdout);
    let told =
        told.try_fold(String::new(), |all, one| String::from_utf8(one).map(|one| all + &one));
    let told = told.unwrap();
    for step in 1..=12 {
        assert_eq!(told.matches(&format!("hint {step} of 12")).count(), 1, "{step}:\n{told}");
    }
}

#[test]
fn an_answer_that_keeps_its_todo_is_not_as_it_was_given() {
    let checkout = Checkout::new();
    let file = "tests/exercises/ch01_sum/exercise.rs";
    let given = stub("ch01_sum", "ch01-sums");
    // Written below the TODO, which stays.
    let mine = given.replace("todo!(\"add {a} and {b}\")", "a * b");
    assert!(mine.contains("// TODO") && mine != given);
    checkout.commit("given");
    checkout.write(file, &mine);
    checkout.commit("mine");
    let reset = || checkout.course(&["reset", "sum", "--yes"]).assert().success();
    reset().stdout(contains(".course/ch01_sum-1.rs"));
    assert_eq!(checkout.read(file), given);
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), mine);
    // With a change that is in no commit.
    let newer = mine.replace("a * b", "a / b");
    checkout.write(file, &newer);
    reset().stdout(contains(".course/ch01_sum-2.rs"));
    assert_eq!(checkout.read(file), given);
    assert_eq!(checkout.read(".course/ch01_sum-2.rs"), newer);
    // A reader's first commit may have the answer already.
    fs::remove_dir_all(checkout.path(".git")).unwrap();
    checkout.write(file, &mine);
    checkout.commit("all of it");
    reset().stdout(contains(".course/ch01_sum-3.rs"));
    assert_eq!(checkout.read(file), given);
    assert_eq!(checkout.read(".course/ch01_sum-3.rs"), mine);
}

#[test]
fn an_exercise_comes_back_as_it_was_given() {
    // There is no repository around it: a copy of the course that was unpacked has none.
    let checkout = Checkout::new();
    let file = "tests/exercises/ch01_sum/exercise.rs";
    checkout.sum_is("a - b");

    let refused = checkout.course(&["reset", "sum"]).assert().code(2);
    refused.stderr(contains("--yes"));
    assert_eq!(checkout.read(file), answer("a - b"));

    let reset = || checkout.course(&["reset", "sum", "--yes"]).assert().success();
    let no_git = checkout.course(&["reset", "sum", "--yes"]).env("GIT_DIR", "/nowhere").assert();
    let told = contains("is as it was given").and(contains(".course/ch01_sum-1.rs"));
    no_git.success().stdout(told);
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a - b"));
    reset().stdout(contains("is as it was given").and(contains(".course").not()));
    // Nothing that was put aside is overwritten, and a file that is gone comes back.
    checkout.sum_is("a / b");
    reset().stdout(contains(".course/ch01_sum-2.rs"));
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a - b"));
    fs::remove_file(checkout.path(file)).unwrap();
    reset();
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
    // An editor may have stored it in Latin-1: an answer all the same.
    let latin = b"// caf\xe9\n";
    fs::write(checkout.path(file), latin).unwrap();
    let check = checkout.course(&["check", "sum"]).assert().code(1);
    check.stderr(contains("exercise.rs").and(contains("it is no text in UTF-8")));
    reset().stdout(contains(".course/ch01_sum-3.rs"));
    assert_eq!(fs::read(checkout.path(".course/ch01_sum-3.rs")).unwrap(), latin);
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
    // What cannot be put aside stays where it is.
    fs::remove_file(checkout.path(file)).unwrap();
    fs::create_dir(checkout.path(file)).unwrap();
    let refused = checkout.course(&["reset", "sum", "--yes"]).assert().code(1).stdout("");
    refused.stderr(contains("exercise.rs: it is not a regular file; move it away first"));
    assert!(checkout.path(file).is_dir());
}
