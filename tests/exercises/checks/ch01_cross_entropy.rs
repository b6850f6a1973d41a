//! Chapter 1, `book/src/ch01-single-gpu.md`: the loss, summed over the batch, and its gradient.
//!
//! Cross-entropy, against numbers that can be computed by hand, its own derivative, and stage 1.

use std::fmt;

use crate::prelude::*;

/// Logits, labels and the number of classes; the loss and its gradient.
pub type Answer = fn(&[f64], &[usize], usize) -> (f64, Vec<f64>);

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_loss_is_a_sum_over_the_batch,
    it_is_the_loss_of_the_label in [Label(0), Label(1), Label(2), Label(3)],
    a_gradient_is_the_derivative_of_its_loss in [Batch(5, 4), Batch(2, 12)],
    large_logits_do_not_overflow in LARGE,
    shards_of_any_size_add_up in (0..=5).map(Cut),
    stage_1_has_the_same in [Batch(5, 4), Batch(2, 12), Batch(300, 7), Batch(3, 40)]
];

/// The law that an answer breaks which is wrong for small logits too.
const FORMULA: &str = "a loss is the sum over its samples of −ln of the probability at the label, and the gradient is the \
                       probabilities, with 1 taken off at the label";

/// Samples, and classes.
#[derive(Clone, Copy)]
struct Batch(usize, usize);

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} classes", counted(self.0, "sample"), self.1)
    }
}

impl Batch {
    /// Logits between −2 and 2.
    fn logits(self) -> Vec<f64> {
        (0..self.0 * self.1)
            .map(|i| f64::from((i * 29 % 17 + i / 17 % 5) as u32) / 5.2 - 2.0)
            .collect()
    }

    fn labels(self) -> Vec<usize> {
        (0..self.0).map(|sample| (sample * 7 + 1) % self.1).collect()
    }
}

fn gradient(classes: usize) -> Expectation<'static> {
    Expectation::of("the gradient")
        .at(move |index| format!("sample {}, class {}", index / classes, index % classes))
}

fn mean_over(samples: usize) -> impl Fn(f64, f64) -> Option<String> {
    move |expected, got| {
        let mean = samples > 1 && (got * samples as f64 - expected).abs() < 1e-6;
        mean.then(|| {
            format!("that is the gradient of the mean over {samples} samples, not of the sum")
        })
    }
}

/// Three samples whose logits are all 0: every class is as likely as any other.
fn a_loss_is_a_sum_over_the_batch(answer: Answer) -> Outcome {
    given("three samples with four equal logits each");
    let (got, _) = answer(&[0.0; 12], &[0, 1, 3], 4);
    Expectation::of("the loss of three samples with four equal logits each")
        .law("a loss is the sum over its samples: 3 · ln 4 here; only the update divides, and once")
        .guess(|expected, got| {
            let mean = (got * 3.0 - expected).abs() < 1e-9;
            mean.then(|| "that is the sum divided by 3: the mean".into())
        })
        .up_to(1e-12)
        .compare(&[3.0 * 4f64.ln()], &[got])
}

#[derive(Clone, Copy)]
struct Label(usize);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sample of label {} with probabilities 0.1, 0.2, 0.3 and 0.4", self.0)
    }
}

fn it_is_the_loss_of_the_label(answer: Answer, &Label(label): &Label) -> Outcome {
    let mut expected = [0.1, 0.2, 0.3, 0.4];
    let logits = expected.map(f64::ln);
    let (got, dlogits) = answer(&logits, &[label], 4);
    Expectation::of("the loss")
        .law("a sample's loss is −ln of the probability at its label; labels begin at 0")
        .guess(|_, got| {
            let other = (0..4).find(|&other| (got + logits[other]).abs() < 1e-9)?;
            Some(format!("that is the loss of label {other}"))
        })
        .up_to(1e-12)
        .compare(&[-logits[label]], &[got])?;
    expected[label] -= 1.0;
    gradient(4)
        .law("the gradient is the probabilities, with 1 taken off at the label")
        .guess(|expected, got| {
            let opposite = (got + expected).abs() < 1e-9;
            opposite.then(|| "that has the opposite sign: the update would go uphill".into())
        })
        .up_to(1e-12)
        .compare(&expected, &dlogits)
}

/// Central differences: an error of about the step's square.
fn a_gradient_is_the_derivative_of_its_loss(answer: Answer, batch: &Batch) -> Outcome {
    const STEP: f64 = 1e-4;
    let (Batch(samples, classes), logits, labels) = (*batch, batch.logits(), batch.labels());
    let shifted = |index: usize, by: f64| {
        let mut logits = logits.clone();
        logits[index] += by;
        answer(&logits, &labels, classes).0
    };
    let slope = |index| (shifted(index, STEP) - shifted(index, -STEP)) / (2.0 * STEP);
    let slopes: Vec<f64> = (0..logits.len()).map(slope).collect();
    gradient(classes)
        .law("a gradient is the derivative of the very loss that is returned: this one's slope is expected")
        .guess(mean_over(samples))
        .up_to(1e-7)
        .compare(&slopes, &answer(&logits, &labels, classes).1)
}

