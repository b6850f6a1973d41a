//! Prints the outcome of a check: the first broken law in full, a line for each further law, the verdict last. The text fits
//! into a small terminal, unless the learner asks for all messages.

use console::{measure_text_width, style, truncate_str};
use harness::report::{counted, line, terminal_columns, wrapped};

use super::given;
use super::program::{Checked, Outcome};
use super::tree::{Exercise, Tree};
use crate::process::{How, PRINTED_TOO_MUCH, TOOK_TOO_MUCH};

/// Rows of a small terminal, and the rows that the verdict and the lines of `watch` take.
const ROWS: usize = 24;
const BELOW: usize = 3;

/// The number of broken laws that are named behind the first.
const OTHERS: usize = 5;

/// The most lines of an answer's output for one law with `--all`: a print in a loop should not hide the rest.
const PRINTED: usize = 60;

/// Prints the outcome of a check. The caller prints the verdict of a failure. With `all`, prints everything.
pub fn show(tree: &Tree, exercise: &Exercise, outcome: &Outcome, all: bool) -> anyhow::Result<()> {
    let name = &exercise.name;
    let cross = style("✗").red();
    let mut below = vec![
        format!("your answer:  {}", tree.relative(&exercise.file())),
        format!("a hint:       cargo course hint {name}"),
    ];
    below.extend(tree.page(exercise).map(|page| {
        format!("the chapter:  mdbook serve book --open, or {}", tree.relative(&page))
    }));
    let edited = given::edited_check(tree, exercise);
    below
        .extend(edited.map(|command| format!("its check was edited; to bring it back: {command}")));
    let is_cut = !all && matches!(outcome, Outcome::Failed(..) | Outcome::CutShort { .. });
    below.extend(is_cut.then(|| format!("all of it:    cargo course check {name} --all")));
    let room = ROWS - BELOW - below.len();
    let body = match outcome {
        Outcome::Interrupted => return Ok(()),
        Outcome::Passed(passed) => {
            if all {
                show_passed(passed)?;
            }
            let passes = format!("{name} passes its {}", counted(passed.len(), "check"));
            line(format_args!("{} {passes}", style("✓").green()))?;
            if exercise.has_run() {
                line(format_args!("  to see it at work:    cargo course run {name}"))?;
            }
            return Ok(line(format!("  to compare with ours: cargo course solution {name}"))?);
        }
        Outcome::OfAnEditedCheck => vec![title(&format!("{name}: {}", outcome.verdict()))],
        Outcome::CargoFailed(said) => {
            line(format_args!("{cross} cargo failed before {name} could be checked"))?;
            let said = if said.is_empty() { "what it said stands above" } else { said };
            // No hint helps with that.
            return Ok(line(indented(said).join("\n"))?);
        }
        Outcome::Failed(_, failures) if failures.iter().all(|failure| failure.todo) => {
            vec![
                format!("{cross} {name} is not written yet: its checks come to a `todo!`"),
                String::new(),
                format!("    {}", todo(&failures[0])),
                String::new(),
                "Write it there, in its place; the comment above says what is asked for.".into(),
            ]
        }
        Outcome::Failed(passed, failures) if all => {
            show_passed(passed)?;
            // A message that several laws share is printed once.
            let same = |one: &Checked, next: &Checked| one.message == next.message;
            let mut body = Vec::new();
            for same in failures.chunk_by(same) {
                body.extend(same.iter().map(|failure| title(&failure.law)));
                body.extend(said(&same[0].printed, PRINTED));
                body.extend(message(&same[0]));
                body.push(String::new());
            }
            body.pop();
            body
        }
        Outcome::Failed(_, failures) => first_in_full(failures, room),
        Outcome::DoesNotCompile { signature } => {
            let mut body = vec![format!("{cross} {name} does not compile")];
            if *signature {
                let file = tree.relative(&exercise.file()).to_string();
                body.extend([
                    "    The signature is given: the check calls the answer with these names and types.".into(),
                    format!("    What has changed: git diff {file}"),
                    format!("    As it was given:  cargo course reset {name} (keeps your version)"),
                ]);
            }
            body
        }
        Outcome::CutShort { how, said: printed, .. } => {
            let mut body = vec![title(&outcome.verdict())];
            body.extend(reason(*how).map(|reason| format!("    {reason}")));
            let rest = if all { PRINTED } else { room - body.len() - 2 };
            body.extend(said(printed, rest));
            body
        }
    };
    line(body.join("\n"))?;
    line("")?;
    Ok(below.iter().try_for_each(line)?)
}

fn title(text: &str) -> String {
    format!("{} {}", style("✗").red(), style(text).bold())
}

fn show_passed(passed: &[Checked]) -> std::io::Result<()> {
    for Checked { law, printed, .. } in passed {
        line(format_args!("{} {law}", style("✓").green()))?;
        said(printed, PRINTED).iter().try_for_each(line)?;
    }
    Ok(())
}

