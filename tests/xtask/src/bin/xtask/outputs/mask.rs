//! The differences that two runs of a command may have: times, and the words that times decide. On another machine, rounding and
//! the number of cores make further differences.

use std::fmt;

use xtask::{Machine, pattern};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    Times,
    TimesAndRounding,
}

pattern!(TIMES, r"\d[\d,]*(?:\.\d+)?( ?)(ms|µs|s/epoch|s|img/s|tok/s|GB/s|min)\b|\d+\.\d+(×)");
// The heading of a table of times, and the number in a cell of such a table. With a doubt, the column of ratios is missing.
pattern!(TIMED, r"(?:^|  )(?:s/step|measured)(?:  |$)");
pattern!(CELL, r"(  )[+-]?\d[\d,]*(?:\.\d+)?(×|  |$)");
pattern!(RATIO, r" +(?:#×|speed-up\b)");
// The error of predicted seconds.
pattern!(ERROR, r"\([+-]\d+ %\)");
// Rows of a table of rates, a name and numbers; and the bytes of a stage in stage 6's table of memory, which depend on the cut.
pattern!(ROW, r"^ +\D*?(?: +\d+\.\d{3}){2,}$|(?: +(?:\d+\.\d|–)){5,6} +\d+ of \d+$");
pattern!(DECIMALS, r"-?\d+(?:\.\d+)?e-?\d+|-?\d+\.\d+");
pattern!(HASHES, r"weights [0-9a-f]{8}\b");
pattern!(CORES, r"\(\d+ cores?\)");
// Where all ranks fail alike, any of them may be the first.
pattern!(FIRST_TO_FAIL, r"rank \d+ failed:");
// Times decide the words of a conclusion, which is a sentence or more. Times decide the note about other programs on the cores.
// And times decide the cut of a model into stages or chunks.
pattern!(
    DECIDED_BY_TIMES,
    concat!(
        r"^ *(?:\p{Lu}|\d+ \p{Ll}|fastest: ).*\.$|^ *note: other programs used the cores",
        r"|^note: .* stages(?: of \d+ chunks)?, cut ",
    ),
);
// The first line of a paragraph. A table and a list have other lines.
pattern!(PARAGRAPH, r"^ *(?:note: |\p{Lu}|\d+ \p{Ll}|fastest: )");
pattern!(SPACES, " {2,}");

impl Mask {
    /// The mask for the comparison of a run on one machine with a run on another.
    pub(super) fn between(one: &Machine, other: &Machine) -> Self {
        let alike = one.rounds_like(other) && one.cores == other.cores;
        if alike { Self::Times } else { Self::TimesAndRounding }
    }

    /// The text without the masked words. Columns are closed up, because the numbers decide the width of a column.
    pub(super) fn hide(self, text: &str) -> String {
        let mut lines: Vec<String> = Vec::new();
        let mut timed = false;
        for line in unwrapped(text) {
            timed = !line.is_empty() && (timed || TIMED.is_match(&line));
            let is_row = ROW.is_match(&line);
            // Any other note is about the machine: more devices than cores.
            let is_of_machine =
                self == Self::TimesAndRounding && line.trim_start().starts_with("note: ");
            if is_of_machine || DECIDED_BY_TIMES.is_match(&line) {
                continue;
            }
            let line = FIRST_TO_FAIL.replace_all(&line, "rank # failed:");
            let mut line = TIMES.replace_all(&line, "#$1$2$3").into_owned();
            // Neighbours share their spaces.
            while timed && CELL.is_match(&line) {
                line = CELL.replace_all(&line, "$1#$2").into_owned();
            }
            line = RATIO.replace_all(&line, "").into_owned();
            line = ERROR.replace_all(&line, "(#)").into_owned();
            if self == Self::TimesAndRounding {
                line = HASHES.replace_all(&line, "weights #").into_owned();
                line = CORES.replace_all(&line, "(# cores)").into_owned();
            }
            if is_row || self == Self::TimesAndRounding {
                line = DECIMALS.replace_all(&line, "#").into_owned();
            }
            lines.push(SPACES.replace_all(line.trim_end(), " ").into_owned());
        }
        lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
        lines.join("\n") + "\n"
    }
}

