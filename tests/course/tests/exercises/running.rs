//! `cargo course run`: the program with the answer, whatever the answer does.

use super::fixture::Checkout;
use crate::*;

#[test]
fn a_run_shows_what_an_answer_changes_and_what_its_check_says() {
    let checkout = Checkout::new();
    for (body, shown) in [
        (
            "a + b",
            "yours: 23, ours: 23\n\nThe answer passes its check: `cargo course check ch01_sum` counts it.\n",
        ),
        (
            "a * b",
            "yours: 60, ours: 23\n\nThe answer does not pass its check: 2 of 2 checks fail (cargo course check ch01_sum).\n",
        ),
    ] {
        checkout.sum_is(body);
        checkout.course("run sum").success().stdout(shown);
    }
    checkout.sum_is("a + b");
    checkout.says(
        "check sum",
        "✓ ch01_sum passes its 2 checks\n  to see it at work:    cargo course run ch01_sum\n",
    );
    checkout.course("run sum").success().stdout("yours: 23, ours: 23\n");
}

#[test]
fn the_capstone_runs_the_answers_that_have_passed() {
    let checkout = Checkout::new();
    let mine = |told: &str| {
        checkout.course("run mine").success().stdout(format!("ch01_sum is {told}\n"));
    };
    checkout.sum_is("a + c");
    mine("ours: its check has not passed");
    checkout.sum_is("a + b");
    checkout.course("check sum").success();
    mine("yours: 23");
    checkout.sum_is("b + a");
    mine("ours: changed since its check passed");
    checkout.course("check sum").success();
    mine("yours: 23");
}

#[test]
fn a_run_without_an_end_a_result_or_a_program_is_a_failure_in_one_line() {
    let checkout = Checkout::new();
    for (body, said) in [
        (
            "loop {\n        std::hint::black_box(a + b);\n    }",
            "the run of ch01_sum did not end within 2 s",
        ),
        ("std::process::abort()", "the run of ch01_sum was ended by a crash"),
        ("a + c", "ch01_sum was not run: it does not compile"),
        ("0", "error: nothing to add"),
    ] {
        checkout.sum_is(body);
        let run = checkout.course("run sum --limit 2").code(1);
        run.stderr(contains(said).and(contains("panicked").not()));
    }
    checkout.course("run ring").code(2).stderr(contains("ch02_ring has no run"));
    checkout.course("run").code(2);
    for name in ["ch01_sum", "mine"] {
        let refusal = format!("the lists of ch06_1f1b, and {name} has none\n");
        let run = checkout.course(&format!("run {name} --in-pytorch"));
        run.code(2).stderr(ends_with(refusal));
    }
}
