//! Chapter 4, `book/src/ch04-data-parallel.md`: test accuracy on all devices.
//!
//! Accuracy from counts that are known, on shards of all kinds.

use datasets::CLASSES;

use crate::prelude::*;

/// A rank, logits and labels of its shard; the accuracy of all shards.
pub type Answer = fn(&Rank, &Tensor, &Tensor) -> Result<f64, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    every_rank_has_the_accuracy_of_all: accuracy in [
        Case(&[(3, 4), (1, 1)]), Case(&[(2, 5), (4, 5), (1, 4)]), Case(&[(2, 6), (3, 6)]),
        Case(&[(0, 5), (5, 5), (2, 5), (3, 5)]), Case(&[(7, 10)]), Case(&[(0, 3)]),
    ],
    a_rank_without_images: accuracy in [Case(&[(2, 3), (0, 0), (1, 2)]), Case(&[(0, 0), (1, 2)])],
    // More than a byte counts, and more than a float of 16 bits counts one by one.
    many_images: accuracy in [Case(&[(300, 310), (5, 309)]), Case(&[(2061, 2063), (1, 4)])],
    the_same_bits_on_every_rank: accuracy in [
        Case(&[(3, 7), (2, 5), (1, 11)]), Case(&[(3, 4), (1, 3), (2, 5)]),
        Case(&[(1, 3), (2, 3), (4, 7)]), Case(&[(2, 6), (5, 5), (1, 3)]),
    ],
    of_equal_logits_the_first_counts,
    counts_travel_and_images_do_not in [Case(&[(30, 40), (7, 20)]), Case(&[(9, 30), (0, 0), (1, 40)])],
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank| {
        let (logits, labels) = outputs([(3, 4), (1, 2), (2, 3)][rank.rank()], rank.device())?;
        answer(rank, &logits, &labels)
    },
];

const LAW: &str = "add up correct answers and images over all ranks, then divide once";
const ALL: &str = "every rank takes part, and one without images adds two zeros";
const SAME: &str = "every rank divides the same sums: else `if accuracy > best { stop }` stops one rank, and the others wait";
const COUNTS: &str = "two numbers of each rank are enough: its correct answers and its images";

/// For each rank, the images that are classified correctly, and all images.
#[derive(Clone, Copy)]
struct Case(&'static [(usize, usize)]);

shown!(Case(shards) => "shards with {} correct",
    shards.iter().map(|it| format!("{} of {}", it.0, it.1)).collect::<Vec<_>>().join(", "));

/// Logits and labels of a shard. The first `correct` images are classified correctly.
fn outputs((correct, images): (usize, usize), device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut logits, mut labels) = (Vec::with_capacity(images * CLASSES), Vec::new());
    for image in 0..images {
        let label = image * 7 % CLASSES;
        let answer = if image < correct { label } else { (label + 3) % CLASSES };
        // All are negative, the largest is at the answer, and another is smaller by less than f32 can hold.
        let logit = |class: usize| match class {
            _ if class == answer => -1.0,
            _ if class == (answer + CLASSES / 2) % CLASSES => -1.0 - 1e-9,
            _ => (class as f64).sin() - 3.0,
        };
        logits.extend((0..CLASSES).map(logit));
        labels.push(label as u32);
    }
    let labels = Tensor::from_vec(labels, images, device)?;
    Ok((Tensor::from_vec(logits, (images, CLASSES), device)?, labels))
}

impl Case {
    /// The accuracy and the messages of each rank.
    fn found(self, answer: Answer) -> Outcome<Vec<(f64, Traffic)>> {
        let found = ranks::run(self.0.len(), Sends::Buffered, move |rank| {
            let (logits, labels) = outputs(self.0[rank.rank()], rank.device())?;
            Ok((answer(rank, &logits, &labels)?, rank.traffic()))
        });
        let empty = self.0.iter().any(|&(_, images)| images == 0);
        found.map_err(ranks::all_take_part(ALL, empty))
    }

