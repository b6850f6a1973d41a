//! `cargo course list` and `cargo course next`.

use harness::report::{labelled, line, paragraph, terminal_columns};

use super::given;
use super::progress::{Progress, Standing};
use super::tree::{Exercise, Tree};

/// Prints the exercises. A title that is too long for the terminal goes on below itself.
pub fn list(tree: &Tree) -> anyhow::Result<()> {
    let (progress, edited) = (Progress::load(tree)?, given::edited_checks(tree));
    let longest = tree.exercises.iter().map(|one| one.name.len()).max().unwrap_or_default();
    for exercise in &tree.exercises {
        let name = &exercise.name;
        let (mark, note) = match progress.of(exercise) {
            _ if edited.iter().any(|(one, _)| one.name == *name) => {
                ('?', " (its check was edited: a pass does not count)".to_owned())
            }
            Standing::Solved => ('✓', String::new()),
            Standing::Changed(change) => ('?', format!(" ({change} changed since it passed)")),
            Standing::Open => ('·', String::new()),
        };
        let label = format!("{mark} {name:<longest$}  ");
        line(labelled(&label, &format!("{}{note}", exercise.title()), terminal_columns()))?;
    }
    line("")?;
    what_is_next(tree)
}

/// Prints the next exercise, its file, its chapter, and the commands for it.
pub fn next(tree: &Tree) -> anyhow::Result<()> {
    let progress = Progress::load(tree)?;
    let Some(exercise) = progress.next(tree) else { return all_solved(tree) };
    let name = &exercise.name;
    // Fails with the command that restores the file.
    exercise.text()?;
    line(format_args!("{}\n", exercise.heading()))?;
    if let Standing::Changed(change) = progress.of(exercise) {
        line(format_args!("It passed, and {change} changed since.\n"))?;
    }
    if let Some(page) = tree.page(exercise) {
        let chapter = exercise.chapter().trim_start_matches("ch").trim_start_matches('0');
        line(format_args!("read    chapter {chapter}: mdbook serve book --open"))?;
        line(format_args!("        or {} (its listings are links)", tree.relative(&page)))?;
    }
    line(format_args!("write   {}", tree.relative(&exercise.file())))?;
    line(format_args!("check   cargo course check {name}"))?;
    line(format_args!("        cargo course watch checks whenever you save"))?;
    Ok(line(format_args!("stuck?  cargo course hint {name}"))?)
}

/// Prints one line: the number of solved exercises, and the next one.
pub fn what_is_next(tree: &Tree) -> anyhow::Result<()> {
    let progress = Progress::load(tree)?;
    let solved = |exercise: &&Exercise| progress.of(exercise) == Standing::Solved;
    let (solved, all) = (tree.exercises.iter().filter(solved).count(), tree.exercises.len());
    let Some(Exercise { name, .. }) = progress.next(tree) else { return all_solved(tree) };
    Ok(paragraph(format_args!("{solved} of {all} solved; next: {name} (cargo course next)"))?)
}

pub fn all_solved(tree: &Tree) -> anyhow::Result<()> {
    let all = tree.exercises.len();
    Ok(line(format_args!("{all} of {all} solved: nothing is left to do here"))?)
}
