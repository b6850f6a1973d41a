//! What a reader does: list, next, check, hint, solution, reset.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use super::fixture::{Checkout, answer, stub};
use crate::*;

#[test]
fn what_passed_is_remembered_until_the_answer_changes() {
    let checkout = Checkout::new();
    let course = |words: &[&str]| checkout.tool(words).assert();
    let list = "· ch01_sum   two numbers, added\n· ch02_ring  two numbers, added\n\n\
                0 of 2 solved; next: ch01_sum (cargo course next)\n";
    course(&["list"]).success().stdout(diff(list));
    let next = contains("ch01_sum: two numbers, added")
        .and(contains("read    chapter 1: mdbook serve book --open\n"))
        .and(contains("        or book/src/ch01-sums.md (its listings are links)\n"))
        .and(contains("tests/exercises/ch01_sum.rs"));
    course(&["next"]).success().stdout(next);

    let told = starts_with("✗ ch01_sum is not written yet: its checks come to a `todo!`\n")
        .and(contains("    tests/exercises/ch01_sum.rs:7:5: add 2 and 3\n"))
        .and(contains("adds").or(contains("not yet implemented")).not())
        .and(contains("cargo course hint ch01_sum"))
        .and(contains("book/src/ch01-sums.md"))
        .and(contains("RUST_BACKTRACE").or(contains("panicked")).or(contains("failures:")).not());
    course(&["check"]).code(1).stdout(told).stderr(contains("2 of 2 checks fail\n"));

    checkout.sum_is("a * b");
    let law = contains("    2 + 3: expected 5, got 6\n    law: sum, then divide once\n");
    let verdict = contains("error: ch01_sum does not pass yet: 2 of 2 checks fail");
    course(&["check", "sum"]).code(1).stdout(law.clone()).stderr(verdict);

    let mut with_variables = checkout.tool(&["check", "sum"]);
    with_variables.env("RUST_TEST_NOCAPTURE", "1").env("RUST_TEST_SHUFFLE", "1");
    with_variables.assert().code(1).stdout(law);

    checkout.sum_is("panic!(\"like {}\", a - a + b - b)");
    let once = contains("✗ adds\n✗ of_two_numbers_is_another_number\n    at ");
    course(&["check", "sum", "--all"]).code(1).stdout(once.and(contains("like 0").count(1)));

    checkout.sum_is("a + b");
    let passes = starts_with("✓ ch01_sum passes its 2 checks\n")
        .and(contains("1 of 2 solved; next: ch02_ring"));
    course(&["check"]).success().stdout(passes);
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum   two numbers, added\n· ch02_ring"));
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
    let check = checkout.read("tests/exercises/checks/ch01_sum.rs") + "\n// More.\n";
    checkout.write("tests/exercises/checks/ch01_sum.rs", &check);
    let only_the_check = starts_with("? ch01_sum").and(contains("(its check has changed since it"));
    course(&["list"]).success().stdout(only_the_check);
    course(&["next"]).success().stdout(contains("It passed, and its check has changed since.\n"));
    checkout.sum_is("b + a");
    let both = contains("(it and its check have changed since it passed)");
    course(&["list"]).success().stdout(starts_with("? ch01_sum").and(both));
    course(&["check", "sum"]).success();
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum"));
    // Every answer that passed this check is one that passes.
    checkout.sum_is("-(-a - b)");
    course(&["check", "sum"]).success();
    checkout.sum_is("b + a");
    course(&["list"]).success().stdout(starts_with("✓ ch01_sum"));
}

