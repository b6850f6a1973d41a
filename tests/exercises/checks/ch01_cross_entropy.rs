//! Chapter 1, `book/src/ch01-single-gpu.md`: the loss, summed over the batch, and its gradient.
//!
//! Cross-entropy, against numbers that can be computed by hand, and stage 1.

use crate::prelude::*;

/// Logits, labels and the number of classes; the loss and its gradient.
pub type Answer = fn(&[f64], &[usize], usize) -> (f64, Vec<f64>);

pub const LAWS: &[Law<Answer>] = laws![
    it_is_the_loss_of_the_label in [Label(0), Label(1), Label(2), Label(3)],
    it_is_the_sum_over_the_batch in [Batch(5, 4), Batch(2, 12), Batch(300, 7), Batch(3, 40)],
    large_logits_do_not_overflow in LARGE,
    shards_of_any_size_add_up in (0..=5).map(Cut)
];

const LABEL: &str = "a sample's loss is −ln of the probability at its label; labels begin at 0";
const GRADIENT: &str = "the gradient is the probabilities, with 1 taken off at the label";
const SUM: &str = "loss and gradient are sums over the samples, as in ops::cross_entropy; only the update divides, and once";
const LARGEST: &str = "exponentials are of logits minus their row's largest; ln is never of a 0";
const SHARDS: &str = "the loss of a batch is the sum of its shards' losses; a shard may be empty";

/// Demands a loss and a gradient.
fn compare(
    (loss, gradient): (f64, &[f64]),
    (got, got_gradient): (f64, Vec<f64>),
    classes: usize,
    laws: [&str; 2],
) -> Outcome {
    let samples = gradient.len() / classes;
    let guess = move |what: &'static str| {
        move |expected: f64, got: f64| {
            let is = |other: f64| (other - expected).abs() < 1e-7;
            let mean =
                || format!("that is the {what} of the mean over {samples} samples, not of the sum");
            let uphill = || "that has the opposite sign: the update would go uphill".to_owned();
            match samples > 1 && is(got * samples as f64) {
                true => Some(mean()),
                false => is(-got).then(uphill),
            }
        }
    };
    let loss_is = Expectation::of("the loss").law(laws[0]).guess(guess("loss")).up_to(1e-12);
    loss_is.compare(&[loss], &[got])?;
    Expectation::of("the gradient")
        .at(move |index| format!("sample {}, class {}", index / classes, index % classes))
        .law(laws[1])
        .guess(guess("gradient"))
        .up_to(1e-12)
        .compare(gradient, &got_gradient)
}

#[derive(Clone, Copy)]
struct Label(usize);

shown!(Label(label) => "a sample of label {label} with probabilities 0.1, 0.2, 0.3 and 0.4");

fn it_is_the_loss_of_the_label(answer: Answer, &Label(label): &Label) -> Outcome {
    let mut expected = [0.1, 0.2, 0.3, 0.4];
    let losses = expected.map(|probability: f64| -probability.ln());
    let got = answer(&losses.map(|loss| -loss), &[label], 4);
    let other = losses.iter().position(|loss| (got.0 - loss).abs() < 1e-9);
    demand(other.is_none_or(|other| other == label), || {
        let what = format!("that is the loss of label {}", other.unwrap_or_default());
        Finding::new(what).expected(losses[label], got.0).law(LABEL)
    })?;
    expected[label] -= 1.0;
    compare((losses[label], &expected), got, 4, [LABEL, GRADIENT])
}

/// Samples, and classes.
#[derive(Clone, Copy)]
struct Batch(usize, usize);

shown!(Batch(samples, classes) => "{} and {classes} classes", counted(*samples, "sample"));

impl Batch {
    /// Logits between −2 and 2, and labels.
    fn inputs(self) -> (Vec<f64>, Vec<usize>) {
        let Self(samples, classes) = self;
        let logit = |i: usize| f64::from((i * 29 % 17 + i / 17 % 5) as u32) / 5.2 - 2.0;
        let labels = (0..samples).map(|sample| (sample * 7 + 1) % classes);
        ((0..samples * classes).map(logit).collect(), labels.collect())
    }
}

fn it_is_the_sum_over_the_batch(answer: Answer, batch: &Batch) -> Outcome {
    let (&Batch(samples, classes), (logits, labels)) = (batch, batch.inputs());
    let z = Var::from_tensor(&Tensor::from_slice(&logits, (samples, classes), &Device::Cpu)?)?;
    let right: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
    let loss = ops::cross_entropy(&z, &Tensor::new(right, &Device::Cpu)?)?;
    let gradient = numbers(loss.backward()?.get(&z).expect("the logits are part of the loss"))?;
    let got = answer(&logits, &labels, classes);
    compare((loss.to_scalar()?, &gradient), got, classes, [SUM; 2])
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

shown!(Large(name, _, _, _, _) => "{name}");

fn large_logits_do_not_overflow(answer: Answer, large: &Large) -> Outcome {
    let &Large(_, logits, labels, loss, gradient) = large;
    let got = answer(logits, labels, 2);
    // Numbers that are finite and wrong have another mistake.
    let overflows = |numbers: &[f64]| numbers.iter().any(|number| !number.is_finite());
    let laws = match overflows(&[got.0]) || overflows(&got.1) {
        true => [LARGEST; 2],
        false => [LABEL, GRADIENT],
    };
    compare((loss, gradient), got, 2, laws)
}

/// A batch of five samples that is cut behind so many of them.
#[derive(Clone, Copy)]
struct Cut(usize);

shown!(Cut(first) => "shards of {first} and {} samples", 5 - first);

/// The reason for the sum: the losses of a batch's parts add up to the loss of the batch, wherever it is cut.
fn shards_of_any_size_add_up(answer: Answer, &Cut(first): &Cut) -> Outcome {
    let (logits, labels) = Batch(5, 4).inputs();
    let (whole, dlogits) = answer(&logits, &labels, 4);
    let (a, mut da) = answer(&logits[..first * 4], &labels[..first], 4);
    let (b, db) = answer(&logits[first * 4..], &labels[first..], 4);
    da.extend(db);
    let both = |what: &str| {
        let both = Expectation::of(format!("the {what} of the whole batch and of its shards"));
        both.between("whole", "shards").law(SHARDS).up_to(1e-12)
    };
    both("loss").compare(&[whole], &[a + b])?;
    both("gradient").compare(&dlogits, &da)
}
