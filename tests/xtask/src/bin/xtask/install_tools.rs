//! `cargo xtask install-tools`: the programs that make the book, in the versions it is written for.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::Args;
use course::doctor::probe::ask;
use course::process;
use harness::interrupt;
use harness::report::line;

/// Each with its version. A newer mdBook may give other pages; a newer mdbook-katex wants newer fonts in `book/src/katex`.
const TOOLS: [(&str, &str); 3] =
    [("mdbook", "0.5.4"), ("mdbook-katex", "0.10.0"), ("mdbook-linkcheck2", "0.13.0")];

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Programs, of those that make the book [default: all]
    #[arg(value_name = "NAME", value_parser = TOOLS.map(|(name, _)| name))]
    names: Vec<String>,

    /// Install nothing; say what is missing
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    let asked = |name| arguments.names.is_empty() || arguments.names.iter().any(|one| one == name);
    for (name, version) in TOOLS.into_iter().filter(|(name, _)| asked(*name)) {
        let mut there = found(name);
        if !arguments.check && there != version {
            line(format_args!("… {name} {version}"))?;
            install(name, version).with_context(|| format!("{name} {version}"))?;
            // Another one may come before the installed one on the PATH.
            there = found(name);
        }
        if there == version {
            line(format_args!("✓ {name} {version}"))?;
        } else {
            line(format_args!("– {name} {version}: {there}"))?;
            missing.push(name);
        }
    }
    if !missing.is_empty() {
        bail!("missing: {}; `cargo xtask install-tools` installs them", missing.join(", "));
    }
    Ok(())
}

/// The version of a program, or why there is none.
fn found(name: &str) -> String {
    match ask(name, &["--version"]) {
        Ok(answer) => answer.split([' ', 'v']).next_back().unwrap_or_default().to_owned(),
        Err(why) => why,
    }
}

/// Installs a program. It is made quickly rather than fast: a book takes seconds either way.
fn install(name: &str, version: &str) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args(["install", name, "--version", version, "--locked", "--force"])
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .context("cargo install")?;
    if interrupt::requested() {
        return Err(process::interrupted());
    }
    if !status.success() {
        bail!("cargo install failed ({status})");
    }
    Ok(())
}
