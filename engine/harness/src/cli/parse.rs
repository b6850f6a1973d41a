//! Parsing the command line, and the names of its values.

use std::ops::{RangeBounds, RangeInclusive};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Error, Parser, ValueEnum};

use super::{UsageError, prepare};
use crate::report::{WIDEST, thousands};

/// Prepares the process and parses the command line: `main` is `cli::conclude(cli::arguments().and_then(run))`.
pub fn arguments<A: Parser>() -> anyhow::Result<A> {
    prepare();
    Ok(parse()?)
}

/// Parses the command line, in a program that has called [`prepare`]. `--help` is an error of clap's, too.
pub fn parse<A: Parser>() -> Result<A, Error> {
    let is_short = std::env::args_os().any(|argument| argument == "-h");
    let mut command = with_help(numbers_may_be_negative(A::command()), is_short);
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    from_matches(matches.map_err(|error| match error.kind() {
        ErrorKind::MissingSubcommand => which_command(&command),
        _ => error,
    }))
}

/// The error of a call without a command. clap's own error also lists the commands that are hidden.
fn which_command(command: &Command) -> Error {
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let names: Vec<&str> = shown.map(Command::get_name).filter(|name| *name != "help").collect();
    let program = command.get_bin_name().unwrap_or(command.get_name());
    let names = names.join(", ");
    let text =
        format!("a command is missing, one of: {names} (`{program} --help` says what they do)");
    Error::raw(ErrorKind::MissingSubcommand, text)
}

/// The layout of the help: the purpose, the usage, the examples, and the flags below their headings.
const HELP: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// Lays out the help of a program. `-h` prints the flags without `hide_short_help`, a line each, and `--help` all flags and values.
/// The examples of a program are its `before_help`, and a line below them names the command of cargo.
fn with_help(command: Command, is_short: bool) -> Command {
    if command.has_subcommands() {
        return command.max_term_width(WIDEST);
    }
    let flag = |name: &'static str, letter, action, help: &'static str| {
        let flag = Arg::new(name).long(name).short(letter).action(action).help(help);
        flag.help_heading("Help").hide_short_help(true)
    };
    let help =
        flag("help", 'h', ArgAction::Help, "-h prints the most important flags, --help prints all");
    let version = flag("version", 'V', ArgAction::Version, "Print the version");
    let command = command.disable_help_flag(true).disable_version_flag(true).args([help, version]);
    let mut command = command.mut_args(|argument| argument.hide_possible_values(is_short));
    if let Some(examples) = command.get_before_help() {
        let of_cargo = format!("cargo run --release -p {} -- FLAGS", command.get_name());
        let examples = format!("{examples}In the repository: {of_cargo}\n");
        command = command.before_help(examples);
    }
    command
        .help_template(HELP)
        .max_term_width(WIDEST)
        .after_help("--help prints all flags, and the meaning of their values.")
        .after_long_help("")
}

fn from_matches<A: Parser>(matches: Result<clap::ArgMatches, Error>) -> Result<A, Error> {
    A::from_arg_matches_mut(&mut matches?).map_err(|error| error.format(&mut A::command()))
}

/// Makes clap take `-1` after a flag as the value of that flag. Then clap's error names the flag and the valid range.
fn numbers_may_be_negative(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let takes_a_value = !argument.is_positional() && argument.get_action().takes_values();
        if takes_a_value { argument.allow_negative_numbers(true) } else { argument }
    });
    command.mut_subcommands(numbers_may_be_negative)
}

/// Returns the name of a value on the command line, or an empty text if the value has none.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the help of a value on the command line, or an empty text if the value has none.
pub fn help_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().and_then(|it| Some(it.get_help()?.to_string())).unwrap_or_default()
}

/// Returns a parser of the whole numbers in a range. Its error names the range.
pub fn whole<T: TryFrom<u64> + Clone + Send + Sync + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |argument| {
        let number = argument.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let text = |number: &u64| match *number {
                u64::MAX => "2^64 − 1".to_owned(),
                number => thousands(usize::try_from(number).unwrap_or(usize::MAX)),
            };
            let (start, end) = (text(range.start()), text(range.end()));
            format!("a whole number from {start} to {end} is expected")
        })
    }
}

/// Returns a parser of the numbers in a range. Its error is the text `expected`.
pub fn number(
    range: impl RangeBounds<f64> + Clone + Send + Sync + 'static,
    expected: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |argument| match argument.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(expected.to_owned()),
    }
}

/// Refuses a flag that has the same value twice. `name` returns the name of a value.
pub fn each_once<T: PartialEq>(
    flag: &str,
    values: &[T],
    name: impl Fn(&T) -> String,
) -> Result<(), UsageError> {
    let repeated = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value));
    repeated.map_or(Ok(()), |(_, value)| {
        Err(UsageError::new(format_args!("{flag} names {} twice: leave one out", name(value))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
    enum Kind {
        Gpu,
        SliceOfCpu,
    }

    #[test]
    fn a_value_is_called_what_it_is_asked_for_by() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(&name_of(kind), false), Ok(*kind));
        }
        assert_eq!(name_of(&Kind::SliceOfCpu), "slice-of-cpu");
    }

    #[test]
    fn the_second_of_a_kind_is_refused() {
        let refused = |values: &[u8]| each_once("--number", values, u8::to_string);
        refused(&[]).unwrap();
        refused(&[3, 1, 2]).unwrap();
        let message = refused(&[3, 1, 2, 1, 3]).unwrap_err().to_string();
        assert_eq!(message, "--number names 1 twice: leave one out");
    }
}
