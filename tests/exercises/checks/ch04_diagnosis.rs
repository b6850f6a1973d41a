//! Chapter 4, `book/src/ch04b-what-breaks.md`: four runs with a hidden bug.
//!
//! An experiment: the numbers of the answer against those of its metrics files, and each bug against these numbers.

use serde::Deserialize;

use crate::metrics::{Line, Summary, compare, field, lines};
use crate::prelude::*;

/// The results of the experiment, which the exercise explains.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub metrics: &'static [&'static str],
    pub mysteries: [Diagnosis; 4],
}

/// A bug, and its signs.
#[derive(Clone, Copy, Debug)]
pub struct Diagnosis {
    pub bug: &'static str,
    pub difference: f64,
    pub with_two_images: f64,
    pub replicas_agree: bool,
}

pub const LAWS: &[Law<Answer>] = laws![the_signs, the_bugs];

const PROGRAM: &str = "cargo run --release -p scratch-data-parallel -- … --break mystery:1 --metrics FILE, as the exercise's text says";
const STEP_1: &str = "the largest weight difference after step 1, which the program prints";
const HASHES: &str = "the program compares the hashes of the replicas at the end";

/// Larger weight differences are no rounding.
const ROUNDING: f64 = 1e-4;

/// The last line of a run.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Comparison {
    weight_difference: Differences,
    replicas_agree: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Differences {
    after_first_step: f64,
}

/// The largest weight difference after step 1, and whether the replicas agree, in the run of a mystery with two images or more.
fn run(all: &[Line], mystery: usize, two_images: bool) -> Outcome<(f64, bool)> {
    let method = format!("broken on purpose: mystery:{mystery} ");
    for line in all.iter().filter(|line| line.kind == "summary") {
        let Summary { method: found, images, interrupted, .. } = line.read()?;
        let is_mystery = found.is_some_and(|found| found.starts_with(&method));
        let of_run = |other: &&Line| other.kind == "comparison" && other.file == line.file;
        let comparison = all.iter().find(of_run);
        let fits = is_mystery && !interrupted && (images.0 == 2) == two_images;
        if let Some(comparison) = comparison.filter(|_| fits) {
            let Comparison { weight_difference, replicas_agree } = comparison.read()?;
            return Ok((weight_difference.after_first_step, replicas_agree));
        }
    }
    let images = if two_images { "two images" } else { "6,000 images" };
    Err(Finding::new(format!("TODO: there is no run of mystery:{mystery} with {images}"))
        .law(format!("an experiment is run first: {PROGRAM}")))
}

/// Judges each mystery: its number, the differences on many images and on two, whether the replicas agree, and the diagnosis.
fn judge(answer: Answer, law: fn(usize, [f64; 2], bool, Diagnosis) -> Outcome) -> Outcome {
    let all = lines(answer.metrics, PROGRAM)?;
    (1..).zip(answer.mysteries).try_for_each(|(mystery, got)| {
        let (many, agree) = run(&all, mystery, false)?;
        let (two, _) = run(&all, mystery, true)?;
        law(mystery, [many, two], agree, got)
    })
}

fn the_signs(answer: Answer) -> Outcome {
    judge(answer, |mystery, [many, two], agree, got| {
        let name = |what: &str| format!("mystery:{mystery}, {what}");
        // The program prints one digit behind the point, or two digits of a small number.
        let near = |number: f64| if number < 0.1 { 0.06 * number } else { 0.06 };
        compare(name("difference"), many, got.difference, near(many), STEP_1)?;
        compare(name("with_two_images"), two, got.with_two_images, near(two), STEP_1)?;
        same(name("replicas_agree"), agree, got.replicas_agree, HASHES)
    })
}

/// A bug is wrong if a sign contradicts it.
fn the_bugs(answer: Answer) -> Outcome {
    judge(answer, |mystery, [many, two], agree, Diagnosis { bug, .. }| {
        let halved = [many, two].iter().all(|it| (it - 0.5).abs() < 0.02);
        let (fits, sign) = match bug {
            "none" => {
                (agree && many <= ROUNDING, "the weights agree with one device up to rounding")
            }
            "skip-allreduce" => (!agree, "each replica trains alone, so the replicas differ"),
            "mean-for-sum" => {
                (agree && halved, "each update is half as long, so each difference is 0.5")
            }
            "same-shard" => (
                agree && !halved && two > ROUNDING,
                "one of two images counts twice, so both differences are large, and not 0.5",
            ),
            "own-shuffle" => (
                agree && many > ROUNDING && two <= ROUNDING,
                "with seed 2, both devices have the two images in the same order, so there is no difference",
            ),
            "reduce-params" | "leave-early" | "lone-broadcast" => {
                (false, "the run ends with an error")
            }
            _ => (false, "the name of a bug of --break, or none"),
        };
        let replicas = if agree { "agree" } else { "differ" };
        let expected = format!(
            "a bug that fits differences of {many:.1e}, with two images {two:.1e}, and replicas that {replicas}"
        );
        let what = format!("mystery:{mystery} is not {bug:?}");
        let sides = (expected, format!("{bug:?}: {sign}"));
        field(what, bug.is_empty(), fits, sides, "a diagnosis fits all signs")
    })
}