/// The lines of a text, with each paragraph in one line: where its words were wrapped depends on the widths of numbers.
fn unwrapped(text: &str) -> Vec<String> {
    /// The columns of a recorded output.
    const COLUMNS: usize = 80;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines: Vec<String> = Vec::new();
    // The width of the last line, if the next line may belong to its paragraph.
    let mut last = None;
    for line in text.lines() {
        let first_word = line.split_whitespace().next().map_or(0, |word| word.chars().count());
        let continues = |(width, of_paragraph): (usize, usize)| {
            first_word > 0 && indent(line) == of_paragraph && width + 1 + first_word > COLUMNS
        };
        let width = line.chars().count();
        match (last, lines.last_mut()) {
            (Some(paragraph), Some(whole)) if continues(paragraph) => {
                *whole += " ";
                *whole += line.trim();
                last = Some((width, indent(line)));
            }
            _ => {
                last = PARAGRAPH.is_match(line).then_some((width, indent(line)));
                lines.push(line.to_owned());
            }
        }
    }
    lines
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Times => "times",
            Self::TimesAndRounding => "times, and what rounding and cores decide,",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A headline is no sentence, and its numbers count.
    #[test]
    fn times_are_hidden_and_nothing_else() {
        let shown = "  epoch  1/10  loss 2.3027  train acc 0.102  6.1 s  9830 img/s\n\
            ddp: test acc 0.873, 6.4 s/epoch\n  on [a]\n\
            ResNet-18 of width 16 on synthetic garments: 12,288 training and 2,000 test\nimages, lr 0.1\n\
            bubble 33.3 %, 18 units of time; micro-batches kept by each stage: 3, 2, 1\n";
        let hidden = " epoch 1/10 loss 2.3027 train acc 0.102 # s # img/s\n\
            ddp: test acc 0.873, # s/epoch\n on [a]\n\
            ResNet-18 of width 16 on synthetic garments: 12,288 training and 2,000 test images, lr 0.1\n\
            bubble 33.3 %, 18 units of time; micro-batches kept by each stage: 3, 2, 1\n";
        assert_eq!(Mask::Times.hide(shown), hidden);
    }

    /// Checks that two outputs are the same to this mask, and each of the changes to the second makes a difference.
    #[track_caller]
    fn alike(mask: Mask, one: &str, other: &str, changes: &[(&str, &str)]) {
        assert_eq!(mask.hide(one), mask.hide(other));
        for (from, to) in changes {
            assert_ne!(mask.hide(one), mask.hide(&other.replace(from, to)), "{from}");
        }
    }

    #[test]
    fn times_and_the_paragraphs_that_they_decide_are_hidden() {
        let one = "error: rank 0 failed: the loss is NaN\n\
                   \x20 one-shot              0.412    3.100    7.900   12.000\n    4 KiB 64 KiB\n\
                   note: 2 stages, cut by measured cost: layers 0 to 2 (44 % of the work)\n\
                   note: 2 stages of 2 chunks, cut by measured cost: layer 0 (17 %)\n\
                   1F1B, 8 micro-batches       8  8.1e-7  4.5e-2\n\n\
                   \x20                           idle, %,   idle, %,\n\
                   \x20                 s/step  speed-up  predicted  measured\n\
                   one device             0.50  1.00×  –         –\n\
                   1F1B, 8 micro-batches  0.64  0.50×  18  24\n\
                   Other programs used the cores, so the speed-up is not reliable. Test accuracy is\n\
                   0.893, and 0.894 on one device: 2,000 test images show no clear difference.\n\
                   2 times the batch and the rate: no difference.\n\
                   \x20 note: other programs used the cores: this run got 38 % of its processor time,\n\
                   \x20 so its times are not reliable\n\n\
                   1F1B, 8 micro-batches   0    3.7    14.8    3.7    2.4    24.6    2 of 8\n\
                   one device              0    6.9     6.9    6.9   15.8    36.5         –\n\n\
                   \x20 link    algorithm  predicted  measured  error\n  memory  ring       3.21      3.21     +4\n\
                   \x20 measured (-3 %)  0.049\n";
        let other = "error: rank 1 failed: the loss is NaN\n\
                     \x20 one-shot             10.412    3.100    7.900    2.000\n    4 KiB 64 KiB\n\
                     \x20 fastest: ring from 4 KiB to 45 MiB.\n\
                     1F1B, 8 micro-batches       8  8.1e-7  4.5e-2\n\n\
                     \x20                           idle, %,   idle, %,\n\
                     \x20                 s/step  predicted  measured\n\
                     one device              1.2          –         –\n\
                     1F1B, 8 micro-batches   1.2   9  11\n\n\n\
                     1F1B, 8 micro-batches   0    3.2    12.7    3.2    1.1    20.1    2 of 8\n\
                     one device              0    6.9     6.9    6.9   15.8    36.5         –\n\n\
                     \x20 link    algorithm  predicted  measured  error\n  memory  ring       12.5      12.5     +4\n\
                     \x20 measured (+12 %)  0.032\n";
        let changes = [
            ("NaN", "inf"),
            ("one-shot", "ring"),
            ("64 KiB", "32 KiB"),
            ("8.1e-7", "0.0e0"),
            ("2 of 8", "8 of 8"),
            ("15.8", "9"),
            ("memory  ring", "memory  tree"),
        ];
        alike(Mask::Times, one, other, &changes);
    }

    #[test]
    fn on_another_machine_digits_hashes_cores_and_notes_are_hidden() {
        let here = "note: more devices than cores\nloss 0.29, weights 6bb045f5 on [cpu:0 (1 core)]";
        let there = "loss 0.31, weights 12345678 on [cpu:0 (4 cores)]";
        alike(Mask::TimesAndRounding, here, there, &[("cpu:0", "cpu:1")]);
        assert_ne!(Mask::Times.hide(here), Mask::Times.hide(there));
    }
}
