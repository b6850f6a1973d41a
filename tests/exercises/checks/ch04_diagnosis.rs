//! Chapter 4, `book/src/ch04b-what-breaks.md`: four runs with a hidden bug.
//!
//! An experiment: the numbers of the answer against those of its metrics files, and each bug against these numbers.

use serde::Deserialize;

use crate::metrics::{Line, Summary, compare, lines};
use crate::prelude::*;

/// The results of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The metrics files, or folders of them.
    pub metrics: &'static [&'static str],
    /// The diagnosis of `mystery:1` to `mystery:4`.
    pub mysteries: [Diagnosis; 4],
}

/// A bug, and its signs.
#[derive(Clone, Copy, Debug)]
pub struct Diagnosis {
    /// The name of the bug, as `--break` has it, or `none`.
    pub bug: &'static str,
    /// The largest weight difference after step 1.
    pub difference: f64,
    /// The same in a run with two images.
    pub with_two_images: f64,
    /// Whether the replicas agree at the end.
    pub replicas_agree: bool,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![the_runs, the_signs, the_bugs];

const PROGRAM: &str = "cargo run --release -p scratch-data-parallel -- … --break mystery:1 --metrics FILE, as the exercise's text says";

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

/// The comparison of a mystery with one device, in a run with two images or with more.
fn run(all: &[Line], mystery: usize, two_images: bool) -> Outcome<Comparison> {
    let method = format!("broken on purpose: mystery:{mystery} ");
    let of_run = all.iter().filter(|line| line.kind == "summary").find(|line| {
        let Summary { method: found, images, interrupted, .. } = line.read();
        let is_mystery = found.is_some_and(|found| found.starts_with(&method));
        is_mystery && !interrupted && (images.0 == 2) == two_images
    });
    let comparison = of_run
        .and_then(|run| all.iter().find(|line| line.kind == "comparison" && line.file == run.file));
    let images = if two_images { "two images" } else { "6,000 images" };
    comparison.map(Line::read).ok_or_else(|| {
        Finding::new(format!("TODO: there is no run of mystery:{mystery} with {images}"))
            .law(format!("an experiment is run first: {PROGRAM}"))
    })
}

/// For each mystery, the run with many images and the run with two.
fn runs(answer: Answer) -> Outcome<Vec<[Comparison; 2]>> {
    let all = lines(answer.metrics, PROGRAM);
    (1..=4).map(|mystery| Ok([run(&all, mystery, false)?, run(&all, mystery, true)?])).collect()
}

fn the_runs(answer: Answer) -> Outcome {
    runs(answer).map(|_| ())
}

fn the_signs(answer: Answer) -> Outcome {
    for (index, (runs, got)) in runs(answer)?.iter().zip(answer.mysteries).enumerate() {
        let name = |what: &str| format!("mystery:{}, {what}", index + 1);
        let [many, two] = runs.map(|run| run.weight_difference.after_first_step);
        let law = "the largest weight difference after step 1, which the program prints";
        // The program prints one digit behind the point, or two digits of a small number.
        let near = |number: f64| if number < 0.1 { 0.06 * number } else { 0.06 };
        compare(&name("difference"), many, got.difference, near(many), law);
        compare(&name("with_two_images"), two, got.with_two_images, near(two), law);
        let law = "the program compares the hashes of the replicas at the end";
        same(name("replicas_agree"), runs[0].replicas_agree, got.replicas_agree, law)?;
    }
    Ok(())
}

/// A bug is wrong if a sign contradicts it.
fn the_bugs(answer: Answer) -> Outcome {
    let signs = runs(answer)?;
    (1..).zip(signs.iter().zip(answer.mysteries)).try_for_each(|(mystery, (signs, got))| {
        let [many, two] = signs.map(|run| run.weight_difference.after_first_step);
        let agree = signs[0].replicas_agree;
        let halved = [many, two].iter().all(|it| (it - 0.5).abs() < 0.02);
        let (fits, sign) = match got.bug {
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
        let todo = if got.bug.is_empty() { "TODO: " } else { "" };
        let agree = if agree { "agree" } else { "differ" };
        demand(fits, || {
            Finding::new(format!("{todo}mystery:{mystery} is not {:?}", got.bug))
                .expected(
                    format!("a bug that fits differences of {many:.1e}, with two images {two:.1e}, and replicas that {agree}"),
                    format!("{:?}: {sign}", got.bug),
                )
                .law("a diagnosis fits all signs")
        })
    })
}
