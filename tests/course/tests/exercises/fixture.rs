//! A small workspace with two exercises, for the course tool to work on.

use crate::*;

/// The real package's build script and test target: what they do for two exercises they do for all.
const BUILD: &str = include_str!("../../../exercises/build.rs");
const VERIFY: &str = include_str!("../../../exercises/verify.rs");
const FORMAT: &str = include_str!("../../../../rustfmt.toml");

const MANIFEST: &str = r#"
[package]
name = "exercises"
version = "0.0.0"
edition = "2024"

[lib]
path = "lib.rs"

[[test]]
name = "ch01_sum"
path = "ch01_sum/check.rs"
test = false

[[test]]
name = "ch02_ring"
path = "ch02_ring/check.rs"
test = false

[[test]]
name = "verify"
path = "verify.rs"
test = false
"#;

const CHECK: &str = r##"#[rustfmt::skip]
#[path = "exercise.rs"]
mod exercise;

#[test]
fn adds() {
    let (got, expected) = (exercise::sum(2, 3), 5);
    let law = "law: sum, then divide once";
    assert!(got == expected, "2 + 3: expected {expected}, got {got}\n{law}");
}

#[test]
fn of_two_numbers_is_another_number() {
    assert_ne!(exercise::sum(1, 1), 1);
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
        checkout.write("tests/exercises/build.rs", BUILD);
        checkout.write("tests/exercises/verify.rs", VERIFY);
        checkout.write("tests/exercises/lib.rs", "");
        checkout.write("rustfmt.toml", FORMAT);
        for (name, page) in [("ch01_sum", "ch01-sums"), ("ch02_ring", "ch02-rings")] {
            checkout.write(&format!("book/src/{page}.md"), &format!("Do `{name}`.\n"));
            let file = |file: &str, text: &str| {
                checkout.write(&format!("tests/exercises/{name}/{file}"), text);
            };
            file("check.rs", CHECK);
            file("given.rs", &stub(name, page));
            file("solution.rs", &answer("a + b"));
            file("hint.md", "## Look\n\nAt both.\n\n## Think\n\nOf more.\n\n## Write\n\nA plus.\n");
            let wrong = [("product", "a * b"), ("first", "a"), ("less", "b - a")];
            let wrong = wrong.map(|(name, body)| change(name, "expected 5, got", body));
            file("wrong.diff", &wrong.concat());
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
        self.write("tests/exercises/ch01_sum/exercise.rs", &answer(body));
    }

    /// Commits everything, as a reader does who keeps answers in git; makes a repository of it first.
    pub fn commit(&self, message: &str) {
        let identity = ["-c", "user.name=reader", "-c", "user.email=reader@example.org"];
        let commit = ["commit", "--quiet", "--message", message];
        for words in [&["init", "--quiet"][..], &["add", "--all"], &commit] {
            let mut git = std::process::Command::new("git");
            git.args(identity).args(words).current_dir(self.path(""));
            git.env("GIT_CONFIG_GLOBAL", "/dev/null");
            assert!(git.output().unwrap().status.success(), "{words:?}");
        }
    }

    pub fn course(&self, words: &[&str]) -> Command {
        course_in(self.folder.path(), words)
    }
}

pub fn course_in(folder: &Path, words: &[&str]) -> Command {
    let mut command = tool(words);
    command.current_dir(folder).env_remove("CARGO_TARGET_DIR");
    command
}

pub fn answer(body: &str) -> String {
    format!("//! An answer.\n\npub fn sum(a: i32, b: i32) -> i32 {{\n    {body}\n}}\n")
}

/// A wrong answer, as a change to the solution.
pub fn change(name: &str, expect: &str, body: &str) -> String {
    format!("# {name}\nWrong.\nexpect: {expect}\n@@\n-    a + b\n+    {body}\n\n")
}

/// What a reader starts from.
pub fn stub(name: &str, page: &str) -> String {
    format!(
        "//! Chapter 1, `book/src/{page}.md`: two numbers, added.\n//!\n//! Check it: `cargo course check {name}`\n\n\
         pub fn sum(a: i32, b: i32) -> i32 {{\n    // TODO: add them.\n    todo!(\"add {{a}} and {{b}}\")\n}}\n"
    )
}
