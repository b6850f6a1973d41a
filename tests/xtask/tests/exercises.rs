//! `verify` finds faulty exercises in a small workspace.

#[expect(dead_code, reason = "the tests of the learner's tool need more of it")]
#[path = "../../course/tests/exercises/fixture.rs"]
mod fixture;

use fixture::{Checkout, answer, change};

use crate::*;

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
    let lost = checkout.read("tests/answers/ch02_ring/solution.rs");
    checkout.write("tests/answers/ch03_lost/solution.rs", &lost);
    let verify = checkout.tool(&["verify", "--limit", "2"]).assert().code(1);
    let told = String::from_utf8(verify.get_output().stdout.clone()).unwrap();
    let folder = "tests/answers/ch01_sum";
    for flaw in [
        "ch01_sum: ch01_sum.rs has 0 lines `// TODO`, and not one",
        "ch01_sum: ch01_sum.rs does not name the command that checks it",
        "ch01_sum: checks/ch01_sum.rs and ch01_sum.rs begin with different lines",
        "ch01_sum: hint.md has 2 steps",
        "ch03_lost: the package's Cargo.toml has no [[bin]] with ch03_lost.rs",
        &format!("{folder}/wrong.diff, first: has no line `expect: TEXT`"),
        "tests/exercises/ch01_sum.rs: passes: nothing is left to write",
        &format!("{folder}/solution.rs: 1 of 2 checks fails\nadds: 2 + 3: expected 5, got -1"),
        &format!("{folder}/wrong.diff, less: passes, and is wrong"),
        &format!("{folder}/wrong.diff, product: fails without \"rank 7\", but with\nadds: 2 + 3"),
        "tests/answers/ch02_ring/wrong.diff, less: the check did not end within 2 s in adds",
        "tests/answers/ch02_ring/wrong.diff, first: the check was ended by a crash in adds",
        "clippy has something to say",
    ] {
        assert!(told.contains(&format!("\n✗ {flaw}")), "{flaw}\n{told}");
    }
    let last = "\n2 exercises: 1 stub, 1 solution and 1 mistake were judged as they should be\n";
    assert!(told.ends_with(last), "{told}");
    verify.stderr(contains("unused variable").and(ends_with("problems, told above\n")));
}

#[test]
fn an_answer_that_does_not_compile_or_fit_is_a_flaw() {
    let checkout = Checkout::new();
    let verify = || checkout.tool(&["verify"]).assert().code(1);
    checkout.write("tests/answers/ch01_sum/solution.rs", &answer("b + a"));
    let told =
        contains("✗ ch01_sum: wrong.diff: product: these lines stand 0 times in solution.rs")
            .and(contains("ch01_sum: 0 mistakes, at least 3 are wanted"))
            .and(contains("2 solutions and 3 mistakes were judged as they should be"));
    verify().stdout(told);
    checkout.write("tests/answers/ch01_sum/solution.rs", &answer("a + c"));
    let told = || contains("`verify` does not compile").and(contains(" 0 solutions and "));
    verify().stdout(told()).stderr(contains("cannot find value `c`"));
    fs::remove_file(checkout.path("tests/exercises/ch02_ring.rs")).unwrap();
    verify().stdout(told().and(contains("ch02_ring: ch02_ring.rs cannot be read")));
}
