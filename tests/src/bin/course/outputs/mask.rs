//! What may differ between two runs of a command: times always, and what chance decides; on another machine,
//! what rounding decides and what the number of cores decides.

use std::fmt;
use std::sync::LazyLock;

use course_tests::Machine;
use regex::{Captures, Regex};

/// What is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    Times,
    TimesAndRounding,
}

/// Times, rates, speed-ups.
static TIMES: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"\d[\d,]*(?:\.\d+)?( ?)(ms|µs|s/epoch|s|images/s|GB/s|min)\b|\d+\.\d+(×)")
});
/// Rows of a table of rates: a name and numbers.
static RATES: LazyLock<Regex> = LazyLock::new(|| expression(r"^ +\D*?(?: +\d+\.\d{3}){2,}$"));
static DECIMALS: LazyLock<Regex> =
    LazyLock::new(|| expression(r"-?\d+(?:\.\d+)?e-?\d+|-?\d+\.\d+"));
static HASHES: LazyLock<Regex> = LazyLock::new(|| expression(r"weights [0-9a-f]{8}\b"));
static CHART: LazyLock<Regex> = LazyLock::new(|| expression(r"[▁▂▃▄▅▆▇█]+"));
static CORES: LazyLock<Regex> = LazyLock::new(|| expression(r"\(\d+ cores?\)"));
/// Where all ranks fail alike, any of them may be the first.
static FIRST_TO_FAIL: LazyLock<Regex> = LazyLock::new(|| expression(r"rank \d+ failed:"));
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
        for line in text.lines() {
            let row = RATES.is_match(line);
            // What the run did not measure: it quotes the table that is stored.
            if line.starts_with("a step beside PyTorch") {
                continue;
            }
            let line = FIRST_TO_FAIL.replace_all(line, "rank # failed:");
            let mut line = TIMES.replace_all(&line, unit_only).into_owned();
            if row {
                line = DECIMALS.replace_all(&line, "#").into_owned();
            }
            if self == Self::TimesAndRounding {
                // A note is about the machine: more devices than cores.
                if line.trim_start().starts_with("note: ") {
                    continue;
                }
                line = HASHES.replace_all(&line, "weights #").into_owned();
                line = DECIMALS.replace_all(&line, "#").into_owned();
                line = CHART.replace_all(&line, "▁").into_owned();
                line = CORES.replace_all(&line, "(# cores)").into_owned();
            }
            lines.push(SPACES.replace_all(line.trim_end(), " ").into_owned());
        }
        lines.join("\n") + "\n"
    }
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
        "  epoch  1/10  loss 2.3027  train acc 0.102  test acc 0.100  6.1 s  9830 images/s";

    #[test]
    fn times_are_hidden_and_nothing_else() {
        let told = Mask::Times.hide(EPOCH);
        assert_eq!(told, " epoch 1/10 loss 2.3027 train acc 0.102 test acc 0.100 # s # images/s\n");
        let told = Mask::Times.hide("speed-up: 1.45× over [cpu:0 (1 core)]; 3 shards, lr 0.2");
        assert_eq!(told, "speed-up: #× over [cpu:0 (1 core)]; 3 shards, lr 0.2\n");
        let told =
            Mask::Times.hide("test acc 0.873, 6.4 s/epoch on [cpu:0 (1 core)], weights 6bb045f5");
        assert_eq!(told, "test acc 0.873, # s/epoch on [cpu:0 (1 core)], weights 6bb045f5\n");
    }

    #[test]
    fn which_of_equal_ranks_failed_first_is_hidden_and_so_is_what_a_run_quotes() {
        let one =
            "error: rank 0 failed: the loss is NaN\na step beside PyTorch 2.11: 0.27 of its time";
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