    /// All correct answers, and all images.
    fn all(self) -> (usize, usize) {
        self.0.iter().fold((0, 0), |all, shard| (all.0 + shard.0, all.1 + shard.1))
    }
}

fn share((correct, images): (usize, usize)) -> f64 {
    correct as f64 / images as f64
}

/// Wrong accuracies of a rank.
const MISTAKES: [(&str, fn(Case, usize) -> f64); 4] = [
    ("the accuracy of this rank's shard alone", |it, rank| share(it.0[rank])),
    ("the mean of the shards' accuracies", |it, _| {
        let shares = it.0.iter().map(|&shard| if shard.1 == 0 { 0.0 } else { share(shard) });
        shares.sum::<f64>() / it.0.len() as f64
    }),
    ("percent, where 0 to 1 is asked for", |it, _| share(it.all()) * 100.0),
    ("a count that starts again after 255, as a byte (u8) does", |it, _| {
        share((it.0.iter().map(|shard| shard.0 % 256).sum(), it.all().1))
    }),
];

fn accuracy(answer: Answer, &case: &Case) -> Outcome {
    let found: Vec<f64> = case.found(answer)?.into_iter().map(|(accuracy, _)| accuracy).collect();
    let (right, (correct, images)) = (share(case.all()), case.all());
    for (rank, &got) in found.iter().enumerate() {
        let apart = (got - right).abs();
        // NaN counts as a difference.
        demand(apart <= 1e-12, || {
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9 || a.is_nan() && b.is_nan();
            let fits = |mistake: fn(Case, usize) -> f64| {
                found.iter().enumerate().all(|(rank, &got)| near(got, mistake(case, rank)))
            };
            let guess = MISTAKES.iter().find(|(_, mistake)| fits(*mistake));
            let in_f32 = || "right to a few digits; was it computed in f32?".to_owned();
            let digits = if apart < 1e-3 { 12 } else { 4 };
            let expected = format!("{right:.digits$} ({correct} of {images})");
            Finding::new(format!("the accuracy on rank {rank} is wrong"))
                .expected(expected, format!("{got:.digits$}"))
                .note(match guess {
                    Some((words, _)) => Some(format!("that fits {words}")),
                    None => (apart < 1e-5).then(in_f32),
                })
                .law(LAW)
        })?;
    }
    let all: Vec<String> = found.iter().map(|accuracy| format!("{accuracy:?}")).collect();
    let sides = ("one number on all ranks, to the last bit", all.join("\n"));
    expect(all.iter().all(|it| *it == all[0]), "ranks have different accuracies", sides, SAME)
}

/// An untrained network: all logits are equal.
fn of_equal_logits_the_first_counts(answer: Answer) -> Outcome {
    let labels = [[0u32, 3, 9, 0], [1, 0, 2, 7]];
    let found = ranks::run(2, Sends::Buffered, move |rank| {
        let logits = Tensor::zeros((4, CLASSES), DType::F64, rank.device())?;
        answer(rank, &logits, &Tensor::new(&labels[rank.rank()], rank.device())?)
    })?;
    found.into_iter().try_for_each(|got| {
        demand(got == 3.0 / 8.0, || {
            Finding::new("8 images whose logits are all 0, 3 of them with label 0")
                .expected(0.375, got)
                .note((got == 1.0).then(|| "every label is at a largest logit".to_owned()))
                .law("of several equal largest logits the first is the answer, as in `argmax`")
        })
    })
}

/// Counts are few bytes, in any algorithm.
fn counts_travel_and_images_do_not(answer: Answer, &case: &Case) -> Outcome {
    let most = 64 * case.0.len() as u64;
    for (rank, (_, Traffic { messages, bytes })) in case.found(answer)?.into_iter().enumerate() {
        let what = format!("rank {rank} sends {}", counted(messages as usize, "message"));
        let expected = format!("messages with its counts, of at most {most} bytes in all");
        let sides = (expected, format!("{bytes} bytes"));
        expect(messages > 0 && bytes <= most, what, sides, COUNTS)?;
    }
    Ok(())
}
