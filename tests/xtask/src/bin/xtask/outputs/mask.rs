//! What may differ between two runs of a command: times always, and what chance decides; on another machine,
//! what rounding decides and what the number of cores decides.

use std::fmt;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use xtask::Machine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    Times,
    TimesAndRounding,
}

static TIMES: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"\d[\d,]*(?:\.\d+)?( ?)(ms|µs|s/epoch|s|img/s|GB/s|min)\b|\d+\.\d+(×)")
});
/// Rows of a table of rates: a name and numbers.
static RATES: LazyLock<Regex> = LazyLock::new(|| expression(r"^ +\D*?(?: +\d+\.\d{3}){2,}$"));
/// The heading of a table of times.
static TIMED: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?:^|  )(?:s/step|measured)(?:  |$)"));
/// The number in a cell of a table.
static CELL: LazyLock<Regex> = LazyLock::new(|| expression(r"(  )[+-]?\d[\d,]*(?:\.\d+)?(×|  |$)"));
/// The bytes of a stage, in stage 6's table of memory. They depend on the cut.
static HELD: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?: +(?:\d+\.\d|–)){5,6} +\d+ of \d+$"));
/// The note about a cut, of stages or of their chunks.
static CUT: LazyLock<Regex> = LazyLock::new(|| expression(r" stages(?: of \d+ chunks)?, cut "));
static DECIMALS: LazyLock<Regex> =
    LazyLock::new(|| expression(r"-?\d+(?:\.\d+)?e-?\d+|-?\d+\.\d+"));
static HASHES: LazyLock<Regex> = LazyLock::new(|| expression(r"weights [0-9a-f]{8}\b"));
static SPARKLINE: LazyLock<Regex> = LazyLock::new(|| expression(r"[▁▂▃▄▅▆▇█]+"));
static CORES: LazyLock<Regex> = LazyLock::new(|| expression(r"\(\d+ cores?\)"));
/// Where all ranks fail alike, any of them may be the first.
static FIRST_TO_FAIL: LazyLock<Regex> = LazyLock::new(|| expression(r"rank \d+ failed:"));
/// A sentence or more. Which algorithm is the fastest, and whether several devices are faster, depends on the times.
static CONCLUSION: LazyLock<Regex> =
    LazyLock::new(|| expression(r"^ *(?:\p{Lu}|\d+ \p{Ll}|fastest: ).*\.$"));
/// The note of a run that other programs have slowed down.
static BUSY: LazyLock<Regex> =
    LazyLock::new(|| expression(r"^ *note: other programs used the cores"));
/// The first line of a paragraph. A table and a list have other lines.
static PARAGRAPH: LazyLock<Regex> =
    LazyLock::new(|| expression(r"^ *(?:note: |\p{Lu}|\d+ \p{Ll}|fastest: )"));
static SPACES: LazyLock<Regex> = LazyLock::new(|| expression(" {2,}"));

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid expression")
}

impl Mask {
    /// What has to be hidden when a run on one machine is compared with one on another.
    pub(super) fn between(one: &Machine, other: &Machine) -> Self {
        let alike = one.rounds_like(other) && one.cores == other.cores;
        if alike { Self::Times } else { Self::TimesAndRounding }
    }

