//! The commands of a reader: list, next, check, hint, solution, reset.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use assert_cmd::assert::Assert;

use super::fixture::{Checkout, answer, stub};
use crate::*;

const CHECK: &str = "tests/exercises/checks/ch01_sum.rs";

#[test]
fn what_passed_is_remembered_until_the_answer_changes() {
    let checkout = Checkout::new();
    let list = "· ch01_sum   two numbers, added\n· ch02_ring  two numbers, added\n\n\
                0 of 2 solved; next: ch01_sum (cargo course next)\n";
    checkout.course("list").success().stdout(diff(list));
    checkout.course("next").success().stdout(all([
        "ch01_sum: two numbers, added",
        "read    chapter 1: mdbook serve book --open\n",
        "        or book/src/ch01-sums.md (its listings are links)\n",
        "tests/exercises/ch01_sum.rs",
    ]));
    let told = starts_with("✗ ch01_sum is not written yet: its checks come to a `todo!`\n")
        .and(contains("    tests/exercises/ch01_sum.rs:7:5: add 2 and 3\n"))
        .and(all(["cargo course hint ch01_sum", "book/src/ch01-sums.md"]))
        .and(contains("adds").or(contains("not yet implemented")).not())
        .and(contains("RUST_BACKTRACE").or(contains("panicked")).or(contains("failures:")).not());
    // Only the first build takes long.
    let (build, fail) = ("The first check compiles the stages: about ", "2 of 2 checks fail\n");
    let later = "A later check takes seconds.\n";
    checkout.course("check").code(1).stdout(told).stderr(all([build, later, fail]));

    checkout.sum_is("a * b");
    let law = contains("    2 + 3: expected 5, got 6\n    law: sum, then divide once\n");
    let verdict = all(["error: ch01_sum does not pass yet: ", fail]).and(contains(build).not());
    checkout.course("check sum").code(1).stdout(law.clone()).stderr(verdict);
    let mut with_variables = checkout.tool(&["check", "sum"]);
    with_variables.env("RUST_TEST_NOCAPTURE", "1").env("RUST_TEST_SHUFFLE", "1");
    with_variables.assert().code(1).stdout(law);
    // A message of several lines, which two laws share.
    checkout.sum_is("panic!(\"like {}:\\n  rank 1 waits\", a - a + b - b)");
    let once = contains("✗ adds\n✗ of_two_numbers_is_another_number\n    at ")
        .and(contains("    like 0:\n      rank 1 waits\n").count(1));
    checkout.course("check sum --all").code(1).stdout(once);

    checkout.sum_is("a + b");
    let next = contains("1 of 2 solved; next: ch02_ring");
    checkout.says("check", "✓ ch01_sum passes its 2 checks\n").stdout(next);
    checkout.says("list", "✓ ch01_sum   two numbers, added\n· ch02_ring");
    checkout.course("check").code(1).stderr(contains("ch02_ring does not pass yet"));
    // The solution of a solved exercise is shown without a question.
    checkout.course("solution sum").success().stdout(diff(answer("a + b")));

    checkout.sum_is("b + a");
    let changed = contains("(it has changed since it passed)").and(contains("next: ch01_sum"));
    checkout.says("list", "? ch01_sum").stdout(changed);
    checkout.sum_is("a + b");
    checkout.says("list", "✓ ch01_sum");
    // The check of a newer course is another check.
    let check = checkout.read(CHECK) + "\n// More.\n";
    checkout.write(CHECK, &check);
    checkout.write(".course/given/checks/ch01_sum.rs", &check);
    checkout.says("list", "? ch01_sum").stdout(contains("(its check has changed since it"));
    let next = contains("It passed, and its check has changed since.\n");
    checkout.course("next").success().stdout(next);
    checkout.sum_is("b + a");
    let both = contains("(it and its check have changed since it passed)");
    checkout.says("list", "? ch01_sum").stdout(both);
    checkout.course("check sum").success();
    checkout.says("list", "✓ ch01_sum");
    // Every answer that passed this check is one that passes.
    checkout.sum_is("-(-a - b)");
    checkout.course("check sum").success();
    checkout.sum_is("b + a");
    checkout.says("list", "✓ ch01_sum");
}

