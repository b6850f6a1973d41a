//! `cargo xtask outputs`: makes the recorded outputs of the book, or checks that they would come out again.
//!
//! An output is a file `book/outputs/NAME.txt`. The first line is the command, behind a prompt. The other lines are the output of
//! the command. An author adds an output by writing the first line and running this command.

mod mask;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use course::doctor::probe::gpu_answers;
use harness::cli::UsageError;
use harness::report::{counted, line};
use mask::Mask;
use similar::TextDiff;
use xtask::book::outputs::{
    FOLDER, RECORDED, RECORDINGS, Recording, Recordings, names, needs_gpu, recorded_html,
    recordings,
};
use xtask::machine::{this_machine, this_machine_with_gpus, today};
use xtask::{root, stored};

use crate::shell;

const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Outputs, by the names of their files without .txt [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Change nothing; print the differences
    #[arg(long)]
    check: bool,

    /// With --check: also those that take more than 20 seconds
    #[arg(long, requires = "check")]
    all: bool,

    /// Record commands that fail on purpose
    #[arg(long, conflicts_with = "check", requires = "names")]
    fails: bool,
}

enum Outcome {
    Done,
    Different,
    LeftOut,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = root();
    let known = names(&root);
    if let Some(unknown) = arguments.names.iter().find(|name| !known.contains(name)) {
        bail!(UsageError::new(format_args!(
            "there is no output {unknown}: write its command into {FOLDER}/{unknown}.txt, as `$ COMMAND`"
        )));
    }
    let named = |name: &&String| arguments.names.is_empty() || arguments.names.contains(name);
    let mut counts = [0; 3];
    for name in known.iter().filter(named) {
        let (outcome, told) = output(&root, name, arguments).with_context(|| name.clone())?;
        line(format_args!("{name}: {told}"))?;
        counts[outcome as usize] += 1;
    }
    let did = if arguments.check { "the same" } else { "recorded" };
    let [done, different, left_out] = counts;
    let done = counted(done, "output");
    line(format_args!("{done} {did}, {different} different, {left_out} left out"))?;
    if different > 0 {
        bail!("`cargo xtask outputs NAME` records an output anew");
    }
    Ok(())
}

/// Records or checks one output, and returns the outcome in words, too.
fn output(root: &Path, name: &str, arguments: &Arguments) -> anyhow::Result<(Outcome, String)> {
    let left_out = |why: &str| Ok((Outcome::LeftOut, format!("left out: {why}")));
    let path = root.join(FOLDER).join(name).with_extension("txt");
    let recorded = std::fs::read_to_string(&path)?;
    let Some(command) = recorded.lines().next().and_then(|line| line.strip_prefix("$ ")) else {
        bail!("{} does not begin with `$ COMMAND`", path.display());
    };
    let mut recordings = recordings(root)?;
    let recording = recordings.get(name);
    if needs_gpu(name) && !gpu_answers() {
        return left_out("it needs a GPU, and none answers here");
    }
    let asked = arguments.all || arguments.names.iter().any(|asked| asked == name);
    if arguments.check && !asked && recording.is_some_and(Recording::is_long) {
        return left_out("it takes long (--all)");
    }

    // The time is the program's, not its compiler's.
    if let Some(build) = build_before(command) {
        let built = shell::run(&build, root, LIMIT)?;
        if !built.status.success() {
            bail!("`{build}` failed ({}):\n{}", built.status, built.output.trim_end());
        }
    }
    let ended = shell::run(command, root, LIMIT)?;
    let fails = arguments.fails || recording.is_some_and(|recording| recording.fails);
    if ended.status.success() == fails {
        let wanted = if fails { "it was to fail" } else { "--fails records one that does so" };
        bail!("`{command}`: {}; {wanted}\n{}", ended.status, ended.output.trim_end());
    }
    if ended.output.contains(&*root.to_string_lossy()) {
        bail!("`{command}` prints where this checkout lies, which is not for the book");
    }
    let machine = if needs_gpu(name) { this_machine_with_gpus()? } else { this_machine() };
    let lines: Vec<&str> = ended.output.trim_end().lines().map(str::trim_end).collect();
    let made = format!("$ {command}\n{}\n", lines.join("\n"));
    if !arguments.check {
        stored::write(&path, &made)?;
        let (date, seconds) = (today(), ended.seconds.round());
        recordings.insert(name.to_owned(), Recording { machine, date, seconds, fails });
        store(root, &recordings)?;
        return Ok((Outcome::Done, format!("recorded in {seconds} s")));
    }
    let Some(recording) = recording else {
        let told = format!("was never recorded: `cargo xtask outputs {name}`");
        return Ok((Outcome::Different, told));
    };
    let mask = Mask::between(&recording.machine, &machine);
    let (was, is) = (mask.hide(&recorded), mask.hide(&made));
    if was == is {
        return Ok((Outcome::Done, format!("the same, {mask} masked")));
    }
    let lines = TextDiff::from_lines(&was, &is).unified_diff().context_radius(2).to_string();
    let told = format!("different; - as recorded, + as it is now, {mask} masked");
    Ok((Outcome::Different, format!("{told}\n{}", lines.trim_end())))
}

/// Stores the recordings, as data and as lines for the pages.
fn store(root: &Path, recordings: &Recordings) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(recordings)? + "\n";
    stored::write(&root.join(RECORDINGS), &json)?;
    stored::write(&root.join(RECORDED), &recorded_html(recordings))
}

/// The command that builds the program of a command.
fn build_before(command: &str) -> Option<String> {
    let flags = command.strip_prefix("cargo run ")?;
    let flags = flags.split_once(" -- ").map_or(flags, |(flags, _)| flags);
    Some(format!("cargo build {}", flags.trim_end_matches(" --")))
}

#[test]
fn the_program_of_a_command_is_built_before_it_runs() {
    let built = |command| build_before(command).unwrap();
    assert_eq!(built("cargo run --release -p a -- --help"), "cargo build --release -p a");
    assert_eq!(built("cargo run --release -p a"), "cargo build --release -p a");
    assert_eq!(build_before("cargo course doctor"), None);
}
