//! `cargo xtask outputs`: makes the recorded outputs of the book, or checks that they would come out again.
//!
//! An output is a file `book/outputs/NAME.txt`. Its first line is the command, behind a prompt; the rest is
//! what it printed. To add one, write the first line and let this command do the rest.

mod mask;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use harness::report::{counted, file, line};
use mask::Mask;
use similar::{ChangeTag, TextDiff};
use xtask::book::outputs::{FOLDER, Recording, Recordings, names, needs_gpu};
use xtask::book::recorded;
use xtask::root;

use crate::machine::{this_machine, this_machine_with_gpus, today};
use crate::shell;
use course::doctor::probe::gpu_answers;

const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Outputs, by the names of their files without .txt [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Change nothing; say what would come out differently
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
    LeftOut(&'static str),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = root();
    let known = names(&root)?;
    if let Some(unknown) = arguments.names.iter().find(|name| !known.contains(name)) {
        bail!(harness::cli::UsageError::new(format_args!(
            "there is no output {unknown}: write its command into {FOLDER}/{unknown}.txt, as `$ COMMAND`"
        )));
    }
    let named = |name: &&String| arguments.names.is_empty() || arguments.names.contains(name);
    let (mut done, mut different, mut left_out) = (0, 0, 0);
    for name in known.iter().filter(named) {
        let outcome = output(&root, name, arguments).with_context(|| name.clone())?;
        match outcome {
            Outcome::Done => done += 1,
            Outcome::Different => different += 1,
            Outcome::LeftOut(why) => {
                left_out += 1;
                line(format_args!("{name}: left out: {why}"))?;
            }
        }
    }
    let did = if arguments.check { "the same" } else { "recorded" };
    let done = counted(done, "output");
    line(format_args!("{done} {did}, {different} different, {left_out} left out"))?;
    if different > 0 {
        bail!("`cargo xtask outputs NAME` records an output anew");
    }
    Ok(())
}

fn output(root: &Path, name: &str, arguments: &Arguments) -> anyhow::Result<Outcome> {
    let path = root.join(FOLDER).join(name).with_extension("txt");
    let recorded = std::fs::read_to_string(&path)?;
    let Some(command) = recorded.lines().next().and_then(|line| line.strip_prefix("$ ")) else {
        bail!("{} does not begin with `$ COMMAND`", path.display());
    };
    let mut recordings = Recordings::load(root)?;
    let recording = recordings.get(name);
    if needs_gpu(name) && !gpu_answers() {
        return Ok(Outcome::LeftOut("it needs a GPU, and none answers here"));
    }
    let asked = arguments.all || arguments.names.iter().any(|asked| asked == name);
    if arguments.check && !asked && recording.is_some_and(Recording::is_long) {
        return Ok(Outcome::LeftOut("it takes long (--all)"));
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
    match ended.status.success() {
        true if fails => bail!("`{command}` succeeds, and was to fail"),
        false if !fails => {
            bail!(
                "`{command}` failed ({}; --fails records one that does so on purpose):\n{}",
                ended.status,
                ended.output.trim_end()
            )
        }
        _ => {}
    }
    if ended.output.contains(&*root.to_string_lossy()) {
        bail!("`{command}` prints where this checkout lies, which is not for the book");
    }
    let here = if needs_gpu(name) { this_machine_with_gpus()? } else { this_machine() };
    let made = format!("$ {command}\n{}\n", without_trailing_blanks(&ended.output));
    if !arguments.check {
        file::write(&path, |file| file.write_all(made.as_bytes()))?;
        let (machine, date) = (here, today());
        let seconds = ended.seconds.round();
        recordings.insert(name, Recording { machine, date, seconds, fails });
        store(root, &recordings)?;
        line(format_args!("{name}: recorded in {:.0} s", ended.seconds))?;
        return Ok(Outcome::Done);
    }

    let Some(recording) = recording else {
        line(format_args!("{name}: was never recorded: `cargo xtask outputs {name}`"))?;
        return Ok(Outcome::Different);
    };
    let mask = Mask::between(&recording.machine, &here);
    let (was, is) = (mask.hide(&recorded), mask.hide(&made));
    if was == is {
        line(format_args!("{name}: the same, {mask} masked"))?;
        return Ok(Outcome::Done);
    }
    line(format_args!("{name}: different; - as recorded, + as it is now, {mask} masked"))?;
    line(difference(&was, &is).trim_end())?;
    Ok(Outcome::Different)
}

/// How all outputs came about: as data, and as pages tell it.
fn store(root: &Path, recordings: &Recordings) -> anyhow::Result<()> {
    let json = serde_json::to_vec_pretty(recordings)?;
    file::write(&root.join(Recordings::FILE), |file| {
        file.write_all(&json)?;
        writeln!(file)
    })?;
    let told = recorded::file(recordings);
    Ok(file::write(&root.join(recorded::FILE), |file| file.write_all(told.as_bytes()))?)
}

/// The command that builds what a command runs.
fn build_before(command: &str) -> Option<String> {
    let flags = command.strip_prefix("cargo run ")?;
    let flags = flags.split_once(" -- ").map_or(flags, |(flags, _)| flags);
    Some(format!("cargo build {}", flags.trim_end_matches(" --")))
}

fn without_trailing_blanks(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Lines that were and lines that are, with a few around them.
fn difference(was: &str, is: &str) -> String {
    let diff = TextDiff::from_lines(was, is);
    let mut text = String::new();
    for (position, group) in diff.grouped_ops(2).iter().enumerate() {
        if position > 0 {
            text.push_str("  …\n");
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            text.push_str(&format!("  {sign} {}\n", change.value().trim_end()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_runs_is_built_before() {
        let built = |command| build_before(command).unwrap();
        assert_eq!(built("cargo run --release -p a -- --help"), "cargo build --release -p a");
        assert_eq!(built("cargo run --release -p a"), "cargo build --release -p a");
        assert_eq!(build_before("cargo course doctor"), None);
    }

    #[test]
    fn a_difference_shows_what_was_and_what_is() {
        let told = difference("a\nb\nc\n", "a\nB\nc\n");
        assert_eq!(told, "    a\n  - b\n  + B\n    c\n");
    }
}
