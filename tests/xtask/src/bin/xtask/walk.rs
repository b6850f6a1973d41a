//! `cargo xtask walk`: every command of every page, as it is printed there.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use course::doctor::probe::{ask, gpu_answers};
use harness::cli::UsageError;
use harness::interrupt;
use harness::report::{counted, line};
use xtask::book::commands::{self, Command};
use xtask::book::{Book, outputs};
use xtask::root;

use crate::shell;

/// A command that takes longer is ended and has failed.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Only the commands of this page, by its name with or without .md
    #[arg(long, value_name = "NAME")]
    page: Option<String>,

    /// Also the commands that take minutes
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = root();
    let mut commands = commands::all(&Book::open(&root)?, &outputs::recordings(&root)?);
    if let Some(page) = &arguments.page {
        let name = |page: &str| page.trim_end_matches(".md").to_owned();
        commands.retain(|command| name(&command.page) == name(page));
        if commands.is_empty() {
            bail!(UsageError::new(format_args!(
                "{page}: there is no such page in book/src, or it prints no commands"
            )));
        }
    }
    let mut ran = BTreeSet::new();
    let (mut failed, mut skipped, mut again) = (0, 0, 0);
    for command in &commands {
        let Command { page, line: at, text, .. } = command;
        if ran.contains(text.as_str()) {
            again += 1;
            continue;
        }
        if let Some(why) = left_out(command, arguments.all) {
            skipped += 1;
            line(format_args!("– {page}:{at}: {text}\n    left out: {why}"))?;
            continue;
        }
        ran.insert(text.as_str());
        let ended = shell::run(text, &root, LIMIT);
        if interrupt::requested() {
            // The exit code says so.
            return Ok(());
        }
        let wanted = !command.marks.iter().any(|mark| mark == "fails");
        let failure = match ended {
            Ok(ended) if ended.status.success() == wanted => {
                line(format_args!("✓ {page}:{at}: {text}  {:.1} s", ended.seconds))?;
                continue;
            }
            Ok(ended) if wanted => format!("{}\n{}", ended.status, ended.output.trim_end()),
            Ok(_) => "succeeded, although its block says `fails`".to_owned(),
            Err(error) => error.to_string(),
        };
        line(format_args!("✗ {page}:{at}: {text}\n    {}", failure.replace('\n', "\n    ")))?;
        failed += 1;
    }
    line(format_args!(
        "{}: {} run as printed, {failed} do not, {again} were there before, {skipped} left out",
        counted(commands.len(), "command"),
        ran.len() - failed
    ))?;
    if failed > 0 {
        bail!("{} of the book did not run as printed", counted(failed, "command"));
    }
    Ok(())
}

fn left_out(command: &Command, all: bool) -> Option<&'static str> {
    let reason = |mark: &String| match mark.as_str() {
        "interactive" => Some("it waits for a person"),
        "edits" => Some("it changes the reader's files"),
        "long" if !all => Some("it takes long (--all)"),
        "gpu" if !gpu_answers() => Some("it needs a GPU, and none answers here"),
        "mpi" if ask("mpirun", &["--version"]).is_err() => {
            Some("it needs mpirun, which is not here")
        }
        _ => None,
    };
    command.marks.iter().find_map(reason)
}