/// The first broken law in full, and a line for each further law, in at most `room` rows. Laws whose message ends
/// with the same reason share a line.
fn first_in_full(failures: &[Checked], room: usize) -> Vec<String> {
    let first = &failures[0];
    let reason = |one: &Checked| {
        one.message.lines().last().filter(|it| it.contains("law: ")).map(str::to_owned)
    };
    let is_same = |one: &&Checked| reason(one).is_some() && reason(one) == reason(first);
    let (same, others): (Vec<&Checked>, Vec<&Checked>) = failures[1..].iter().partition(is_same);
    let mut below: Vec<String> = others.iter().take(OTHERS).map(|it| in_a_line(it)).collect();
    let more = others.len() - below.len();
    if !same.is_empty() {
        let names: Vec<&str> = same.iter().take(OTHERS).map(|one| &*one.law).collect();
        let rest = match same.len() - names.len() {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let same = format!("{} for the same reason: {}{rest}", style("✗").red(), names.join(", "));
        below.splice(0..0, wrapped(&same, terminal_columns()).lines().map(str::to_owned));
    }
    below.extend((more > 0).then(|| format!("  … and {more} more")));
    // The name of the law takes a row, and so does the empty line below the message.
    let room = room.saturating_sub(below.len() + 2);
    let message = message(first);
    let printed = said(&first.printed, room.saturating_sub(rows(&message)).max(2));
    let mut whole: Vec<String> = printed.into_iter().chain(message).collect();
    if rows(&whole) > room {
        // The last line names the law.
        let end = ["    …".to_owned(), whole.pop().unwrap_or_default()];
        while rows(&whole) + rows(&end) > room && whole.len() > 1 {
            whole.pop();
        }
        whole.extend(end);
    }
    let gap = (!below.is_empty()).then(String::new);
    [title(&first.law)].into_iter().chain(whole).chain(gap).chain(below).collect()
}

/// The number of rows that some lines take.
fn rows(lines: &[String]) -> usize {
    let columns = terminal_columns();
    lines.iter().map(|line| measure_text_width(line).div_ceil(columns).max(1)).sum()
}

/// A broken law in one line.
fn in_a_line(failure: &Checked) -> String {
    let first = failure.message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let told = format!("{}: {}", title(&failure.law), first.trim());
    truncate_str(&told, terminal_columns(), "…").into_owned()
}

/// The place of a failure and its message.
fn message(failure: &Checked) -> Vec<String> {
    let place = failure.place.iter().map(|place| format!("    at {place}"));
    place.chain(indented(&failure.message)).collect()
}

/// The last lines of an answer's output.
fn said(printed: &str, most: usize) -> Vec<String> {
    let lines = indented(printed.trim());
    if lines.len() <= most {
        return lines;
    }
    // One line reports the lines that are left out.
    let left_out = lines.len() - most.saturating_sub(1);
    [&[format!("    … {left_out} lines left out")], &lines[left_out..]].concat()
}

/// The place of a `todo!` and its message.
fn todo(failure: &Checked) -> String {
    const BEFORE: &str = "not yet implemented";
    let what = failure.message.lines().find_map(|line| line.split_once(BEFORE));
    let what = what.map_or("", |(_, what)| what.trim_start_matches(": "));
    let place = failure.place.as_deref().unwrap_or_default();
    format!("{place}: {what}").trim_end_matches(": ").to_owned()
}

fn reason(how: How) -> Option<&'static str> {
    Some(match how {
        How::Alone(status) if status.code().is_some() => {
            "does it call `std::process::exit`? A check has to get its answer back"
        }
        How::OutOfTime => "does a loop go on for ever, or a rank wait for what nobody sends?",
        How::TooMuch(PRINTED_TOO_MUCH) => "does it print without end?",
        How::TooMuch(TOOK_TOO_MUCH) => "does a loop make something longer for ever?",
        _ => return None,
    })
}

fn indented(text: &str) -> Vec<String> {
    let indent = |line: &str| if line.is_empty() { String::new() } else { format!("    {line}") };
    text.lines().map(indent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(law: &str, message: &str, printed: &str) -> Checked {
        let [law, message, printed] = [law, message, printed].map(str::to_owned);
        Checked { law, message, printed, ..Default::default() }
    }

    #[test]
    fn a_long_message_and_many_laws_fit_into_their_room() {
        let long: String = (0..40).map(|number| format!("line {number}\n")).collect();
        let printed = "again\n".repeat(1000);
        for others in [0, 3, 12] {
            let mut failures = vec![failure("first", &format!("{long}law: sum"), &printed)];
            failures.extend((0..others).map(|_| failure("other", "expected 1, got 2\nmore", "")));
            let body = first_in_full(&failures, 18);
            assert!(rows(&body) <= 18, "{body:#?}");
            assert!(body[0].ends_with("first") && body[1].contains("lines left out"), "{body:#?}");
            assert!(body.iter().any(|line| line == "    law: sum"), "{body:#?}");
        }
    }

    #[test]
    fn a_todo_is_named_with_its_place() {
        for (message, expected) in [
            ("not yet implemented: add (both)", "sum.rs:7:5: add (both)"),
            ("on 2 ranks: rank 0 panicked: not yet implemented: add", "sum.rs:7:5: add"),
            ("not yet implemented", "sum.rs:7:5"),
        ] {
            let place = Some("sum.rs:7:5".to_owned());
            assert_eq!(todo(&Checked { place, ..failure("", message, "") }), expected);
        }
    }
}
