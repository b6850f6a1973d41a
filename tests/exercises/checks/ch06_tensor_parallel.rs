//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: the MLP of a GPT on k ranks, one layer by columns, one by rows.
//!
//! Cut, forward and backward, each with right input, are compared with one device and automatic differentiation. Then the
//! messages.

use crate::expectation::Known;
use crate::prelude::*;
use crate::two_layers::{Computed, Gradients, TwoLayers, gelu, gelu_slope, whole_numbers};

/// The functions `part`, `forward` and `backward`.
#[derive(Clone, Copy)]
pub struct Answer {
    pub part: fn(&TwoLayers, usize, usize) -> Result<TwoLayers, Error>,
    pub forward: fn(&Rank, &TwoLayers, &Tensor) -> Result<(Tensor, Tensor), Error>,
    pub backward: fn(&Rank, &TwoLayers, &Tensor, &Tensor, &Tensor) -> Result<Gradients, Error>,
}

pub const LAWS: &[Law<Answer>] = laws![
    a_part_is_cut in CASES.map(Case::new),
    forward_is_that_of_one_device in Case::all(),
    backward_is_that_of_one_device in Case::all(),
    all_ranks_have_the_same in [Case::rounding()],
    no_more_is_sent_than_one_all_reduce in [Case::new([2, 3, 4, 40, 2])],
    errors_are_passed_on_forward => (3, Sends::Buffered)
        |answer, rank| Case::new([3, 2, 3, 5, 2]).forward(answer, rank),
    errors_are_passed_on_backward => (3, Sends::Buffered)
        |answer, rank| Case::new([3, 2, 3, 5, 2]).backward(answer, rank),
];

const TOGETHER: &str = "a column of Z is one rank's, with its column of A, its a and its row of B";
const IN_RUNS: &str = "ranks take runs of columns in their order, as shard_range does: the first ranks take the columns that are left over";
const SHAPE: &str = "a gradient has the shape of its tensor";
const WHOLE: &str = "b is for all columns of Z together: every rank has all of it";
const COLUMNS: &str = "a column of Z is complete on its rank: X·A + a, before GELU";
const REDUCED: &str = "each rank has a term of gelu(Z)·B: add up the terms, then add the bias once";
/// The laws of the gradients of A, a, B and b.
const OWN: [&str; 4] = [
    "GELU multiplies the gradient by its slope at Z; then it is complete: none is sent",
    "GELU multiplies the gradient by its slope at Z; then it is complete: none is sent",
    "the gradient of a part is complete on the rank that holds the part: none is sent",
    "Y is the same on all ranks, and so is its gradient: k copies of one loss, not k losses",
];
const ALL_USES: &str = "X is used on all ranks: its gradient is the sum over all ranks";
const ORDER: &str = "all ranks add in the same order, or one adds for all: else their results differ in the last bits";
const ONE_SUM: &str = "a layer by columns, then one by rows need one sum forward, behind the second, and one backward, before the first";
const OVER_N: &str = "divided by N: gradients are sums over the tokens";

/// Ranks, tokens, in, hidden and out: columns that divide evenly, and no two sizes alike; one rank; columns that do not divide;
/// a column for each rank; one of everything.
const CASES: [[usize; 5]; 6] = [
    [2, 3, 6, 4, 5],
    [1, 2, 3, 4, 2],
    [2, 2, 3, 5, 2],
    [3, 3, 2, 7, 4],
    [4, 1, 2, 4, 1],
    [1, 1, 1, 1, 1],
];

#[derive(Clone)]
struct Case {
    sizes: [usize; 5],
    x: Tensor,
    dy: Tensor,
    whole: TwoLayers,
    parts: Vec<TwoLayers>,
    one_device: Computed,
    /// The results of each rank's part without any sum over the ranks.
    alone: Vec<Computed>,
}

shown!(Case { sizes: [ranks, tokens, inputs, hidden, outputs], .. } =>
    "{}, N = {tokens}, in = {inputs}, hidden = {hidden}, out = {outputs}", counted(*ranks, "rank"));

impl Case {
    fn new(sizes: [usize; 5]) -> Self {
        Self::of(sizes, |whole| Ok(whole.clone()))
    }

