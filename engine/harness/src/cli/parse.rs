//! Parsing the command line.

use clap::{Command, Error, Parser};

use super::prepare;

/// Prepares the process and parses the command line: the first thing that a program's `main` does.
///
/// ```no_run
/// # use harness::cli;
/// # #[derive(clap::Parser)] struct Arguments {}
/// # fn run(arguments: Arguments) -> anyhow::Result<()> { Ok(()) }
/// fn main() -> std::process::ExitCode {
///     cli::conclude(cli::arguments().and_then(run))
/// }
/// ```
///
/// # Errors
///
/// clap's error. `--help` is one, too.
pub fn arguments<A: Parser>() -> anyhow::Result<A> {
    prepare();
    Ok(parse()?)
}

/// Parses the command line.
///
/// # Errors
///
/// clap's error. `--help` is one, too.
pub fn parse<A: Parser>() -> Result<A, Error> {
    from_matches(numbers_may_be_negative(A::command()).try_get_matches())
}

fn from_matches<A: Parser>(matches: Result<clap::ArgMatches, Error>) -> Result<A, Error> {
    matches.and_then(|mut matches| {
        let parsed = A::from_arg_matches_mut(&mut matches);
        parsed.map_err(|error| error.format(&mut A::command()))
    })
}

/// Makes clap take `-1` after a flag as the value of that flag. Then clap's error names the flag and the valid range.
fn numbers_may_be_negative(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let takes_a_value = !argument.is_positional() && argument.get_action().takes_values();
        if takes_a_value { argument.allow_negative_numbers(true) } else { argument }
    });
    command.mut_subcommands(numbers_may_be_negative)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=9))]
        count: Option<u32>,
        #[arg(long)]
        fast: bool,
        #[command(subcommand)]
        what: Option<What>,
    }

    #[derive(Clone, Debug, clap::Subcommand)]
    enum What {
        Wait {
            #[arg(long)]
            seconds: u64,
        },
    }

    #[test]
    fn a_negative_number_is_a_flags_value() {
        let parsed = |arguments: &[&str]| -> Result<Program, String> {
            let all = ["program"].iter().chain(arguments);
            let command = numbers_may_be_negative(Program::command());
            from_matches(command.try_get_matches_from(all)).map_err(|error| error.to_string())
        };
        let refused = |arguments: &[&str], expected: &str| {
            let message = parsed(arguments).unwrap_err();
            assert!(message.contains(expected), "{message}");
        };
        assert_eq!(parsed(&["--count", "3", "--fast"]).unwrap().count, Some(3));
        refused(&["--count", "-1"], "invalid value '-1' for '--count <COUNT>': -1 is not in 1..=9");
        refused(&["wait", "--seconds", "-1"], "invalid value '-1' for '--seconds <SECONDS>'");
        // This flag takes no value.
        refused(&["--fast", "-1"], "unexpected argument '-1'");
    }
}
