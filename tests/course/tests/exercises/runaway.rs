//! Whatever the reader's code does, it ends the check and not the tool.

use super::fixture::Checkout;
use crate::*;

#[test]
fn a_crash_is_told_with_its_own_words() {
    let checkout = Checkout::new();
    let crash = |body: &str| {
        checkout.sum_is(body);
        checkout.course("check sum").code(1)
    };
    for (body, said) in [
        ("eprintln!(\"last words {a} {b}\");\n    std::process::abort()", "last words 2 3"),
        (
            "if a == 0 { b } else { sum(a + 1, b) + std::hint::black_box(1) }",
            "overflowed its stack",
        ),
    ] {
        crash(body).stdout(contains(said)).stderr(contains("ended by a crash in adds"));
    }
    // Leaving quietly, before the checks have had their say, is no pass.
    for (body, code) in [("std::process::exit(a - b + 1)", 0), ("std::process::exit(a + b)", 5)] {
        let left =
            format!("the answer left the check in adds before it was done (exit status: {code})");
        let told = contains(format!("✗ {left}\n    does it call `std::process::exit`?"));
        crash(body).stdout(told.and(contains("\n\n\n").not())).stderr(contains(left));
    }
    let compile = crash("a + c").stdout(contains("✗ ch01_sum does not compile"));
    compile.stderr(all(["cannot find value `c`", "it does not compile"]));
    assert!(!checkout.path(".course/progress.json").exists());
}

#[test]
fn an_endless_loop_is_ended_and_so_is_what_it_started() {
    let checkout = Checkout::new();
    let id = checkout.path("id");
    checkout.sum_is(&format!(
        "let sleeper = std::process::Command::new(\"sleep\").arg(\"300\").spawn().unwrap();\n    \
         std::fs::write({id:?}, sleeper.id().to_string()).unwrap();\n    \
         println!(\"before it {{a}}\");\n    loop {{\n        std::hint::black_box((a, b));\n    }}"
    ));
    let started = Instant::now();
    let told = all(["does a loop go on for ever", "\n    before it 2\n"]);
    let check = checkout.course("check sum --limit 2").code(1).stdout(told);
    check.stderr(contains("the check did not end within 2 s in adds"));
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(has_ended(&checkout.read("id")), "what it started goes on");
}

#[cfg(target_os = "linux")]
#[test]
fn what_prints_or_grows_for_ever_is_ended_and_told() {
    let checkout = Checkout::new();
    let raw = "use std::io::Write as _;\n    loop {\n        \
               std::io::stdout().write_all(&[a as u8 + b as u8; 8192]).unwrap();\n    }";
    let grows =
        "let mut all = vec![a as i64];\n    loop {\n        all.push(b as i64 + all[0]);\n    }";
    let lines = "loop {\n        println!(\"again {a} {b}\");\n    }";
    let printed = ("the check printed more than 16 MB", "does it print without end?");
    let memory = ("the check took more than 2 GiB of memory in adds", "something longer for ever?");
    for (body, (verdict, why)) in [(raw, printed), (lines, printed), (grows, memory)] {
        checkout.sum_is(body);
        let check = checkout.course("check sum --limit 300").code(1).stderr(contains(verdict));
        check.stdout(all([verdict, why]));
    }
}

#[test]
fn what_an_answer_starts_ends_with_its_check() {
    let checkout = Checkout::new();
    let late = checkout.path("late");
    checkout.sum_is(&format!(
        "let script = \"sleep 2; touch \\\"$0\\\"\";\n    \
         std::process::Command::new(\"sh\").args([\"-c\", script, {late:?}]).spawn().unwrap();\n    a + b"
    ));
    checkout.course("check sum").success();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!late.exists(), "it lived on");
}
