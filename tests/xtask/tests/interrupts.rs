//! Ctrl-C ends the tool with the programs that the tool has started, and the exit code says so.

#![cfg(unix)]

use course_tests::signals::with_default_sigint;

use crate::stand_in::signalled;

#[test]
fn a_signal_ends_what_the_tool_runs() {
    for (signal, code, flags) in [
        ("INT", 130, &["walk", "--page", "ch02-all-reduce"][..]),
        ("TERM", 143, &["verify"]),
        ("INT", 130, &["outputs", "--check", "ch02-default"]),
    ] {
        let mut tool = with_default_sigint(env!("CARGO_BIN_EXE_xtask"));
        let output = signalled(tool.args(flags), signal);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {output:?}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(!told.contains('✗') && output.stderr.is_empty(), "{flags:?}: {output:?}");
    }
}
