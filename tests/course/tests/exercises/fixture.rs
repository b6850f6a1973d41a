//! A small workspace with two exercises, for the tools to work on.

use assert_cmd::assert::Assert;

use crate::*;

const FORMAT: &str = include_str!("../../../../rustfmt.toml");

const MANIFEST: &str = r#"
[package]
name = "exercises"
version = "0.0.0"
edition = "2024"
autobins = false

[lib]
path = "support/lib.rs"

[[bin]]
name = "ch01_sum"
path = "ch01_sum.rs"

[[bin]]
name = "ch02_ring"
path = "ch02_ring.rs"

[[test]]
name = "verify"
path = "support/verify.rs"
harness = false
test = false

[[example]]
name = "mine"
path = "support/mine.rs"
"#;

/// The real package's program of the learner's answers.
const MINE: &str = include_str!("../../../exercises/support/mine.rs");

/// The real package's program of all candidates.
const VERIFY: &str = include_str!("../../../exercises/support/verify.rs");

/// A small library with the interface of the real package's library.
const SUPPORT: &str = r##"//! Laws of sums.

#![allow(clippy::type_complexity)]

use std::process::ExitCode;

pub type Answer = fn(i32, i32) -> i32;

#[path = "../checks/mod.rs"]
pub mod checks;

#[macro_export]
macro_rules! check {
    ($exercise:ident, $answer:expr) => {
        pub fn answer_of_runs() -> $crate::Answer {
            $answer
        }

        /// Checks the answer.
        pub fn main() -> std::process::ExitCode {
            let _ = option_env!("COURSE_FINGERPRINT");
            let answer = answer_of_runs();
            if std::env::args().next_back().as_deref() == Some("run") {
                return match answer(20, 3) {
                    0 => $crate::laws::failed(),
                    sum => $crate::laws::told(sum),
                };
            }
            $crate::laws::run($crate::checks::$exercise::LAWS, answer)
        }
    };
}

pub mod runs {
    pub mod mine {
        use std::{any::Any, process::ExitCode};

        pub fn main(answers: &[(&str, Result<&dyn Any, &str>)]) -> ExitCode {
            for (exercise, answer) in answers {
                match answer {
                    Ok(sum) => println!("{exercise} is yours: {}", sum.downcast_ref::<crate::Answer>().unwrap()(20, 3)),
                    Err(why) => println!("{exercise} is ours: {why}"),
                }
            }
            ExitCode::SUCCESS
        }
    }
}

pub mod laws {
    use super::*;

    pub fn told(sum: i32) -> ExitCode {
        println!("yours: {sum}, ours: 23");
        ExitCode::SUCCESS
    }

    pub fn failed() -> ExitCode {
        eprintln!("error: nothing to add");
        ExitCode::FAILURE
    }

    pub fn run(laws: &'static [(&'static str, fn(Answer))], answer: Answer) -> ExitCode {
        let (mut passed, mut failed) = (0, 0);
        for (name, law) in laws {
            let state = move |state: &str| println!("\u{1e}{{\"law\":\"{name}\",\"state\":\"{state}}}");
            std::panic::set_hook(Box::new(move |panic| {
                let message = panic.payload_as_str().unwrap_or_default();
                let place = format!("\"{}\"", panic.location().unwrap());
                let place = if place.contains("checks") { "null" } else { &*place };
                let todo = message.starts_with("not yet implemented");
                state(&format!("failed\",\"message\":{message:?},\"place\":{place},\"todo\":{todo}"));
            }));
            state("begun\"");
            if std::panic::catch_unwind(|| law(answer)).is_ok() {
                passed += 1;
                state("passed\"");
            } else {
                failed += 1;
            }
        }
        println!("\u{1e}{{\"ended\":{{\"passed\":{passed},\"failed\":{failed}}}}}");
        ExitCode::from(u8::from(failed > 0))
    }

    pub fn choose(candidates: &[(&str, &str, fn() -> ExitCode)]) -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let named = |(exercise, candidate, _): &&(&str, &str, _)| {
            arguments[0] == *exercise && arguments[1] == *candidate
        };
        candidates.iter().find(named).unwrap().2()
    }
}
"##;

const CHECK: &str = r##"
use crate::Answer;

pub const LAWS: &[(&str, fn(Answer))] =
    &[("adds", adds), ("of_two_numbers_is_another_number", of_two_numbers_is_another_number)];

fn adds(sum: Answer) {
    let (got, expected) = (sum(2, 3), 5);
    let law = "law: sum, then divide once";
    assert!(got == expected, "2 + 3: expected {expected}, got {got}\n{law}");
}

fn of_two_numbers_is_another_number(sum: Answer) {
    assert_ne!(sum(1, 1), 1);
}
"##;

pub struct Checkout {
    folder: TempDir,
}