#[test]
fn an_older_answer_that_comes_back_is_the_one_that_is_checked() {
    let checkout = Checkout::new();
    let file = checkout.path("tests/exercises/ch01_sum.rs");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    // As `cp -p` and `mv` bring a file back: with the time at which it was written.
    let bring_back = |body: &str| {
        checkout.sum_is(body);
        File::options().append(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    };
    let check = || checkout.tool(&["check", "sum"]).assert();
    checkout.sum_is("a + b");
    check().success();
    bring_back("a * b");
    check().code(1).stdout(contains("2 + 3: expected 5, got 6"));
    checkout.tool(&["list"]).assert().success().stdout(starts_with("? ch01_sum"));
    bring_back("b + a");
    check().success();
    // Somebody else's build in between is noticed as well, and here it is of another answer.
    checkout.sum_is("a - b");
    let mut cargo = Command::new(std::env::var("CARGO").unwrap());
    cargo.args(["build", "--quiet", "--release", "--package=exercises", "--bin=ch01_sum"]);
    cargo.current_dir(checkout.path("")).env_remove("CARGO_TARGET_DIR");
    assert!(cargo.output().unwrap().status.success());
    bring_back("b + a");
    check().success();
}

#[test]
fn the_first_broken_law_is_shown_in_full_and_the_verdict_last() {
    let checkout = Checkout::new();
    let laws: String = (0..30).map(|law| format!("    (\"law_{law}\", adds),\n")).collect();
    let path = "tests/exercises/checks/ch01_sum.rs";
    let check =
        checkout.read(path).replace("&[(\"adds\", adds)", &format!("&[{laws} (\"adds\", adds)"));
    checkout.write(path, &check);
    checkout
        .sum_is("for number in 0..100 {\n        println!(\"seen {number}\");\n    }\n    a * b");
    let told = |words: &[&str]| {
        let check = checkout.tool(&[&["check", "sum"], words].concat()).assert().code(1);
        let output = check.get_output().clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (short, verdict) = told(&[]);
    assert!(verdict.ends_with("error: ch01_sum does not pass yet: 32 of 32 checks fail\n"));
    assert!(short.lines().count() < 24, "{short}");
    assert!(short.starts_with("✗ law_0\n    … ") && short.contains("    seen 99\n"), "{short}");
    for part in [
        "    2 + 3: expected 5, got 6\n    law: sum",
        "\n✗ law_1: 2 + 3: expected 5",
        "… and 26 more",
    ] {
        assert!(short.contains(part), "{part}\n{short}");
    }
    assert!(short.contains("all of it:    cargo course check ch01_sum --all\n"), "{short}");
    let (all, _) = told(&["--all"]);
    assert!(all.contains("✗ law_29\n") && all.contains("\n    seen 50\n"), "{all}");
    // Nobody is at a terminal.
    assert!(!short.contains('\x1b') && !all.contains('\x1b'));
}

#[test]
fn before_the_first_build_its_time_is_said() {
    let checkout = Checkout::new();
    let check = || checkout.tool(&["check", "sum"]).assert().code(1);
    let told = || contains("The first check compiles the stages: about ");
    check().stderr(told().and(contains("A later check takes seconds.\n")));
    check().stderr(told().not());
}

#[test]
fn a_signature_that_was_changed_is_said_to_be_given() {
    let checkout = Checkout::new();
    let given = answer("a + b");
    let told = || {
        contains("✗ ch01_sum does not compile\n    The signature is given")
            .and(contains("git diff tests/exercises/ch01_sum.rs"))
            .and(contains("cargo course reset ch01_sum"))
    };
    for changed in [
        given.replace("a: i32, b: i32", "a: i64, b: i32"),
        given.replace("pub fn sum", "pub fn add"),
        given.replace("exercises::check!(ch01_sum, sum);", ""),
    ] {
        checkout.write("tests/exercises/ch01_sum.rs", &changed);
        let check = checkout.tool(&["check", "sum"]).assert().code(1).stdout(told());
        check.stderr(contains("error[E").and(contains("it does not compile")));
    }
}

#[test]
fn a_title_survives_a_deleted_comment_and_a_hint_fits_its_terminal() {
    let checkout = Checkout::new();
    checkout.write("tests/exercises/ch01_sum.rs", "fn main() {}\n");
    let next = contains("ch01_sum: two numbers, added").and(contains("or book/src/ch01-sums.md"));
    checkout.tool(&["next"]).assert().success().stdout(next);
    let hint = format!("## Look\n\n{}\n", "word ".repeat(40));
    checkout.write("tests/answers/ch01_sum/hint.md", &hint);
    let hint = checkout.tool(&["hint", "sum"]).env("COLUMNS", "30").assert().success();
    let told = String::from_utf8(hint.get_output().stdout.clone()).unwrap();
    let words = told.lines().filter(|line| line.contains("word word"));
    assert!(words.clone().count() > 5 && words.clone().all(|line| line.len() <= 30), "{told}");
}

#[test]
fn the_manifest_gives_the_order() {
    let checkout = Checkout::new();
    let manifest = checkout.read("tests/exercises/Cargo.toml").replace("ch01_sum", "first");
    let manifest = manifest.replace("ch02_ring", "ch01_sum").replace("first", "ch02_ring");
    checkout.write("tests/exercises/Cargo.toml", &manifest);
    let list = checkout.tool(&["list"]).assert().success();
    list.stdout(starts_with("· ch02_ring").and(contains("next: ch02_ring")));
}

#[test]
fn a_hint_comes_step_by_step() {
    let checkout = Checkout::new();
    let hint = |words: &[&str]| checkout.tool(&[&["hint", "sum"], words].concat()).assert();
    let only = |number: u8| contains(format!("hint {number} of 3")).count(1);
    let one = only(1).and(contains("At both.")).and(contains("hint 2 of 3").not());
    hint(&[]).success().stdout(one);
    hint(&[]).success().stdout(only(2).and(contains("hint 1 of 3").not()));
    hint(&[]).success().stdout(only(3).and(contains("A plus.")).and(contains("the last step")));
    hint(&[]).success().stdout(only(1).and(only(2)).and(only(3)));
    // Of another exercise nothing was read.
    // Without a name it is the next exercise's.
    checkout.tool(&["hint", "--all"]).assert().success().stdout(contains("ch01_sum · hint 3"));
    checkout.tool(&["hint", "ring"]).assert().success().stdout(only(1));
    checkout.tool(&["hint", "ring", "--all"]).assert().success().stdout(only(1).and(only(3)));
}

#[test]
fn who_asks_at_the_same_time_gets_the_next_step() {
    let checkout = Checkout::new();
    let steps: String = (1..=12).map(|step| format!("## Look\n\nNumber {step}.\n\n")).collect();
    checkout.write("tests/answers/ch01_sum/hint.md", &steps);
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
    let file = "tests/exercises/ch01_sum.rs";
    let given = stub("ch01_sum", "ch01-sums");
    // Written below the TODO, which stays.
    let mine = given.replace("todo!(\"add {a} and {b}\")", "a * b");
    assert!(mine.contains("// TODO") && mine != given);
    checkout.commit("given");
    checkout.write(file, &mine);
    checkout.commit("mine");
    let reset = || checkout.tool(&["reset", "sum", "--yes"]).assert().success();
    reset().stdout(contains(".course/ch01_sum-1.rs"));
    assert_eq!(checkout.read(file), given);
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), mine);
    // With a change that is in no commit.
    let newer = mine.replace("a * b", "a / b");
    checkout.write(file, &newer);
    reset().stdout(contains(".course/ch01_sum-2.rs"));
    assert_eq!(checkout.read(file), given);
    assert_eq!(checkout.read(".course/ch01_sum-2.rs"), newer);
    // A copy of the course that was unpacked has no commit. The first one of its reader may have the answer already.
    fs::remove_dir_all(checkout.path(".git")).unwrap();
    checkout.tool(&["list"]).assert().success();
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
    let file = "tests/exercises/ch01_sum.rs";
    checkout.tool(&["next"]).assert().success();
    checkout.sum_is("a - b");

    let refused = checkout.tool(&["reset", "sum"]).assert().code(2);
    refused.stderr(contains("--yes"));
    assert_eq!(checkout.read(file), answer("a - b"));

    let reset = || checkout.tool(&["reset", "sum", "--yes"]).assert().success();
    let no_git = checkout.tool(&["reset", "sum", "--yes"]).env("GIT_DIR", "/nowhere").assert();
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
    let check = checkout.tool(&["check", "sum"]).assert().code(1);
    check.stderr(contains("ch01_sum.rs").and(contains("it is no text in UTF-8")));
    reset().stdout(contains(".course/ch01_sum-3.rs"));
    assert_eq!(fs::read(checkout.path(".course/ch01_sum-3.rs")).unwrap(), latin);
    assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
    // What cannot be put aside stays where it is.
    fs::remove_file(checkout.path(file)).unwrap();
    fs::create_dir(checkout.path(file)).unwrap();
    let refused = checkout.tool(&["reset", "sum", "--yes"]).assert().code(1).stdout("");
    refused.stderr(contains("ch01_sum.rs: it is not a regular file; move it away first"));
    assert!(checkout.path(file).is_dir());
}
