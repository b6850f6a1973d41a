//! `watch`: every save is checked, a pass leads on. Ctrl-C ends the tool, with the build that it has started.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use super::fixture::{Checkout, answer, answer_to};
use crate::signals::with_default_sigint;
use crate::stand_in::{send, signalled};
use crate::*;

/// Starting cargo on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer that makes a file and does not end.
const SPINS: &str = "std::fs::write(\"spins\", \"\").unwrap();\n    loop {\n        std::hint::black_box((a, b));\n    }";

struct Watch<'a> {
    checkout: &'a Checkout,
    process: Child,
}

impl<'a> Watch<'a> {
    fn start(checkout: &'a Checkout) -> Self {
        let process = with_default_sigint(env!("CARGO_BIN_EXE_course"))
            .arg("watch")
            .current_dir(checkout.path(""))
            .env_remove("CARGO_TARGET_DIR")
            .stdin(Stdio::null())
            .stdout(File::create(checkout.path("said")).unwrap())
            .spawn()
            .unwrap();
        Self { checkout, process }
    }

    fn said(&self) -> String {
        self.checkout.read("said")
    }

    /// Waits until something has happened, or the program has ended. Returns its exit code.
    fn wait(&mut self, happened: impl Fn(&str) -> bool) -> Option<i32> {
        let started = Instant::now();
        loop {
            let ended = self.process.try_wait().unwrap();
            let said = self.said();
            if ended.is_some() || happened(&said) {
                return ended.and_then(|status| status.code());
            }
            assert!(started.elapsed() < PATIENCE, "nothing happens:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until this was said so many times.
    fn hear(&mut self, text: &str, times: usize) {
        let ended = self.wait(|said| said.matches(text).count() >= times);
        assert_eq!(ended, None, "no {text:?} in\n{}", self.said());
    }

    /// Waits until an endless answer runs.
    fn spins(&mut self) {
        let spins = self.checkout.path("tests/exercises/spins");
        assert_eq!(self.wait(|_| spins.exists()), None, "{}", self.said());
    }

    fn press_ctrl_c(&mut self) -> Option<i32> {
        send("INT", self.process.id());
        self.wait(|_| false)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // Where a test failed it may still run.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_save_is_checked_and_a_pass_leads_to_the_next() {
    let checkout = Checkout::new();
    let mut watch = Watch::start(&checkout);
    watch.hear("Ctrl-C ends this", 1);
    checkout.sum_is("a * b");
    watch.hear("expected 5, got 6", 1);
    watch.hear("Ctrl-C ends this", 2);
    // As most editors do: a new file takes the place of the old one.
    checkout.write("new", &answer("a + b"));
    fs::rename(checkout.path("new"), checkout.path("tests/exercises/ch01_sum.rs")).unwrap();
    watch.hear("✓ ch01_sum passes", 1);
    watch.hear("ch02_ring: two numbers, added", 1);
    watch.hear("Ctrl-C ends this", 3);
    // Nobody is at a terminal, so nothing clears it.
    assert!(!watch.said().contains('\x1b'), "{}", watch.said());
    assert_eq!(watch.press_ctrl_c(), Some(130));
    assert!(watch.said().ends_with("1 of 2 solved; next: ch02_ring (cargo course next)\n"));
}

#[test]
fn a_save_ends_a_check_that_is_running() {
    let checkout = Checkout::new();
    checkout.sum_is(SPINS);
    let mut watch = Watch::start(&checkout);
    watch.spins();
    checkout.sum_is("a * b");
    watch.hear("Saved: the check begins anew", 1);
    watch.hear("expected 5, got 6", 1);
    watch.hear("2 of 2 checks fail\nSave it, and it is checked again", 1);
    assert_eq!(watch.press_ctrl_c(), Some(130));
}

#[test]
fn it_ends_when_all_is_solved_and_an_endless_loop_does_not_keep_it() {
    let checkout = Checkout::new();
    checkout.write("tests/exercises/ch02_ring.rs", &answer_to("ch02_ring", "a + b"));
    checkout.sum_is(SPINS);
    let mut watch = Watch::start(&checkout);
    watch.spins();
    assert_eq!(watch.press_ctrl_c(), Some(130));
    checkout.sum_is("a + b");
    let mut watch = Watch::start(&checkout);
    assert_eq!(watch.wait(|_| false), Some(0));
    assert!(
        watch.said().ends_with("2 of 2 solved: nothing is left to do here\n"),
        "{}",
        watch.said()
    );
}

#[test]
fn a_build_is_not_waited_for_after_ctrl_c() {
    let checkout = Checkout::new();
    let mut check = Command::new(env!("CARGO_BIN_EXE_course"));
    let output = signalled(check.args(["check", "ring"]).current_dir(checkout.path("")), "TERM");
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{output:?}");
}
