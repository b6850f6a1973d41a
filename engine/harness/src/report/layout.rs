//! Text that fits into the terminal: wrapped paragraphs, and tables that leave out columns.

use std::fmt::Display;
use std::io;

use console::Term;
use itertools::Itertools as _;

use super::line;

/// The most columns of a line.
pub(crate) const WIDEST: usize = 80;

/// The fewest columns that a text is laid out for.
const NARROWEST: usize = 40;

/// The number of columns of the terminal. Without a terminal, the environment variable `COLUMNS` decides, and without
/// the variable there are 80.
pub fn terminal_columns() -> usize {
    let terminal = Term::stdout().size_checked().map(|(_, columns)| columns.into());
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(variable).filter(|&columns| columns > 0).unwrap_or(WIDEST)
}

/// The number of columns of a line on standard output: those of the terminal, and at most 80.
pub fn columns() -> usize {
    terminal_columns().clamp(NARROWEST, WIDEST)
}

/// Prints a text in as many lines as its width needs. Each line begins with the spaces of the text's first line. Fails
/// like [`line()`].
pub fn paragraph(text: impl Display) -> io::Result<()> {
    line(wrapped(&text.to_string(), columns()))
}

/// Breaks a text at spaces into lines of at most `columns` characters. Longer words stay whole. Each line begins with
/// the spaces of the first line. Line breaks of the text stay.
pub fn wrapped(text: &str, columns: usize) -> String {
    let of_line = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        let words = line.split_whitespace().map(|word| format!("{indent}{word}"));
        let lines = words.coalesce(|line, next| {
            let both = format!("{line} {}", &next[indent.len()..]);
            if width(&both) <= columns { Ok(both) } else { Err((line, next)) }
        });
        lines.collect_vec().join("\n")
    };
    text.lines().map(of_line).join("\n")
}

/// Breaks a text behind a label into lines of at most `columns` characters. The text goes on below itself, in at least as many
/// columns as the label has.
pub fn labelled(label: &str, text: &str, columns: usize) -> String {
    let before = width(label);
    let text = wrapped(text, columns.max(2 * before) - before);
    let text = text.replace('\n', &format!("\n{:before$}", ""));
    format!("{label}{text}").trim_end().to_owned()
}

/// The number of characters, which all have the width of one column.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A column of a [`Table`].
#[derive(Clone, Debug)]
struct Column {
    /// 0 is always shown. A column with a higher number is left out earlier.
    rank: u8,
    left: bool,
}

/// A table. Where it is wider than the terminal, it leaves out the least important columns, and names them below. If there is still
/// no room for the first column, the names of the rows, each name has its own line above its row.
#[derive(Clone, Debug)]
pub struct Table {
    indent: usize,
    columns: Vec<Column>,
    /// The headings, and the rows below them.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes an empty table whose first column has this heading.
    pub fn new(names: &str) -> Self {
        Self { indent: 0, columns: Vec::new(), rows: vec![Vec::new()] }.words(names, 0)
    }

    /// Begins each line with this many spaces.
    #[must_use]
    pub fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Adds a column of numbers, aligned at the right. A line break in the heading begins a second line. A column of
    /// rank 0 is always shown, and of two others the one with the higher rank is left out first.
    #[must_use]
    pub fn column(self, heading: &str, rank: u8) -> Self {
        self.with(heading, Column { rank, left: false })
    }

    /// Adds a column of words, aligned at the left, in the same way.
    #[must_use]
    pub fn words(self, heading: &str, rank: u8) -> Self {
        self.with(heading, Column { rank, left: true })
    }

    fn with(mut self, heading: &str, column: Column) -> Self {
        self.rows[0].push(heading.to_owned());
        self.columns.push(column);
        self
    }

    /// Adds a row. Missing cells at the end are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Prints the table. Fails like [`line()`].
    pub fn print(&self) -> io::Result<()> {
        line(self.text(columns()))
    }