    /// The text without what this hides. Columns are closed up: they are as wide as their numbers.
    pub(super) fn hide(self, text: &str) -> String {
        let mut lines: Vec<String> = Vec::new();
        let mut timed = false;
        for line in unwrapped(text) {
            timed = !line.is_empty() && (timed || TIMED.is_match(&line));
            let row = RATES.is_match(&line);
            // Times decide where a model is cut, and the words of a conclusion.
            let cut = line.starts_with("note: ") && CUT.is_match(&line);
            if cut || BUSY.is_match(&line) || CONCLUSION.is_match(&line) {
                continue;
            }
            let line = FIRST_TO_FAIL.replace_all(&line, "rank # failed:");
            let mut line = TIMES.replace_all(&line, unit_only).into_owned();
            if timed {
                // Neighbours share their spaces.
                while CELL.is_match(&line) {
                    line = CELL.replace_all(&line, "$1#$2").into_owned();
                }
            }
            if row || HELD.is_match(&line) {
                line = DECIMALS.replace_all(&line, "#").into_owned();
            }
            if self == Self::TimesAndRounding {
                // A note is about the machine: more devices than cores.
                if line.trim_start().starts_with("note: ") {
                    continue;
                }
                line = HASHES.replace_all(&line, "weights #").into_owned();
                line = DECIMALS.replace_all(&line, "#").into_owned();
                line = SPARKLINE.replace_all(&line, "▁").into_owned();
                line = CORES.replace_all(&line, "(# cores)").into_owned();
            }
            lines.push(SPACES.replace_all(line.trim_end(), " ").into_owned());
        }
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

fn unit_only(found: &Captures<'_>) -> String {
    let unit = |group| found.get(group).map_or("", |unit: regex::Match<'_>| unit.as_str());
    format!("#{}{}{}", unit(1), unit(2), unit(3))
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

    const EPOCH: &str =
        "  epoch  1/10  loss 2.3027  train acc 0.102  test acc 0.100  6.1 s  9830 img/s";

    #[test]
    fn times_are_hidden_and_nothing_else() {
        let told = Mask::Times.hide(EPOCH);
        assert_eq!(told, " epoch 1/10 loss 2.3027 train acc 0.102 test acc 0.100 # s # img/s\n");
        let told = Mask::Times.hide("speed-up: 1.45× over one device; 3 shards, lr 0.2");
        assert_eq!(told, "speed-up: #× over one device; 3 shards, lr 0.2\n");
        let told = Mask::Times.hide("ddp: test acc 0.873, 6.4 s/epoch, weights 6bb045f5\n  on [a]");
        assert_eq!(told, "ddp: test acc 0.873, # s/epoch, weights 6bb045f5\n on [a]\n");
    }

    #[test]
    fn conclusions_and_notes_of_busy_machines_are_hidden_as_whole_paragraphs() {
        let result = "ddp: test acc 0.893, weights 6bb045f5\n  on [cpu:0 (1 core)]\n";
        let note = "  note: other programs used the cores: this run got 38 % of its processor time,\n  \
                    so its times are not reliable\n";
        let conclusion = "\nOther programs used the cores, so the speed-up is not reliable. Test accuracy is\n\
             0.893, and 0.894 on one device: 2,000 test images show no clear difference.\n\
             2 times the batch and the rate: no difference.\n";
        let table = "\nSchedule           ms\nGPipe            1.25\nA line of a table.5\n";
        let hidden = Mask::Times.hide(&format!("{result}{note}{conclusion}{table}"));
        assert_eq!(hidden, Mask::Times.hide(&format!("{result}\n{table}")));
        assert!(hidden.contains("GPipe 1.25\nA line of a table.5"), "{hidden}");
        // A headline is no sentence, and its numbers count.
        let headline = "ResNet-18 of width 16 on synthetic garments: 12,288 training and 2,000 test\n\
                        images, batch 256, lr 0.1, 5 epochs, seed 1\n";
        let hidden = Mask::Times.hide(headline);
        assert_eq!(hidden, headline.replace("test\nimages", "test images"));
    }

    #[test]
    fn which_of_equal_ranks_failed_first_is_hidden() {
        let one = "error: rank 0 failed: the loss is NaN";
        let other = "error: rank 1 failed: the loss is NaN";
        assert_eq!(Mask::Times.hide(one), Mask::Times.hide(other));
        assert_ne!(Mask::Times.hide(one), Mask::Times.hide(&other.replace("NaN", "inf")));
    }

    #[test]
    fn a_table_of_rates_is_hidden_but_not_its_names() {
        let one = "  one-shot              0.412    3.100    7.900   12.000\n    4 KiB 64 KiB";
        let other = "  one-shot             10.412    3.100    7.900    2.000\n    4 KiB 64 KiB";
        assert_eq!(Mask::Times.hide(one), Mask::Times.hide(other));
        assert_ne!(Mask::Times.hide(one), Mask::Times.hide(&other.replace("one-shot", "ring")));
        assert_ne!(Mask::Times.hide(one), Mask::Times.hide(&other.replace("64", "32")));
        let concluded = "  fastest: ring from 4 KiB to 45 MiB.\n";
        assert_eq!(Mask::Times.hide(one), Mask::Times.hide(&format!("{other}\n{concluded}")));
    }

    #[test]
    fn times_idle_times_and_the_cut_of_pipelines_are_hidden_and_no_error() {
        let one = "note: 2 stages, cut by measured cost: layers 0 to 2 (44 % of the work)\n\
                   note: 2 stages of 2 chunks, cut by measured cost: layer 0 (17 %)\n\
                   1F1B, 8 micro-batches       8  8.1e-7  4.5e-2\n\n\
                   \x20                           idle, %,   idle, %,\n\
                   \x20                 s/step  predicted  measured\n\
                   one device             0.50          –         –\n\
                   1F1B, 8 micro-batches  0.64  0.50×  18  24\n\
                   The devices are idle least under GPipe.\n\n\
                   1F1B, 8 micro-batches   0    3.7    14.8    3.7    2.4    24.6    2 of 8\n\
                   one device              0    6.9     6.9    6.9   15.8    36.5         –";
        let other = "1F1B, 8 micro-batches       8  8.1e-7  4.5e-2\n\n\
                     \x20                           idle, %,   idle, %,\n\
                     \x20                 s/step  predicted  measured\n\
                     one device              1.2          –         –\n\
                     1F1B, 8 micro-batches   1.2  1.90×   9  11\n\n\
                     1F1B, 8 micro-batches   0    3.2    12.7    3.2    1.1    20.1    2 of 8\n\
                     one device              0    6.9     6.9    6.9   15.8    36.5         –";
        assert_eq!(Mask::Times.hide(one), Mask::Times.hide(other));
        for (from, to) in [("8.1e-7", "0.0e0"), ("2 of 8", "8 of 8"), ("15.8", "9")] {
            assert_ne!(Mask::Times.hide(one), Mask::Times.hide(&other.replace(from, to)), "{from}");
        }
        let drawn = "bubble 33.3 %, 18 units of time; micro-batches kept by each stage: 3, 2, 1";
        assert_eq!(Mask::Times.hide(drawn).trim_end(), drawn);
    }

    #[test]
    fn measured_and_predicted_times_of_the_cost_model_are_hidden() {
        let table = |number: &str| {
            format!(
                "  link    algorithm  predicted  measured  error\n                     ms        ms      %\n  memory  ring       {number}      {number}     +4\n"
            )
        };
        assert_eq!(Mask::Times.hide(&table("3.21")), Mask::Times.hide(&table("12.5")));
        let other = table("3.21").replace("ring", "tree");
        assert_ne!(Mask::Times.hide(&table("3.21")), Mask::Times.hide(&other));
    }

    #[test]
    fn on_another_machine_digits_hashes_cores_and_notes_are_hidden() {
        let mask = Mask::TimesAndRounding;
        let here =
            "note: more devices than cores\nloss 0.29, weights 6bb045f5 on [cpu:0 (1 core)] ▁█";
        let there = "loss 0.31, weights 12345678 on [cpu:0 (4 cores)] ▁▅█";
        assert_eq!(mask.hide(here), mask.hide(there));
        assert_ne!(mask.hide(here), mask.hide(&there.replace("cpu:0", "cpu:1")));
        assert_ne!(Mask::Times.hide(here), Mask::Times.hide(there));
    }
}