#[test]
fn a_pass_of_an_edited_check_does_not_count() {
    for (commits, restores) in
        [(true, "git checkout HEAD -- "), (false, "cp .course/given/checks/")]
    {
        let checkout = Checkout::new();
        if commits {
            checkout.commit("given");
        }
        checkout.says("list", "· ch01_sum   two numbers, added\n");
        let given = checkout.read(CHECK);
        checkout.write(CHECK, &given.replace('5', "6"));
        checkout.sum_is("a + b + 1");
        let verdict =
            "ch01_sum does not pass yet: its check was edited, so the pass does not count";
        let check = checkout.course("check sum").code(1).stderr(contains(verdict));
        check.stdout(all([restores, "tests/exercises/checks/ch01_sum.rs\n"]));
        checkout.says("list", "? ch01_sum   two numbers, added (its check was edited");
        checkout.sum_is("a");
        let named = all(["expected 6, got 2", "its check was edited; to bring it back: "]);
        checkout.course("check sum").code(1).stdout(named);
        checkout.write(CHECK, &given);
        checkout.says("list", "· ch01_sum").stdout(contains("0 of 2 solved"));
    }
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
    let check = || checkout.course("check sum");
    checkout.sum_is("a + b");
    check().success();
    bring_back("a * b");
    check().code(1).stdout(contains("2 + 3: expected 5, got 6"));
    checkout.says("list", "? ch01_sum");
    bring_back("b + a");
    check().success();
    // The tool also notices a build of another answer in between.
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
    // Nobody is at a terminal, so there is no colour.
    let plain = || contains("\x1b").not();
    let short = starts_with("✗ law_0\n    … ")
        .and(contains("    seen 99\n").and(contains(" and 25 more\n✗ of_two_numbers")))
        .and(contains("    2 + 3: expected 5, got 6\n    law: sum"))
        .and(contains("\n✗ for the same reason: law_1, law_2, law_3"))
        .and(contains("all of it:    cargo course check ch01_sum --all\n"))
        .and(plain());
    let verdict = ends_with("error: ch01_sum does not pass yet: 32 of 32 checks fail\n");
    let check = checkout.course("check sum").code(1).stdout(short).stderr(verdict);
    let lines = String::from_utf8_lossy(&check.get_output().stdout).lines().count();
    assert!(lines < 24, "{lines} lines");
    let all = contains("✗ law_29\n").and(contains("\n    seen 50\n"));
    checkout.course("check sum --all").code(1).stdout(all.and(plain()));
}

#[test]
fn a_signature_that_was_changed_is_said_to_be_given() {
    let checkout = Checkout::new();
    let given = answer("a + b");
    let told = [
        "✗ ch01_sum does not compile\n    The signature is given",
        "git diff tests/exercises/ch01_sum.rs",
        "cargo course reset ch01_sum",
    ];
    for changed in [
        given.replace("a: i32, b: i32", "a: i64, b: i32"),
        given.replace("pub fn sum", "pub fn add"),
        given.replace("exercises::check!(ch01_sum, sum);", ""),
    ] {
        checkout.write("tests/exercises/ch01_sum.rs", &changed);
        let check = checkout.course("check sum").code(1).stdout(all(told));
        check.stderr(all(["error[E", "it does not compile"]));
    }
}

#[test]
fn titles_hints_and_the_order_are_those_of_the_files() {
    let checkout = Checkout::new();
    checkout.write("tests/exercises/ch01_sum.rs", "fn main() {}\n");
    let next = contains("ch01_sum: two numbers, added").and(contains("or book/src/ch01-sums.md"));
    checkout.course("next").success().stdout(next);
    let check = checkout.read(CHECK).replace("added", &"added and added again ".repeat(5));
    checkout.write(CHECK, &check);
    for columns in [60, 40] {
        let list = checkout.tool(&["list"]).env("COLUMNS", columns.to_string()).assert().success();
        let told = String::from_utf8(list.get_output().stdout.clone()).unwrap();
        assert!(told.lines().all(|line| line.chars().count() <= columns), "{told}");
    }
    let hint = format!("## Look\n\n{}\n", "word ".repeat(40));
    checkout.write("tests/answers/ch01_sum/hint.md", &hint);
    let hint = checkout.tool(&["hint", "sum"]).env("COLUMNS", "30").assert().success();
    let told = String::from_utf8(hint.get_output().stdout.clone()).unwrap();
    let words = told.lines().filter(|line| line.contains("word word"));
    assert!(words.clone().count() > 5 && words.clone().all(|line| line.len() <= 30), "{told}");
    // The manifest gives the order.
    let manifest = checkout.read("tests/exercises/Cargo.toml").replace("ch01_sum", "first");
    let manifest = manifest.replace("ch02_ring", "ch01_sum").replace("first", "ch02_ring");
    checkout.write("tests/exercises/Cargo.toml", &manifest);
    checkout.says("list", "· ch02_ring").stdout(contains("next: ch02_ring"));
}