impl Checkout {
    /// Two sound exercises that nobody has solved.
    pub fn new() -> Self {
        let checkout = Self { folder: tempfile::tempdir().unwrap() };
        checkout.write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"tests/exercises\"]\n",
        );
        checkout.write("tests/exercises/Cargo.toml", MANIFEST);
        checkout.write("tests/exercises/support/lib.rs", SUPPORT);
        checkout.write("tests/exercises/support/verify.rs", VERIFY);
        checkout.write("tests/exercises/support/mine.rs", MINE);
        let checks = "pub mod ch01_sum;\npub mod ch02_ring;\n";
        checkout.write("tests/exercises/checks/mod.rs", checks);
        checkout.write("rustfmt.toml", FORMAT);
        for (name, page) in [("ch01_sum", "ch01-sums"), ("ch02_ring", "ch02-rings")] {
            checkout.write(&format!("book/src/{page}.md"), &format!("Do `{name}`.\n"));
            checkout.write(&format!("tests/exercises/{name}.rs"), &stub(name, page));
            checkout.write(&format!("tests/exercises/checks/{name}.rs"), &(header(page) + CHECK));
            if name == "ch01_sum" {
                checkout.write("tests/exercises/runs/ch01_sum.rs", "");
                let expected = "ch01_sum solution: yours: 23,\nch01_sum product: yours: 60,\n";
                checkout.write("tests/exercises/runs/expected.txt", expected);
            }
            let wrong = [("product", "a * b"), ("first", "a"), ("less", "b - a")];
            let wrong = wrong.map(|(name, body)| change(name, "expected 5, got", body)).concat();
            let hint = "## Look\n\nAt both.\n\n## Think\n\nOf more.\n\n## Write\n\nA plus.\n";
            let solution = answer_to(name, "a + b");
            for (file, text) in
                [("solution.rs", &*solution), ("hint.md", hint), ("wrong.diff", &wrong)]
            {
                checkout.write(&format!("tests/answers/{name}/{file}"), text);
            }
        }
        checkout
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Writes the reader's answer to `ch01_sum`.
    pub fn sum_is(&self, body: &str) {
        self.write("tests/exercises/ch01_sum.rs", &answer(body));
    }

    /// Makes a repository, and commits everything: some readers keep answers in git.
    pub fn commit(&self, message: &str) {
        self.commit_under(Path::new("/dev/null"), message);
    }

    /// Does the same under these settings of the user.
    pub fn commit_under(&self, settings: &Path, message: &str) {
        let identity = ["-c", "user.name=reader", "-c", "user.email=reader@example.org"];
        let commit = ["commit", "--quiet", "--message", message];
        for words in [&["init", "--quiet"][..], &["add", "--all"], &commit] {
            let mut git = std::process::Command::new("git");
            git.args(identity).args(words).current_dir(self.path(""));
            git.env("GIT_CONFIG_GLOBAL", settings);
            let ended = git.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{words:?}: {said}");
        }
    }

    pub fn tool(&self, words: &[&str]) -> Command {
        tool_in(self.folder.path(), words)
    }

    /// Runs the learner's tool with these words.
    pub fn course(&self, words: &str) -> Assert {
        self.tool(&words.split(' ').collect::<Vec<_>>()).assert()
    }

    /// Runs the tool, which succeeds and prints a text that begins like this.
    pub fn says(&self, words: &str, beginning: &str) -> Assert {
        self.course(words).success().stdout(starts_with(beginning.to_owned()))
    }
}

pub fn tool_in(folder: &Path, words: &[&str]) -> Command {
    let mut command = tool(words);
    command.current_dir(folder).env_remove("CARGO_TARGET_DIR");
    command
}

/// An answer to `ch01_sum`.
pub fn answer(body: &str) -> String {
    answer_to("ch01_sum", body)
}

pub fn answer_to(name: &str, body: &str) -> String {
    let signature = "pub fn sum(a: i32, b: i32) -> i32";
    format!("//! An answer.\n\n{signature} {{\n    {body}\n}}\n\nexercises::check!({name}, sum);\n")
}

/// The line with which an exercise and its check begin.
fn header(page: &str) -> String {
    format!("//! Chapter 1, `book/src/{page}.md`: two numbers, added.\n")
}

/// A wrong answer, as a change to the solution.
pub fn change(name: &str, expect: &str, body: &str) -> String {
    format!("# {name}\nWrong.\nexpect: {expect}\n@@\n-    a + b\n+    {body}\n\n")
}

/// The text of an exercise before any answer.
pub fn stub(name: &str, page: &str) -> String {
    let header = header(page);
    format!(
        "{header}//!\n//! Check your answer: `cargo course check {name}`\n\n\
         pub fn sum(a: i32, b: i32) -> i32 {{\n    // TODO: add them.\n    todo!(\"add {{a}} and {{b}}\")\n}}\n\n\
         exercises::check!({name}, sum);\n"
    )
}
