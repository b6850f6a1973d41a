//! `cargo xtask walk`: every command of every page, as it is printed there.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use harness::interrupt;
use harness::report::{counted, line};
use xtask::book::Book;
use xtask::book::commands::{self, Command};
use xtask::root;

use crate::shell;
use course::doctor::probe::{ask, gpu_answers};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Only the commands of this page, by its name with or without .md
    #[arg(long, value_name = "NAME")]
    page: Option<String>,

    /// Also what takes minutes
    #[arg(long)]
    all: bool,

    /// Seconds after which a command is ended and counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = root();
    let book = Book::open(&root)?;
    let of_page = |command: &Command| match &arguments.page {
        Some(page) => command.page.trim_end_matches(".md") == page.trim_end_matches(".md"),
        None => true,
    };
    let commands: Vec<Command> = commands::all(&book)?.into_iter().filter(of_page).collect();
    if let Some(page) = &arguments.page
        && commands.is_empty()
    {
        bail!(harness::cli::UsageError::new(format_args!(
            "{page}: there is no such page in book/src, or it prints no commands"
        )));
    }
    let limit = Duration::from_secs(arguments.limit);
    // What came of each command, so that none is run twice.
    let mut seen: BTreeMap<&str, bool> = BTreeMap::new();
    let (mut skipped, mut again) = (0, 0);
    for command in &commands {
        let Command { page, line: at, text, .. } = command;
        if seen.contains_key(text.as_str()) {
            again += 1;
            continue;
        }
        if let Some(why) = left_out(command, arguments.all) {
            skipped += 1;
            line(format_args!("– {page}:{at}: {text}\n    left out: {why}"))?;
            continue;
        }
        let wanted = !command.marks.iter().any(|mark| mark == "fails");
        let ended = shell::run(text, &root, limit);
        if interrupt::requested() {
            // The exit code says so.
            return Ok(());
        }
        let failure = match ended {
            Ok(ended) if ended.status.success() == wanted => {
                line(format_args!("✓ {page}:{at}: {text}  {:.1} s", ended.seconds))?;
                None
            }
            Ok(ended) if wanted => Some(format!("{}\n{}", ended.status, ended.output.trim_end())),
            Ok(_) => Some("succeeded, although its block says `fails`".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failure) = &failure {
            line(format_args!("✗ {page}:{at}: {text}\n    {}", failure.replace('\n', "\n    ")))?;
        }
        seen.insert(text, failure.is_none());
    }
    let passed = seen.values().filter(|passed| **passed).count();
    let failed = seen.len() - passed;
    line(format_args!(
        "{}: {passed} run as printed, {failed} do not, {again} were there before, {skipped} left out",
        counted(commands.len(), "command")
    ))?;
    if failed > 0 {
        bail!("{} of the book did not run as printed", counted(failed, "command"));
    }
    Ok(())
}

fn left_out(command: &Command, all: bool) -> Option<&'static str> {
    let marked = |mark: &str| command.marks.iter().any(|known| known == mark);
    let reasons = [
        (marked("interactive"), "it waits for a person"),
        (marked("edits"), "it changes the reader's files"),
        (marked("long") && !all, "it takes long (--all)"),
        (marked("gpu") && !gpu_answers(), "it needs a GPU, and none answers here"),
        (
            marked("mpi") && ask("mpirun", &["--version"]).is_err(),
            "it needs mpirun, which is not here",
        ),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, why)| why)
}