#[test]
fn a_hint_comes_step_by_step() {
    let checkout = Checkout::new();
    let only = |number: u8| contains(format!("hint {number} of 3")).count(1);
    let none = |number: u8| only(number).not();
    let hint = || checkout.course("hint sum").success();
    hint().stdout(only(1).and(none(2)).and(contains("At both.")));
    hint().stdout(only(2).and(none(1)));
    hint().stdout(only(3).and(contains("A plus.")).and(contains("the last step")));
    hint().stdout(only(1).and(only(2)).and(only(3)));
    // Without a name, the hint is the hint of the next exercise.
    checkout.course("hint --all").success().stdout(contains("ch01_sum · hint 3"));
    checkout.course("hint ring").success().stdout(only(1).and(none(2)));
    checkout.course("hint ring --all").success().stdout(only(1).and(only(3)));
}

#[test]
fn who_asks_at_the_same_time_gets_the_next_step() {
    let checkout = Checkout::new();
    let steps: String = (1..=12).map(|step| format!("## Look\n\nNumber {step}.\n\n")).collect();
    checkout.write("tests/answers/ch01_sum/hint.md", &steps);
    // A large file of progress makes every call slow.
    let others = (0..50_000).map(|other| format!("\"other{other}\": {{\"hints\": 1}}"));
    let others = others.collect::<Vec<_>>().join(", ");
    checkout.write(".course/progress.json", &format!("{{{others}}}"));
    let ask = |_| {
        let mut course = Command::new(env!("CARGO_BIN_EXE_course"));
        course.args(["hint", "sum"]).current_dir(checkout.path("")).stdout(Stdio::piped());
        course.spawn().unwrap()
    };
    let asked: Vec<_> = (0..12).map(ask).collect();
    let told = asked.into_iter().flat_map(|one| one.wait_with_output().unwrap().stdout);
    let told = String::from_utf8(told.collect()).unwrap();
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
    // Puts the written text aside.
    let reset = |number: u8, written: &str| {
        let aside = format!(".course/ch01_sum-{number}.rs");
        checkout.course("reset sum --yes").success().stdout(contains(&*aside));
        assert_eq!((checkout.read(file), &*checkout.read(&aside)), (given.clone(), written));
    };
    reset(1, &mine);
    // With a change that is in no commit.
    let newer = mine.replace("a * b", "a / b");
    checkout.write(file, &newer);
    reset(2, &newer);
    // A copy of the course that was unpacked has no commit. The first one of its reader may have the answer already.
    fs::remove_dir_all(checkout.path(".git")).unwrap();
    checkout.course("list").success();
    checkout.write(file, &mine);
    checkout.commit("all of it");
    reset(3, &mine);
}

#[test]
fn an_exercise_comes_back_as_it_was_given() {
    // The checkout is no repository, like an unpacked copy of the course.
    let checkout = Checkout::new();
    let file = "tests/exercises/ch01_sum.rs";
    let is_as_given = |assert: Assert| {
        assert_eq!(checkout.read(file), stub("ch01_sum", "ch01-sums"));
        assert.success().stdout(contains("is as your first `cargo course` command found it"))
    };
    let reset = || is_as_given(checkout.course("reset sum --yes"));
    checkout.course("next").success();
    checkout.sum_is("a - b");
    checkout.course("reset sum").code(2).stderr(contains("--yes"));
    assert_eq!(checkout.read(file), answer("a - b"));
    let no_git = checkout.tool(&["reset", "sum", "--yes"]).env("GIT_DIR", "/nowhere").assert();
    is_as_given(no_git).stdout(contains(".course/ch01_sum-1.rs"));
    reset().stdout(contains(".course").not());
    // Nothing that was put aside is overwritten, and a file that is gone comes back.
    checkout.sum_is("a / b");
    reset().stdout(contains(".course/ch01_sum-2.rs"));
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a - b"));
    fs::remove_file(checkout.path(file)).unwrap();
    reset();
    // An answer in Latin-1 is an answer, too.
    let latin = b"// caf\xe9\n";
    fs::write(checkout.path(file), latin).unwrap();
    checkout.course("check sum").code(1).stderr(all(["ch01_sum.rs", "it is no text in UTF-8"]));
    reset().stdout(contains(".course/ch01_sum-3.rs"));
    assert_eq!(fs::read(checkout.path(".course/ch01_sum-3.rs")).unwrap(), latin);
    // A folder cannot be put aside, and stays in its place.
    fs::remove_file(checkout.path(file)).unwrap();
    fs::create_dir(checkout.path(file)).unwrap();
    let refused = contains("ch01_sum.rs: it is not a regular file; move it away first");
    checkout.course("reset sum --yes").code(1).stdout("").stderr(refused);
    assert!(checkout.path(file).is_dir());
}
