//! Chapter 1, `book/src/ch01-single-gpu.md`: the loss, summed over the batch, and its gradient.
//!
//! Cross-entropy, against numbers that can be computed by hand, its own derivative, and stage 1.

use crate::prelude::*;

/// Logits, labels and the number of classes; the loss and its gradient.
pub type Answer = fn(&[f64], &[usize], usize) -> (f64, Vec<f64>);

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_loss_is_a_sum_over_the_batch,
    it_is_the_loss_of_the_label,
    a_gradient_is_the_derivative_of_its_loss,
    large_logits_do_not_overflow,
    shards_of_any_size_add_up,
    stage_1_has_the_same
];

const CLASSES: usize = 4;
const LABELS: [usize; 5] = [1, 3, 0, 0, 2];

/// The law that an answer breaks which is wrong for small logits too.
const FORMULA: &str = "a loss is the sum over its samples of −ln of the probability at the label, and the gradient is the \
                       probabilities, with 1 taken off at the label";

/// Five rows of logits between −2 and 2.
fn logits() -> Vec<f64> {
    (0..5 * CLASSES).map(|i| f64::from((i * 29 % 17) as u32) / 4.0 - 2.0).collect()
}

fn call(answer: Answer, logits: &[f64], labels: &[usize], classes: usize) -> (f64, Vec<f64>) {
    let input = match labels.len() {
        0 => "cross_entropy of an empty batch (B = 0)".to_owned(),
        batch => format!("cross_entropy of a batch of {batch} with {classes} classes"),
    };
    let (logits, labels) = (logits.to_vec(), labels.to_vec());
    within(&input, move || answer(&logits, &labels, classes))
}

fn loss(what: &str) -> Expectation<'static> {
    Expectation::of(format!("the loss of {what}"))
}

fn gradient(what: &str, classes: usize) -> Expectation<'static> {
    Expectation::of(format!("the gradient of {what}"))
        .at(move |index| format!("sample {}, class {}", index / classes, index % classes))
}

fn mean_of_five(expected: f64, got: f64) -> Option<String> {
    let mean = (got * 5.0 - expected).abs() < 1e-6;
    mean.then(|| "that is the gradient of the mean over 5 samples, not of the sum".into())
}

/// Three samples whose logits are all 0: every class is as likely as any other.
fn a_loss_is_a_sum_over_the_batch(answer: Answer) {
    let (got, _) = call(answer, &[0.0; 3 * CLASSES], &[0, 1, 3], CLASSES);
    loss("three samples with four equal logits each")
        .law("a loss is the sum over its samples: 3 · ln 4 here; only the update divides, and once")
        .guess(|expected, got| {
            let mean = (got * 3.0 - expected).abs() < 1e-9;
            mean.then(|| "that is the sum divided by 3: the mean".into())
        })
        .up_to(1e-12)
        .check(&[3.0 * 4f64.ln()], &[got]);
}

/// One row, −ln 0.1, −ln 0.2, …: the probabilities are 0.1, 0.2, 0.3 and 0.4.
fn it_is_the_loss_of_the_label(answer: Answer) {
    let logits = [0.1, 0.2, 0.3, 0.4].map(f64::ln);
    for label in 0..CLASSES {
        let guess = move |_, got: f64| {
            let other = (0..CLASSES).find(|&other| (got + logits[other]).abs() < 1e-9)?;
            Some(format!("that is the loss of label {other}"))
        };
        let sample = format!("a sample of label {label} with probabilities 0.1, 0.2, 0.3 and 0.4");
        let (got, dlogits) = call(answer, &logits, &[label], CLASSES);
        loss(&sample)
            .law("a sample's loss is −ln of the probability at its label; labels begin at 0")
            .guess(guess)
            .up_to(1e-12)
            .check(&[-logits[label]], &[got]);
        let mut expected = [0.1, 0.2, 0.3, 0.4];
        expected[label] -= 1.0;
        gradient(&sample, CLASSES)
            .law("the gradient is the probabilities, with 1 taken off at the label")
            .guess(|expected, got| {
                ((got + expected).abs() < 1e-12)
                    .then(|| "that has the opposite sign: the update would go uphill".into())
            })
            .up_to(1e-12)
            .check(&expected, &dlogits);
    }
}

/// Central differences: an error of about the step's square.
fn a_gradient_is_the_derivative_of_its_loss(answer: Answer) {
    const STEP: f64 = 1e-4;
    let logits = logits();
    let (_, dlogits) = call(answer, &logits, &LABELS, CLASSES);
    let shifted = |index: usize, by: f64| {
        let mut logits = logits.clone();
        logits[index] += by;
        call(answer, &logits, &LABELS, CLASSES).0
    };
    let slopes: Vec<f64> = (0..logits.len())
        .map(|index| (shifted(index, STEP) - shifted(index, -STEP)) / (2.0 * STEP))
        .collect();
    gradient("five samples", CLASSES)
        .law("a gradient is the derivative of the very loss that is returned: this one's slope is expected")
        .guess(mean_of_five)
        .up_to(1e-7)
        .check(&slopes, &dlogits);
}

