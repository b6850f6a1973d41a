//! Chapter 4, `book/src/ch04-data-parallel.md`: test accuracy on all devices.
//!
//! Accuracy from counts that are known, on shards of all kinds.

use crate::panicking;
use crate::prelude::*;
use datasets::CLASSES;

/// A rank, logits and labels of its shard; the accuracy of all shards.
pub type Answer = fn(&Rank, &Tensor, &Tensor) -> Result<f64, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_tells_the_accuracy_of_all,
    of_equal_logits_the_first_counts,
    errors_are_passed_on
];

const LAW: &str =
    "add up counts, not shares: correct answers and images over all ranks, then divide once";

/// The images of a rank, and the number of those that are classified correctly.
#[derive(Clone, Copy)]
struct Shard {
    correct: usize,
    images: usize,
}

impl Shard {
    fn accuracy(self) -> f64 {
        self.correct as f64 / self.images as f64
    }

    /// Logits and labels. The first `correct` images are classified correctly.
    fn outputs(self, device: &Device) -> Result<(Tensor, Tensor)> {
        let mut logits = Vec::with_capacity(self.images * CLASSES);
        let mut labels = Vec::with_capacity(self.images);
        for image in 0..self.images {
            let label = image * 7 % CLASSES;
            let answer = if image < self.correct { label } else { (label + 3) % CLASSES };
            // No two logits of an image are equal, and the largest is at the answer.
            let logit =
                |class: usize| (class as f64).sin() + if class == answer { 3.0 } else { 0.0 };
            logits.extend((0..CLASSES).map(logit));
            labels.push(label as u32);
        }
        let labels = Tensor::from_vec(labels, self.images, device)?;
        Ok((Tensor::from_vec(logits, (self.images, CLASSES), device)?, labels))
    }
}

/// Compares the answer's accuracy on every rank with the accuracy of one device.
fn check(answer: Answer, shards: &[(usize, usize)]) {
    let shards: Vec<Shard> =
        shards.iter().map(|&(correct, images)| Shard { correct, images }).collect();
    let all = Shard {
        correct: shards.iter().map(|shard| shard.correct).sum(),
        images: shards.iter().map(|shard| shard.images).sum(),
    };
    let on_ranks = shards.clone();
    let found = panicking::attempt(shards.len(), Sends::Buffered, move |rank| {
        let (logits, labels) = on_ranks[rank.rank()].outputs(rank.device())?;
        answer(rank, &logits, &labels)
    });
    let counts = |shard: &Shard| format!("{} of {}", shard.correct, shard.images);
    let of_each = shards.iter().map(counts).collect::<Vec<_>>().join(", ");
    let expected = format!("{:.4} ({})", all.accuracy(), counts(&all));
    let found = found.unwrap_or_else(|failure| {
        let law = "every rank takes part, and one without images adds two zeros";
        let what = format!("shards with {of_each} correct: no accuracy");
        let empty = shards.iter().any(|shard| shard.images == 0);
        panicking::fail_on_ranks(&what, &expected, &failure, law, empty)
    });
    for (rank, &got) in found.iter().enumerate() {
        // NaN counts as a difference.
        let equal = (got - all.accuracy()).abs() <= 1e-12;
        if !equal {
            let digits = if (got - all.accuracy()).abs() < 1e-3 { 12 } else { 4 };
            fail(
                &format!("shards with {of_each} correct: the accuracy on rank {rank} is wrong"),
                &format!("{:.digits$} ({})", all.accuracy(), counts(&all)),
                &format!("{got:.digits$}{}", guess(got, rank, all, &shards)),
                LAW,
            );
        }
    }
    let bits = |number: &f64| number.to_bits();
    if found.iter().map(bits).any(|of_rank| of_rank != bits(&found[0])) {
        let all: Vec<String> = found.iter().map(|accuracy| format!("{accuracy:?}")).collect();
        fail(
            &format!("shards with {of_each} correct: ranks have different accuracies"),
            "one number on all ranks, to the last bit",
            &all.join("\n"),
            "every rank divides the same sums: else `if accuracy > best { stop }` stops one rank, and the others wait",
        );
    }
}

fn guess(got: f64, rank: usize, all: Shard, shards: &[Shard]) -> String {
    let world_size = shards.len() as f64;
    let mean = shards.iter().filter(|shard| shard.images > 0).map(|shard| shard.accuracy());
    let mean = mean.sum::<f64>() / world_size;
    let local = shards[rank];
    let missing = all.correct as f64 - got * all.images as f64;
    let guesses = [
        (got.is_nan(), "0 images divided by 0"),
        (same(got, all.accuracy() / world_size), "divided by the number of ranks"),
        (same(got, local.accuracy()), "the accuracy of this rank's shard alone"),
        (same(got, mean), "the mean of the shards' accuracies"),
        (
            same(got, local.correct as f64 / all.images as f64),
            "this rank's correct answers over all ranks' images",
        ),
        (same(got, all.accuracy() * 100.0), "in percent, where 0 to 1 is asked for"),
        ((got - all.accuracy()).abs() < 1e-5, "right to a few digits; was it computed in f32?"),
        (same(missing, 256.0), "256 correct answers are missing: were they counted in bytes (u8)?"),
    ];
    let guess = guesses.iter().find(|(fits, _)| *fits);
    guess.map(|(_, what)| format!(": {what}")).unwrap_or_default()
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

fn every_rank_tells_the_accuracy_of_all(answer: Answer) {
    // Unequal shards, equal ones, one rank alone, ranks without images, and more than a byte can count.
    check(answer, &[(3, 4), (1, 1)]);
    check(answer, &[(2, 5), (4, 5), (1, 4)]);
    check(answer, &[(2, 6), (3, 6)]);
    check(answer, &[(0, 5), (5, 5), (2, 5), (3, 5)]);
    check(answer, &[(7, 10)]);
    check(answer, &[(0, 3)]);
    check(answer, &[(2, 3), (0, 0), (1, 2)]);
    check(answer, &[(0, 0), (1, 2)]);
    check(answer, &[(300, 310), (5, 309)]);
    // Shares whose sum depends on the order.
    check(answer, &[(3, 7), (2, 5), (1, 11)]);
    check(answer, &[(3, 4), (1, 3), (2, 5)]);
    check(answer, &[(1, 3), (2, 3), (4, 7)]);
    check(answer, &[(2, 6), (5, 5), (1, 3)]);
}

/// An untrained network: all logits are equal.
fn of_equal_logits_the_first_counts(answer: Answer) -> Outcome {
    let labels = [[0u32, 3, 9, 0], [1, 0, 2, 7]];
    let found = ranks::run(2, Sends::Buffered, move |rank| {
        let logits = Tensor::zeros((4, CLASSES), DType::F64, rank.device())?;
        answer(rank, &logits, &Tensor::new(&labels[rank.rank()], rank.device())?)
    })?;
    if let Some(got) = found.into_iter().find(|got| *got != 3.0 / 8.0) {
        let ties = if got == 1.0 { ": every label is at a largest logit" } else { "" };
        fail(
            "8 images whose logits are all 0, 3 of them with label 0",
            "0.375",
            &format!("{got}{ties}"),
            "of several equal largest logits the first is the answer, as in `argmax`",
        );
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let (correct, images) = [(3, 4), (1, 2), (2, 3)][rank.rank()];
        let (logits, labels) = Shard { correct, images }.outputs(rank.device())?;
        answer(rank, &logits, &labels)
    })
}