    /// The cases of whole numbers, and one of numbers that round.
    fn all() -> impl Iterator<Item = Self> {
        CASES.map(Self::new).into_iter().chain([Self::rounding()])
    }

    /// A case of numbers that round, so sums show the order and the type of their additions.
    fn rounding() -> Self {
        Self::of([3, 3, 4, 7, 5], |whole| (whole + 10.0)?.recip())
    }

    /// A case of other numbers than whole ones.
    fn of(sizes: [usize; 5], other: fn(&Tensor) -> Result<Tensor>) -> Self {
        let computed = || {
            let [ranks, tokens, inputs, hidden, outputs] = sizes;
            let x = other(&whole_numbers(&[tokens, inputs], 4)?)?;
            let dy = other(&whole_numbers(&[tokens, outputs], 5)?)?;
            let whole = TwoLayers::of_small_numbers(inputs, hidden, outputs)?.map(other)?;
            let one_device = whole.on_one_device(&x, &dy)?;
            let parts = whole.parts(ranks)?;
            let alone = parts.iter().map(|part| part.on_one_device(&x, &dy));
            let alone = alone.collect::<Result<_>>()?;
            Ok::<_, candle_core::Error>(Self { sizes, x, dy, whole, parts, one_device, alone })
        };
        computed().expect("one device computes")
    }

    fn run<R: Send + 'static>(
        &self,
        law: &str,
        work: impl Fn(&Self, &Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        let case = self.clone();
        ranks::run(self.parts.len(), Sends::Buffered, move |rank| work(&case, rank))
            .map_err(ranks::all_take_part(law, false))
    }

    fn forward(&self, answer: Answer, rank: &Rank) -> Result<(Tensor, Tensor), Error> {
        (answer.forward)(rank, &self.parts[rank.rank()], &self.x)
    }

    /// The backward pass from the right Z.
    fn backward(&self, answer: Answer, rank: &Rank) -> Result<Gradients, Error> {
        let own = rank.rank();
        (answer.backward)(rank, &self.parts[own], &self.x, &self.alone[own].z, &self.dy)
    }
}

/// Compares two tensors. The message names a wrong tensor that is `known`.
fn compare(what: &str, law: &str, [right, got]: [&Tensor; 2], known: Vec<Known>) -> Outcome {
    let row = right.dims().last().copied().unwrap_or(1).max(1);
    let expectation = Expectation::of(what).law(law).up_to(1e-12).known(known);
    let place = |index| match right.rank() {
        2 => format!("row {}, column {}", index / row, index % row),
        _ => format!("element {index}"),
    };
    expectation.at(place).compare_tensors(right, got)
}

fn a_part_is_cut(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(TOGETHER, move |case, rank| {
        (answer.part)(&case.whole, rank.rank(), rank.world_size())
    })?;
    for (rank, (right, found)) in case.parts.iter().zip(&found).enumerate() {
        let columns = shard_range(case.sizes[3], case.sizes[0], rank);
        for (name, tensors) in right.beside(found) {
            let law = match name {
                "A" if tensors[0].dims().first() == tensors[1].dims().first() => IN_RUNS,
                "b" => WHOLE,
                _ => TOGETHER,
            };
            let what = format!("{name} on rank {rank} (columns {columns:?} of Z)");
            compare(&what, law, tensors, vec![])?;
        }
    }
    Ok(())
}

fn forward_is_that_of_one_device(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(REDUCED, move |case, rank| case.forward(answer, rank))?;
    let (bias, y, k) = (&case.whole.second.bias, &case.one_device.y, case.parts.len() as f64);
    let mut without_gelu = bias.broadcast_as(y.shape())?.contiguous()?;
    for (alone, part) in case.alone.iter().zip(&case.parts) {
        without_gelu = (without_gelu + alone.z.matmul(&part.second.weight)?)?;
    }
    for (rank, (z, got)) in found.iter().enumerate() {
        let Computed { z: right, y: alone, .. } = &case.alone[rank];
        let a = &case.parts[rank].first.bias;
        let known = vec![
            ("gelu(Z)", gelu(right)),
            (
                "X·A + a/k: a is not added up over the ranks",
                right.broadcast_sub(&(a * (1.0 - 1.0 / k))?),
            ),
        ];
        compare(&format!("Z on rank {rank}"), COLUMNS, [right, z], known)?;
        let known = vec![
            ("GELU behind the sum, of terms without GELU", gelu(&without_gelu)),
            ("the sum with the bias k times", y.broadcast_add(&(bias * (k - 1.0))?)),
            ("the term of this rank alone, with the bias", Ok(alone.clone())),
            ("the sum without the bias", y.broadcast_sub(bias)),
        ];
        compare(&format!("Y on rank {rank}"), REDUCED, [y, got], known)?;
    }
    Ok(())
}