/// Rows of two logits: a name, the logits, the labels, the loss and the gradient.
type Large = (&'static str, &'static [f64], &'static [usize], f64, &'static [f64]);

/// In the second batch one row is small beside another.
const LARGE: [Large; 3] = [
    ("logits 1000 and 0 with label 1", &[1000.0, 0.0], &[1], 1000.0, &[1.0, -1.0]),
    (
        "logits 1000 and 1000, then −1000 and −1000, both with label 0",
        &[1000.0, 1000.0, -1000.0, -1000.0],
        &[0, 0],
        2.0 * std::f64::consts::LN_2,
        &[-0.5, 0.5, -0.5, 0.5],
    ),
    ("logits −1000 and 0 with label 1", &[-1000.0, 0.0], &[1], 0.0, &[0.0, 0.0]),
];

/// Whether the answer is right where nothing overflows: a thousandth of these logits, against the formula.
fn is_right_when_small(answer: Answer, (_, logits, labels, ..): &Large) -> bool {
    let logits: Vec<f64> = logits.iter().map(|logit| logit / 1000.0).collect();
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (row, &label) in logits.chunks(2).zip(*labels) {
        let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
        loss -= (row[label].exp() / sum).ln();
        let at_label = |class| if class == label { 1.0 } else { 0.0 };
        gradient.extend((0..2).map(|class| row[class].exp() / sum - at_label(class)));
    }
    let (got, dlogits) = call(answer, &logits, labels, 2);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
    near((&got, &loss))
        && dlogits.len() == gradient.len()
        && dlogits.iter().zip(&gradient).all(near)
}

fn large_logits_do_not_overflow(answer: Answer) {
    for case in LARGE {
        let (what, logits, labels, expected, expected_gradient) = case;
        let (got, dlogits) = call(answer, logits, labels, 2);
        let law = |law| if is_right_when_small(answer, &case) { law } else { FORMULA };
        loss(what)
            .law(law(
                "exponentials are taken of logits minus their row's largest, and ln never of a 0",
            ))
            .up_to(1e-12)
            .check(&[expected], &[got]);
        gradient(what, 2)
            .law(law("exponentials are taken of logits minus their row's largest"))
            .up_to(1e-12)
            .check(expected_gradient, &dlogits);
    }
}

/// The reason for the sum: the losses of a batch's parts add up to the loss of the batch, wherever it is cut.
fn shards_of_any_size_add_up(answer: Answer) {
    let logits = logits();
    let (whole, dlogits) = call(answer, &logits, &LABELS, CLASSES);
    for first in 0..=LABELS.len() {
        let (a, mut da) = call(answer, &logits[..first * CLASSES], &LABELS[..first], CLASSES);
        let (b, db) = call(answer, &logits[first * CLASSES..], &LABELS[first..], CLASSES);
        let rest = LABELS.len() - first;
        let what = format!("the whole batch and of its shards of {first} and {rest}");
        let law = "the loss of a batch is the sum of its shards' losses, even where one is empty";
        loss(&what).between("whole", "shards").law(law).up_to(1e-12).check(&[whole], &[a + b]);
        da.extend(db);
        gradient(&what, CLASSES)
            .between("whole", "shards")
            .law(law)
            .guess(|whole, shard| {
                // The first difference is in the first shard with a sample.
                let samples = if first > 0 { first } else { rest };
                let means = (whole * 5.0 - shard * samples as f64).abs() < 1e-9;
                means.then(|| "these are means, each over the samples of one call".into())
            })
            .up_to(1e-12)
            .check(&dlogits, &da);
    }
}

fn stage_1_has_the_same(answer: Answer) {
    let logits = logits();
    let (theirs, their_gradient) = stage_1(&logits, &LABELS).expect("stage 1 takes these logits");
    let (got, dlogits) = call(answer, &logits, &LABELS, CLASSES);
    let law = "it is what ops::cross_entropy computes";
    loss("five samples").law(law).up_to(1e-12).check(&[theirs], &[got]);
    gradient("five samples", CLASSES)
        .law(law)
        .guess(mean_of_five)
        .up_to(1e-12)
        .check(&their_gradient, &dlogits);
}

fn stage_1(logits: &[f64], labels: &[usize]) -> Result<(f64, Vec<f64>)> {
    let logits = Tensor::from_slice(logits, (labels.len(), CLASSES), &Device::Cpu)?;
    let labels: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
    let logits = Var::from_tensor(&logits)?;
    let loss = ops::cross_entropy(&logits, &Tensor::new(labels, &Device::Cpu)?)?;
    let gradients = loss.backward()?;
    let gradient = gradients.get(&logits).expect("the logits are part of the loss");
    Ok((loss.to_scalar()?, numbers(gradient)?))
}