    /// The table in at most `most` columns, if its rows allow that.
    pub fn text(&self, most: usize) -> String {
        let width_of = |column: usize| {
            let lines = self.rows.iter().flat_map(|row| row[column].lines());
            lines.map(width).max().unwrap_or(0)
        };
        let widths = (0..self.columns.len()).map(width_of).collect_vec();
        let total = |shown: &[usize]| {
            let gaps = 2 * shown.len().saturating_sub(1);
            self.indent + gaps + shown.iter().map(|&column| widths[column]).sum::<usize>()
        };
        // Columns without cells are left out, too, and nobody misses them.
        let has_cells = |column: usize| self.rows[1..].iter().any(|row| !row[column].is_empty());
        let all = (0..widths.len()).filter(|&it| it == 0 || has_cells(it)).collect_vec();
        let mut shown = all.clone();
        while total(&shown) > most {
            let rank = |&&column: &&usize| self.columns[column].rank;
            let Some(&last) = shown.iter().filter(|it| rank(it) > 0).max_by_key(rank) else {
                break;
            };
            shown.retain(|column| *column != last);
        }
        // Names without room stand above their rows.
        let folded = total(&shown) > most;
        let (in_line, margin) = if folded { (&shown[1..], "    ") } else { (&shown[..], "") };
        let text_of = |row: &Vec<String>| {
            let cells = row.iter().map(|cell| cell.lines().collect_vec()).collect_vec();
            let height = shown.iter().map(|&column| cells[column].len()).fold(1, usize::max);
            let line = |line: usize| {
                let cell = |&column: &usize| {
                    let (lines, wide) = (&cells[column], widths[column]);
                    // Cells of fewer lines stand at the bottom.
                    let line = (line + lines.len()).checked_sub(height);
                    let text = line.map_or("", |line| lines[line]);
                    let left = self.columns[column].left;
                    if left { format!("{text:<wide$}") } else { format!("{text:>wide$}") }
                };
                format!("{margin}{}", in_line.iter().map(cell).join("  "))
            };
            folded.then(|| row[0].clone()).into_iter().chain((0..height).map(line)).join("\n")
        };
        let missing = all.iter().filter(|column| !shown.contains(column));
        let missing = missing.map(|&column| self.rows[0][column].replace('\n', " ")).join(", ");
        let note = || wrapped(&format!("(too narrow for: {missing})"), most - self.indent);
        let note = (!missing.is_empty()).then(note);
        let (text, indent) =
            (self.rows.iter().map(text_of).chain(note).join("\n"), " ".repeat(self.indent));
        text.split('\n').map(|line| format!("{indent}{line}").trim_end().to_owned()).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_keeps_its_indent_and_its_width() {
        let text = "  one two three four\nfive";
        assert_eq!(wrapped(text, 12), "  one two\n  three four\nfive");
        assert_eq!(wrapped("a-word-that-is-longer than", 10), "a-word-that-is-longer\nthan");
        assert_eq!(wrapped("", 10), "");
    }

    #[test]
    fn a_text_behind_a_label_goes_on_below_itself() {
        assert_eq!(labelled("· a  ", "one two three", 80), "· a  one two three");
        assert_eq!(labelled("· a  ", "one two three", 13), "· a  one two\n     three");
        // Without room for both, the text has the width of its label.
        assert_eq!(labelled("· a  ", "one two three", 3), "· a  one\n     two\n     three");
        assert_eq!(labelled("· a  ", "", 80), "· a");
    }

    fn table() -> Table {
        let mut table = Table::new("run").column("s/step", 0).column("idle\n(bubble)", 1);
        table = table.column("sent", 2).column("never", 0);
        table.row(["one device", "0.25", "", "1.0 MB"].map(str::to_owned));
        table.row(["GPipe", "0.125", "13 %", "0.5 MB"].map(str::to_owned));
        table
    }

    /// Each table has room for the names alone and for the first number, and so fits.
    #[test]
    fn no_table_is_wider_than_its_terminal() {
        let mut wide = Table::new("strategy").column("all", 0).column("s/step", 0);
        for rank in 1..6 {
            wide = wide.column("para-\nmeters", rank);
        }
        let row = ["ZeRO 3 + prefetch + recompute", "46.2", "0.13"].into_iter();
        wide.row(row.chain(["1,024.5"; 5]).map(str::to_owned));
        for most in 32..=100 {
            for table in [table(), table().indented(4), wide.clone(), wide.clone().indented(2)] {
                let text = table.text(most);
                let widest = text.lines().map(width).max();
                assert!(widest <= Some(most), "{most} columns:\n{text}");
            }
        }
    }

    #[test]
    fn a_table_leaves_out_what_matters_least_and_gives_names_lines_of_their_own() {
        let whole = "                        idle\n\
                     run         s/step  (bubble)    sent\n\
                     one device    0.25            1.0 MB\n\
                     GPipe        0.125      13 %  0.5 MB";
        assert_eq!(table().text(36), whole);
        let narrow = table().text(35);
        assert!(!narrow.contains("1.0 MB"), "{narrow}");
        assert!(narrow.contains("13 %") && narrow.ends_with("(too narrow for: sent)"), "{narrow}");
        let narrowest = table().text(25);
        assert!(narrowest.lines().next() == Some("run         s/step"), "{narrowest}");
        assert!(narrowest.ends_with("(too narrow for: idle\n(bubble), sent)"), "{narrowest}");
        let text = table().indented(2).text(14);
        let lines: Vec<&str> = text.lines().take(5).collect();
        assert_eq!(lines, ["  run", "      s/step", "  one device", "        0.25", "  GPipe"]);
    }
}
