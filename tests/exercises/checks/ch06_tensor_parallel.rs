//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: two dense layers on k ranks, one cut by columns, one by rows.
//!
//! Cut, forward and backward, each with right input, are compared with one device and automatic differentiation. Then the
//! messages, and all three functions together, compared with stage 6.

use crate::panicking;
use crate::prelude::*;
use crate::two_layers::{
    Computed, Gradients, Layer, TwoLayers, by_stage_6, fractions, whole_numbers,
};
use model_parallel::tensor_parallel::Cut;

/// The functions `part`, `forward` and `backward`.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the exercise documents its functions")]
pub struct Answer {
    pub part: fn(&TwoLayers, usize, usize) -> Result<TwoLayers, Error>,
    pub forward: fn(&Rank, &TwoLayers, &Tensor) -> Result<(Tensor, Tensor), Error>,
    pub backward: fn(&Rank, &TwoLayers, &Tensor, &Tensor, &Tensor) -> Result<Gradients, Error>,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![ranks_compute_what_one_device_does, errors_are_passed_on];

const TOGETHER: &str =
    "a column of H is one rank's, with its column of A, its number of a and its row of B";
const WHOLE: &str = "b is for all columns of H together: every rank has all of it";
const IN_PLACE: &str =
    "relu works on each number for itself, so a rank can apply it to its columns of H";
const REDUCED: &str =
    "each rank has a term of H·B: the ranks' terms are added up, and then the bias, once";
const PASSED: &str =
    "where relu has let a number pass, its gradient passes; then it is complete: none is sent";
const OWN: &str =
    "the gradient of a part is complete on the rank that holds the part: none is sent";
const SAME_DY: &str =
    "Y is the same on all ranks, and so is its gradient: k copies of one loss, not k losses";
const ALL_USES: &str =
    "X is used on all ranks: its gradient is the sum of the gradients of all ranks";

const ORDER: &str = "all ranks add in the same order, or one adds for all: else their results part in the last bits";

#[derive(Clone)]
struct Case {
    told: String,
    x: Tensor,
    dy: Tensor,
    whole: TwoLayers,
    parts: Vec<TwoLayers>,
    one_device: Computed,
    /// The results of each rank's part without any sum over the ranks.
    alone: Vec<Computed>,
}

/// A wrong tensor and its name.
type Known = (&'static str, Result<Tensor>);

impl Case {
    fn new(
        ranks: usize,
        batch: usize,
        inputs: usize,
        hidden: usize,
        outputs: usize,
    ) -> Result<Self> {
        let on = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        let told = format!("{on}, B = {batch}, in = {inputs}, hidden = {hidden}, out = {outputs}");
        let (x, dy) = (whole_numbers(&[batch, inputs], 4)?, whole_numbers(&[batch, outputs], 5)?);
        Self::of(told, ranks, TwoLayers::of_small_numbers(inputs, hidden, outputs)?, x, dy)
    }

    /// Numbers that round, so sums show the order of their additions.
    fn of_fractions(ranks: usize) -> Result<Self> {
        let (told, whole) = (format!("{ranks} ranks"), TwoLayers::of_fractions(4, 7, 5)?);
        Self::of(told, ranks, whole, fractions(&[3, 4], 7)?, fractions(&[3, 5], 2)?)
    }

    fn of(told: String, ranks: usize, whole: TwoLayers, x: Tensor, dy: Tensor) -> Result<Self> {
        let one_device = whole.on_one_device(&x, &dy)?;
        let parts = parts(&whole, ranks)?;
        let alone = parts.iter().map(|part| part.on_one_device(&x, &dy)).collect::<Result<_>>()?;
        Ok(Self { told, x, dy, whole, parts, one_device, alone })
    }

    fn run<R: Send + 'static>(
        &self,
        what: &str,
        law: &str,
        work: impl Fn(&Self, &Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Vec<R> {
        let case = self.clone();
        let outcome =
            panicking::attempt(self.parts.len(), Sends::Buffered, move |rank| work(&case, rank));
        outcome.unwrap_or_else(|failure| {
            let what = format!("{}: no {what}", self.told);
            let empty = self.one_device.before_relu.dims()[1] < self.parts.len();
            panicking::fail_on_ranks(&what, "a result on every rank", &failure, law, empty)
        })
    }

    /// Compares two tensors. The message names a wrong tensor that is `known`.
    fn compare(&self, what: &str, law: &str, [expected, got]: [&Tensor; 2], known: Vec<Known>) {
        let row = expected.dims().last().copied().unwrap_or(1).max(1);
        let guess = known.into_iter().find(|(_, wrong)| wrong.as_ref().is_ok_and(|w| same(w, got)));
        Expectation::of(format!("{}: {what}", self.told))
            .law(law)
            .up_to(1e-12)
            .at(|index| match expected.rank() {
                2 => format!("row {}, column {}", index / row, index % row),
                _ => format!("element {index}"),
            })
            .guess(|_, _| guess.as_ref().map(|(what, _)| format!("that is {what}")))
            .check_tensor(expected, got);
    }

    /// Compares the answer's functions with one device.
    fn check(&self, answer: Answer) -> Result<()> {
        self.parts_are_cut(answer);
        self.forward_is_that_of_one_device(answer)?;
        self.backward_is_that_of_one_device(answer)
    }

    fn parts_are_cut(&self, answer: Answer) {
        let found = self.run("part", TOGETHER, move |case, rank| {
            (answer.part)(&case.whole, rank.rank(), rank.world_size())
        });
        for (rank, (expected, found)) in self.parts.iter().zip(&found).enumerate() {
            let hidden = self.one_device.before_relu.dims()[1];
            let columns = Cut::new(1, hidden).range(self.parts.len(), rank);
            for (name, tensors) in expected.beside(found) {
                let what = format!("{name} on rank {rank} (columns {columns:?} of H)");
                let law = if name == "b" { WHOLE } else { TOGETHER };
                self.compare(&what, law, tensors, vec![]);
            }
        }
    }

    fn forward_is_that_of_one_device(&self, answer: Answer) -> Result<()> {
        let found = self.run("Y", REDUCED, move |case, rank| {
            (answer.forward)(rank, &case.parts[rank.rank()], &case.x)
        });
        let (bias, y, k) = (&self.whole.second.bias, &self.one_device.y, self.parts.len() as f64);
        let sum = y.broadcast_sub(bias)?;
        for (rank, (hidden, got)) in found.iter().enumerate() {
            let Computed { before_relu, y: with_bias, .. } = &self.alone[rank];
            let expected = before_relu.relu()?;
            // a is this rank's part, and it is added once to numbers that no other rank has.
            let a = self.parts[rank].first.bias.broadcast_as(before_relu.shape())?;
            let with = |times: f64| (before_relu + (&a * (times - 1.0))?)?.relu();
            let known = vec![
                ("X·A + a before relu", Ok(before_relu.clone())),
                ("relu(X·A + a/k): a is not added up over the ranks", with(1.0 / k)),
                ("relu(X·A + k·a)", with(k)),
                ("relu(X·A), without a", with(0.0)),
            ];
            self.compare(&format!("H on rank {rank}"), IN_PLACE, [&expected, hidden], known);
            let known = vec![
                ("the sum with a k-th of the bias", sum.broadcast_add(&(bias / k)?)),
                ("the sum with the bias k times", sum.broadcast_add(&(bias * k)?)),
                ("the term of this rank alone, with the bias", Ok(with_bias.clone())),
                ("the mean of the terms, with the bias", (&sum / k)?.broadcast_add(bias)),
                ("the sum without the bias", Ok(sum.clone())),
                ("relu of Y: it belongs between the layers, not behind them", y.relu()),
            ];
            self.compare(&format!("Y on rank {rank}"), REDUCED, [y, got], known);
        }
        Ok(())
    }

    fn backward_is_that_of_one_device(&self, answer: Answer) -> Result<()> {
        let found = self.run("gradients", OWN, move |case, rank| {
            let own = rank.rank();
            let hidden = case.alone[own].before_relu.relu()?;
            (answer.backward)(rank, &case.parts[own], &case.x, &hidden, &case.dy)
        });
        let (gradients, k) = (&self.one_device.gradients, self.parts.len() as f64);
        let batch = self.x.dim(0)? as f64;
        let parts = parts(&gradients.layers, self.parts.len())?;
        for (rank, found) in found.iter().enumerate() {
            // The backward pass computes the second layer first.
            for (index, (name, tensors)) in
                parts[rank].beside(&found.layers).into_iter().enumerate().rev()
            {
                let every = parts.iter().map(|part| part.beside(part)[index].1[0]);
                let every = Tensor::stack(&every.collect::<Vec<_>>(), 0);
                let sum = every.and_then(|every| every.sum(0));
                let mut known = vec![
                    ("k times what it should be", tensors[0] * k),
                    ("what it should be, divided by k", tensors[0] / k),
                    ("divided by B: gradients are sums over the batch", tensors[0] / batch),
                    ("the sum over all ranks, though each holds another part", sum),
                ];
                if index < 2 {
                    known.push(("what it would be without relu", self.without_relu(rank, index)));
                }
                let law = [PASSED, PASSED, OWN, SAME_DY][index];
                let what = format!("the gradient of {name} on rank {rank}");
                self.compare(&what, law, tensors, known);
            }
            let known = vec![
                ("the term of this rank alone", Ok(self.alone[rank].gradients.x.clone())),
                ("k times what it should be: it is added up once too often", &gradients.x * k),
                ("the mean of the ranks' terms", &gradients.x / k),
                ("divided by B: gradients are sums over the batch", &gradients.x / batch),
            ];
            let what = format!("the gradient of X on rank {rank}");
            self.compare(&what, ALL_USES, [&gradients.x, &found.x], known);
        }
        Ok(())
    }

    fn all_ranks_have_the_same(&self, answer: Answer) -> Result<()> {
        let found = self.run("result", ORDER, move |case, rank| {
            let part = &case.parts[rank.rank()];
            let (hidden, y) = (answer.forward)(rank, part, &case.x)?;
            Ok([y, (answer.backward)(rank, part, &case.x, &hidden, &case.dy)?.x])
        });
        for (index, name) in ["Y", "the gradient of X"].into_iter().enumerate() {
            let expected = numbers(&found[0][index])?;
            for (rank, tensors) in found.iter().enumerate() {
                let got = numbers(&tensors[index])?;
                let Some(at) = (0..expected.len()).find(|&at| expected[at] != got[at]) else {
                    continue;
                };
                let what = format!("{}: {name} on rank {rank} differs from rank 0", self.told);
                let [expected, got] = [expected[at], got[at]].map(|number| format!("{number:?}"));
                fail(&what, &expected, &format!("{got}, in element {at}"), ORDER);
            }
        }
        Ok(())
    }

    /// The gradient of a rank's A (0) or a (1) if all of H's gradient passed.
    fn without_relu(&self, rank: usize, index: usize) -> Result<Tensor> {
        let of_hidden = self.dy.matmul(&self.parts[rank].second.weight.t()?)?;
        if index == 0 { self.x.t()?.matmul(&of_hidden) } else { of_hidden.sum(0) }
    }

    /// On two ranks every all-reduce algorithm sends the same: all numbers once in each direction.
    fn no_more_is_sent_than_one_all_reduce(&self, answer: Answer) {
        let found = self.run("gradients", OWN, move |case, rank| {
            let part = &case.parts[rank.rank()];
            let (hidden, _) = (answer.forward)(rank, part, &case.x)?;
            let forward = rank.traffic().bytes;
            (answer.backward)(rank, part, &case.x, &hidden, &case.dy)?;
            Ok([forward, rank.traffic().bytes - forward])
        });
        let passes = [("forward", "Y", &self.dy), ("backward", "X", &self.x)];
        for (index, (pass, name, like)) in passes.into_iter().enumerate() {
            let sent: u64 = found.iter().map(|bytes| bytes[index]).sum();
            let (numbers, size) = (like.elem_count(), DType::F64.size_in_bytes());
            if sent > (2 * numbers * size) as u64 {
                let what =
                    format!("{}: {pass}, more is sent than an all-reduce like {name}", self.told);
                let expected = format!("2 ranks · {numbers} numbers · {size} bytes");
                let law = "a layer by columns and then one by rows need one sum forward, behind the second, and one \
                           backward, before the first";
                fail(&what, &expected, &format!("{sent} bytes"), law);
            }
        }
    }

    /// Compares all three functions together with stage 6's layers.
    fn check_against_stage_6(&self, answer: Answer) {
        let law = "it is what linear_relu_by_column and linear_by_row compute";
        let found = self.run("result", law, move |case, rank| {
            let part = (answer.part)(&case.whole, rank.rank(), rank.world_size())?;
            let (hidden, y) = (answer.forward)(rank, &part, &case.x)?;
            Ok((y, (answer.backward)(rank, &part, &case.x, &hidden, &case.dy)?))
        });
        let theirs = by_stage_6(&self.parts, &self.x, &self.dy);
        for (rank, ((y, found), (their_y, theirs))) in found.iter().zip(&theirs).enumerate() {
            let compare = |name: &str, tensors| {
                let what = format!("not what stage 6 computes on rank {rank}: {name}");
                self.compare(&what, law, tensors, vec![]);
            };
            compare("Y", [their_y, y]);
            compare("the gradient of X", [&theirs.x, &found.x]);
            for (name, tensors) in theirs.layers.beside(&found.layers) {
                compare(&format!("the gradient of {name}"), tensors);
            }
        }
    }
}

fn parts(whole: &TwoLayers, ranks: usize) -> Result<Vec<TwoLayers>> {
    let TwoLayers { first, second } = whole;
    let part = |rank| {
        let cut = |tensor: &Tensor, axis: usize| {
            Cut::new(axis, tensor.dim(axis)?).part(tensor, ranks, rank)?.force_contiguous()
        };
        Ok(TwoLayers {
            first: Layer { weight: cut(&first.weight, 1)?, bias: cut(&first.bias, 0)? },
            second: Layer { weight: cut(&second.weight, 0)?, bias: second.bias.clone() },
        })
    };
    (0..ranks).map(part).collect()
}

fn same(one: &Tensor, other: &Tensor) -> bool {
    let read = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f64>();
    let (Ok(a), Ok(b)) = (read(one), read(other)) else { return false };
    one.dims() == other.dims() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9)
}

fn ranks_compute_what_one_device_does(answer: Answer) -> Result<()> {
    // Columns that divide evenly, and no two sizes alike; one rank; columns that do not divide; a column for each rank; one of
    // everything.
    for (ranks, batch, inputs, hidden, outputs) in [
        (2, 3, 6, 4, 5),
        (1, 2, 3, 4, 2),
        (2, 2, 3, 5, 2),
        (3, 3, 2, 7, 4),
        (4, 5, 6, 6, 3),
        (4, 1, 2, 4, 1),
        (1, 1, 1, 1, 1),
    ] {
        Case::new(ranks, batch, inputs, hidden, outputs)?.check(answer)?;
    }
    Case::of_fractions(3)?.all_ranks_have_the_same(answer)?;
    Case::new(2, 3, 4, 40, 2)?.no_more_is_sent_than_one_all_reduce(answer);
    for ranks in 1..=4 {
        Case::new(ranks, 3, 5, 7, 2)?.check_against_stage_6(answer);
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let case = Case::new(3, 2, 3, 5, 2)?;
    let forward = case.clone();
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        (answer.forward)(rank, &forward.parts[rank.rank()], &forward.x)
    })?;
    let backward = case.clone();
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let (own, Case { x, dy, .. }) = (rank.rank(), &backward);
        let hidden = backward.alone[own].before_relu.relu()?;
        (answer.backward)(rank, &backward.parts[own], x, &hidden, dy)
    })
}