fn backward_is_that_of_one_device(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(OWN[2], move |case, rank| case.backward(answer, rank))?;
    let (right, tokens) = (&case.one_device.gradients, case.sizes[1] as f64);
    let parts = right.layers.parts(case.parts.len())?;
    let shape = |law, tensors: [&Tensor; 2]| match tensors[0].dims() == tensors[1].dims() {
        true => law,
        false => SHAPE,
    };
    for (rank, found) in found.iter().enumerate() {
        let z = &case.alone[rank].z;
        let of_hidden = case.dy.matmul(&case.parts[rank].second.weight.t()?)?;
        let elsewhere = (&of_hidden * gelu_slope(&gelu(z)?)?)?;
        // The backward pass computes the second layer first.
        let pairs = parts[rank].beside(&found.layers).into_iter().enumerate().rev();
        for (index, (name, tensors)) in pairs {
            let every = parts.iter().map(|part| part.beside(part)[index].1[0]);
            let every = Tensor::stack(&every.collect::<Vec<_>>(), 0);
            let of_first = |dz: &Tensor| match index {
                0 => case.x.t()?.matmul(dz),
                _ => dz.sum(0),
            };
            let known = vec![
                (OVER_N, tensors[0] / tokens),
                (
                    "the sum over all ranks, though each holds another part",
                    every.and_then(|every| every.sum(0)),
                ),
                ("what it would be without GELU", of_first(&of_hidden)),
                ("the slope at gelu(Z), in place of Z", of_first(&elsewhere)),
                ("the product with Z, in place of gelu(Z)", z.t()?.matmul(&case.dy)),
            ];
            let what = format!("the gradient of {name} on rank {rank}");
            compare(&what, shape(OWN[index], tensors), tensors, known)?;
        }
        let known = vec![
            ("the term of this rank alone", Ok(case.alone[rank].gradients.x.clone())),
            (OVER_N, &right.x / tokens),
        ];
        let (what, tensors) = (format!("the gradient of X on rank {rank}"), [&right.x, &found.x]);
        compare(&what, shape(ALL_USES, tensors), tensors, known)?;
    }
    Ok(())
}

fn all_ranks_have_the_same(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(ORDER, move |case, rank| {
        Ok([case.forward(answer, rank)?.1, case.backward(answer, rank)?.x])
    })?;
    for (rank, tensors) in found.iter().enumerate().skip(1) {
        for (index, name) in ["Y", "the gradient of X"].into_iter().enumerate() {
            Expectation::of(format!("{name} on two ranks"))
                .between("rank 0", &format!("rank {rank}"))
                .law(ORDER)
                .compare_tensors(&found[0][index], &tensors[index])?;
        }
    }
    Ok(())
}

/// On two ranks every all-reduce algorithm sends the same: all numbers once in each direction.
fn no_more_is_sent_than_one_all_reduce(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(OWN[2], move |case, rank| {
        case.forward(answer, rank)?;
        let forward = rank.traffic().bytes;
        case.backward(answer, rank)?;
        Ok([forward, rank.traffic().bytes - forward])
    })?;
    let passes = [("forward", "Y", &case.dy), ("backward", "X", &case.x)];
    passes.into_iter().enumerate().try_for_each(|(index, (pass, name, like))| {
        let sent: u64 = found.iter().map(|bytes| bytes[index]).sum();
        let most = 2 * ops::size_in_bytes(like) as u64;
        let what = format!("{pass}, more is sent than an all-reduce like {name}");
        let sides = (format!("{most} bytes on 2 ranks"), format!("{sent} bytes"));
        expect(sent <= most, what, sides, ONE_SUM)
    })
}
