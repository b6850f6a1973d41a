//! `cargo xtask release-notes`: what a release tells of itself, if the files that name it agree.

use anyhow::{Context as _, bail};
use clap::Args;
use harness::report::line;
use xtask::{release, root};

/// Every package of the workspace has this one.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The version to be released, which has to be the workspace's [default: the workspace's]
    version: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(asked) = arguments.version.as_deref().filter(|&asked| asked != VERSION) {
        bail!("version {asked} was asked for, and Cargo.toml has version {VERSION}");
    }
    let read = |name: &str| {
        std::fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"))
    };
    match release::notes(VERSION, &read("CHANGELOG.md")?, &read("CITATION.cff")?) {
        Ok(notes) => Ok(line(notes)?),
        Err(wrong) => bail!("{}", wrong.join("; ")),
    }
}
