//! `verify` and `soak`: exercises that cannot be trusted are found.

use super::fixture::{Checkout, answer, change};
use crate::*;

#[test]
fn sound_exercises_are_counted() {
    let checkout = Checkout::new();
    let verify = checkout.tool(&["verify"]).assert().success();
    verify.stdout(ends_with(
        "\n2 exercises: 2 stubs, 2 solutions and 6 mistakes were judged as they should be\n",
    ));
}

#[test]
fn every_flaw_is_told() {
    let checkout = Checkout::new();
    let sum = |file: &str, text: &str| {
        checkout.write(&format!("tests/answers/ch01_sum/{file}"), text);
    };
    checkout.sum_is("a + b");
    sum("hint.md", "## Look\n\n## Think\n");
    sum("solution.rs", &answer("let unused = 1;\n    a - b"));
    let wrong = [("first", "", "a"), ("less", "law: sum", "b + a"), ("product", "rank 7", "a * b")];
    let wrong = wrong.map(|(name, expect, body)| change(name, expect, body)).concat();
    sum("wrong.diff", &wrong.replace("a + b", "a - b"));
    let wrong = [("less", "loop {}"), ("first", "std::process::abort()"), ("product", "a * b")];
    let wrong = wrong.map(|(name, body)| change(name, "law", body)).concat();
    checkout.write("tests/answers/ch02_ring/wrong.diff", &wrong);
    let check = "tests/exercises/checks/ch02_ring.rs";
    checkout.write(
        check,
        &format!(
            "{}

",
            checkout.read(check)
        ),
    );
    std::fs::remove_file(checkout.path("book/src/ch01-sums.md")).unwrap();
    checkout.write("book/src/ch02-rings.md", "See `ch02_ring_again`.\n");
    let lost = checkout.read("tests/answers/ch02_ring/solution.rs");
    checkout.write("tests/answers/ch03_lost/solution.rs", &lost);
    let verify = checkout.tool(&["verify", "--limit", "2"]).assert().code(1);
    let told = String::from_utf8(verify.get_output().stdout.clone()).unwrap();
    let folder = "tests/answers/ch01_sum";
    for flaw in [
        "ch01_sum: ch01_sum.rs has 0 lines `// TODO`, and not one",
        "ch01_sum: ch01_sum.rs does not name the command that checks it",
        "ch01_sum: hint.md has 2 steps",
        "ch01_sum: there is no page book/src/ch01-….md",
        "book/src/ch02-rings.md does not name the exercise",
        "ch03_lost: the package's Cargo.toml has no [[bin]] with ch03_lost.rs",
        &format!("{folder}/wrong.diff, first: has no line `expect: TEXT`"),
        "tests/exercises/ch01_sum.rs: passes: nothing is left to write",
        &format!("{folder}/solution.rs: 1 of 2 checks fails\nadds: 2 + 3: expected 5, got -1"),
        &format!("{folder}/wrong.diff, less: passes, and is wrong"),
        &format!("{folder}/wrong.diff, product: fails without \"rank 7\", but with\nadds: 2 + 3"),
        "ch02_ring/wrong.diff, less: the check did not end within 2 s in adds",
        "ch02_ring/wrong.diff, first: the check was ended by a crash in adds",
        "checks/ch02_ring.rs: rustfmt would change it",
        "clippy has something to say",
    ] {
        assert!(told.contains(&format!("\n✗ {flaw}")) || told.contains(flaw), "{flaw}\n{told}");
    }
    let last = "\n2 exercises: 1 stub, 1 solution and 1 mistake were judged as they should be\n";
    assert!(told.ends_with(last), "{told}");
    verify.stderr(contains("unused variable").and(ends_with("problems, told above\n")));
}

#[test]
fn a_wrong_answer_that_does_not_fit_the_solution_is_named() {
    let checkout = Checkout::new();
    checkout.write("tests/answers/ch01_sum/solution.rs", &answer("b + a"));
    let told =
        contains("✗ ch01_sum: wrong.diff: product: these lines stand 0 times in solution.rs")
            .and(contains("ch01_sum: 0 mistakes, at least 3 are wanted"))
            .and(contains("2 solutions and 3 mistakes were judged as they should be"));
    checkout.tool(&["verify"]).assert().code(1).stdout(told);
}

#[test]
fn what_does_not_compile_is_a_flaw() {
    let checkout = Checkout::new();
    checkout.write("tests/answers/ch01_sum/solution.rs", &answer("a + c"));
    let verify = || checkout.tool(&["verify"]).assert().code(1);
    let told = || contains("`verify` does not compile").and(contains(" 0 solutions and "));
    verify().stdout(told()).stderr(contains("cannot find value `c`"));
    fs::remove_file(checkout.path("tests/exercises/ch02_ring.rs")).unwrap();
    verify().stdout(told().and(contains("ch02_ring: ch02_ring.rs cannot be read")));
}

#[test]
fn a_wrong_name_gets_the_nearest_ones() {
    let checkout = Checkout::new();
    let refused = checkout.tool(&["soak", "rnig"]).assert().code(2).stdout("");
    refused.stderr(diff("error: no exercise is called 'rnig'; the nearest: ch02_ring\n"));
}

#[test]
fn what_cargo_fails_at_is_told() {
    let checkout = Checkout::new();
    // A folder that cannot be made, and a flag that no compiler has.
    let nowhere = checkout.path("Cargo.toml");
    for (variable, value) in
        [("CARGO_TARGET_DIR", nowhere.to_str().unwrap()), ("RUSTFLAGS", "--bogus")]
    {
        let verify = checkout.tool(&["verify"]).env(variable, value).assert().code(1);
        verify.stderr(contains("Cargo.toml").or(contains("bogus")).or(contains("told above")));
    }
}

#[test]
fn a_change_that_survives_needs_a_reason() {
    let checkout = Checkout::new();
    let soak = || checkout.tool(&["soak", "ch01_sum"]).assert();
    soak().success().stdout(ends_with("\nin all: 1 of 1 viable changes are caught\n"));

    checkout
        .write("tests/answers/ch01_sum/solution.rs", &answer("let carry = 0;\n    a + b + carry"));
    let change = "a + b + carry | `a + b + carry` → `a + b - carry`";
    let told = contains("solution.rs:5: `a + b + carry` → `a + b - carry` survives\n")
        .and(contains("ch01_sum: 2 of 3 viable changes are caught: fewer than 90 %"))
        .and(contains(format!("ch01_sum | {change} | REASON")));
    soak().code(1).stdout(told);

    checkout.write(
        "tests/answers/survivors.txt",
        &format!("ch01_sum | {change} | carry is 0\nch01_sum | a | without `a` | long gone\n"),
    );
    let told = contains("`a + b - carry` survives: carry is 0\n")
        .and(contains("survivors.txt:2: no such change survives: a | without `a`"))
        .and(contains("fewer than 90 %"));
    soak().code(1).stdout(told.and(contains("REASON").not()));
}