/// Rows of two logits: a name, the logits, the labels, the loss and the gradient.
#[derive(Clone, Copy)]
struct Large(&'static str, &'static [f64], &'static [usize], f64, &'static [f64]);

/// In the second batch one row is small beside another.
const LARGE: [Large; 3] = [
    Large("logits 1000 and 0 with label 1", &[1000.0, 0.0], &[1], 1000.0, &[1.0, -1.0]),
    Large(
        "logits 1000 and 1000, then −1000 and −1000, both with label 0",
        &[1000.0, 1000.0, -1000.0, -1000.0],
        &[0, 0],
        2.0 * std::f64::consts::LN_2,
        &[-0.5, 0.5, -0.5, 0.5],
    ),
    Large("logits −1000 and 0 with label 1", &[-1000.0, 0.0], &[1], 0.0, &[0.0, 0.0]),
];

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

fn large_logits_do_not_overflow(answer: Answer, large: &Large) -> Outcome {
    let &Large(_, logits, labels, loss, dlogits) = large;
    let small: Vec<f64> = logits.iter().map(|logit| logit / 1000.0).collect();
    // An answer that is wrong for small logits too has another mistake.
    let law = |law| if is_right(answer, &small, labels) { law } else { FORMULA };
    let (got, got_gradient) = answer(logits, labels, 2);
    Expectation::of("the loss")
        .law(law("exponentials are taken of logits minus their row's largest, and ln never of a 0"))
        .up_to(1e-12)
        .compare(&[loss], &[got])?;
    gradient(2)
        .law(law("exponentials are taken of logits minus their row's largest"))
        .up_to(1e-12)
        .compare(dlogits, &got_gradient)
}

/// Whether the loss and the gradient of rows of two small logits are those of the formula.
fn is_right(answer: Answer, logits: &[f64], labels: &[usize]) -> bool {
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (row, &label) in logits.chunks(2).zip(labels) {
        let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
        loss -= (row[label].exp() / sum).ln();
        gradient.extend(
            (0..2).map(|class| row[class].exp() / sum - f64::from(u8::from(class == label))),
        );
    }
    let (got, dlogits) = answer(logits, labels, 2);
    let right = Expectation::of("").up_to(1e-9);
    right.compare(&[loss], &[got]).and_then(|()| right.compare(&gradient, &dlogits)).is_ok()
}

/// A batch of five samples that is cut behind so many of them.
#[derive(Clone, Copy)]
struct Cut(usize);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shards of {} and {} samples", self.0, 5 - self.0)
    }
}

/// The reason for the sum: the losses of a batch's parts add up to the loss of the batch, wherever it is cut.
fn shards_of_any_size_add_up(answer: Answer, &Cut(first): &Cut) -> Outcome {
    let batch = Batch(5, 4);
    let (logits, labels) = (batch.logits(), batch.labels());
    let (whole, dlogits) = answer(&logits, &labels, 4);
    let shard = |logits: &[f64], labels: &[usize]| {
        if labels.is_empty() {
            given("an empty batch (B = 0)");
        }
        answer(logits, labels, 4)
    };
    let (a, mut da) = shard(&logits[..first * 4], &labels[..first]);
    let (b, db) = shard(&logits[first * 4..], &labels[first..]);
    let law = "the loss of a batch is the sum of its shards' losses, even where one is empty";
    let loss = Expectation::of("the loss of the whole batch and of its shards");
    loss.between("whole", "shards").law(law).up_to(1e-12).compare(&[whole], &[a + b])?;
    da.extend(db);
    let means = |whole: f64, shard: f64| {
        let is_mean = |samples: usize| (whole * 5.0 - shard * samples as f64).abs() < 1e-9;
        let means = is_mean(first) || is_mean(5 - first);
        means.then(|| "these are means, each over the samples of one call".into())
    };
    let gradient = gradient(4).between("whole", "shards").law(law).guess(means);
    gradient.up_to(1e-12).compare(&dlogits, &da)
}

fn stage_1_has_the_same(answer: Answer, batch: &Batch) -> Outcome {
    let (Batch(samples, classes), logits, labels) = (*batch, batch.logits(), batch.labels());
    let z = Var::from_tensor(&Tensor::from_slice(&logits, (samples, classes), &Device::Cpu)?)?;
    let right: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
    let theirs = ops::cross_entropy(&z, &Tensor::new(right, &Device::Cpu)?)?;
    let gradients = theirs.backward()?;
    let (got, dlogits) = answer(&logits, &labels, classes);
    let law = "it is what ops::cross_entropy computes";
    let loss = Expectation::of("the loss").law(law).up_to(1e-12);
    loss.compare(&[theirs.to_scalar()?], &[got])?;
    let theirs = numbers(gradients.get(&z).expect("the logits are part of the loss"))?;
    gradient(classes).law(law).guess(mean_over(samples)).up_to(1e-12).compare(&theirs, &dlogits)
}
