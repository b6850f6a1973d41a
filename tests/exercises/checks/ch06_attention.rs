//! Chapter 6b, `book/src/ch06b-tensor-parallel.md`: causal attention on k ranks, each with some of the heads.
//!
//! The check begins with the attention of one rank's heads, and with their part of the layer. Then it compares forward and
//! backward, with right parts, with one device. The messages come last.

use std::cell::Cell;

use ops::{causal_attention, softmax};
use params_and_allreduce::communicator::SharedCommunicator;

use crate::attention::Attention;
use crate::prelude::*;
use crate::two_layers::whole_numbers;

/// The functions `part`, `attend` and `forward`.
#[derive(Clone, Copy)]
pub struct Answer {
    pub part: fn(&Attention, usize, usize, usize) -> Result<Attention>,
    pub attend: fn(&Tensor, &Tensor, &Tensor, usize) -> Result<Tensor>,
    pub forward: fn(&SharedCommunicator, &Attention, usize, &Tensor) -> Result<Tensor>,
}

pub const LAWS: &[Law<Answer>] = laws![
    later_tokens_change_nothing_before in [Case::new([1, 2, 4, 2, 3])],
    attention_is_that_of_one_device in CASES.map(Case::new),
    a_part_has_whole_heads in CASES.map(Case::new),
    forward_is_that_of_one_device in CASES.map(Case::new),
    backward_is_that_of_one_device in CASES.map(Case::new),
    all_ranks_have_the_same in [Case::new([3, 2, 4, 3, 2])],
    no_more_is_sent_than_one_all_reduce in [Case::new([2, 2, 3, 4, 2])],
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| Case::new([3, 1, 2, 3, 2]).forward(answer, rank),
];

const MASK: &str = "a token sees itself and the tokens before: a later token changes nothing";
const HEADS: &str = "in each head, token t has the sum of the values of tokens up to t, weighted by softmax(q·k / √size)";
const WHOLE_HEADS: &str = "a head is on one rank: columns of queries, keys and values, and rows of out; the heads of a rank are a run, as shard_range has it";
const OUT_BIAS: &str = "the bias of out is for all heads together: every rank has all of it";
const REDUCED: &str =
    "each rank has a term of the result: add up the terms, then add the bias once";
const OWN: &str = "the result is the same on all ranks, and so is its gradient: k copies of one loss; a part's gradient is complete on its rank";
const ALL_USES: &str = "x is used on all ranks: its gradient is the sum over all ranks";
const ORDER: &str = "all ranks add in the same order, or one adds for all: else their results differ in the last bits";
const ONE_SUM: &str = "queries, keys and values are one layer by columns, and out is one by rows: one sum forward, one backward";

/// The names of the tensors, in order.
const NAMES: [&str; 7] =
    ["query.weight", "query.bias", "key", "value.weight", "value.bias", "out.weight", "out.bias"];

/// Ranks, batch, tokens, heads and a head's size: heads that divide evenly, and no two sizes alike; one rank; heads that do not
/// divide; a head for each rank; one of everything.
const CASES: [[usize; 5]; 5] =
    [[2, 3, 5, 4, 2], [1, 2, 3, 2, 3], [2, 1, 4, 3, 2], [4, 2, 3, 4, 1], [1, 1, 1, 1, 1]];

#[derive(Clone)]
struct Case {
    sizes: [usize; 5],
    x: Tensor,
    dy: Tensor,
    whole: Attention,
    parts: Vec<Attention>,
}

shown!(Case { sizes: [ranks, batch, tokens, heads, size], .. } =>
    "{}, B = {batch}, T = {tokens}, {} of size {size}", counted(*ranks, "rank"), counted(*heads, "head"));

/// A result, the gradient of x, and the gradients of a layer or of a part.
type Passes = (Tensor, Tensor, Attention);

impl Case {
    fn new(sizes: [usize; 5]) -> Self {
        let computed = || {
            let [ranks, batch, tokens, heads, size] = sizes;
            let shape = [batch, tokens, heads * size];
            let [x, dy] = [9, 10].map(|salt| whole_numbers(&shape, salt)? / 4.0);
            let whole = Attention::of_small_numbers(heads * size)?;
            let parts = whole.parts(heads, ranks)?;
            Ok::<_, candle_core::Error>(Self { sizes, x: x?, dy: dy?, whole, parts })
        };
        computed().expect("one device computes")
    }

    fn heads(&self) -> usize {
        self.sizes[3]
    }

    fn heads_of(&self, rank: usize) -> usize {
        shard_range(self.heads(), self.sizes[0], rank).len()
    }

    /// Queries, keys and values.
    fn of_tokens(&self) -> Result<[Tensor; 3]> {
        let [q, _, key, v, ..] = self.whole.tensors();
        let [q, key, v] = [q, key, v].map(|weight| self.x.broadcast_matmul(weight));
        Ok([q?, key?, v?])
    }

    /// Both passes of one device, or of one rank that sends nothing.
    fn alone(&self, part: &Attention, heads: usize) -> Result<Passes> {
        part.passes([&self.x, &self.dy], |part, x| part.on_one_device(x, heads), || ())
    }

    fn forward(&self, answer: Answer, rank: &Rank) -> Result<Tensor, Error> {
        let own = rank.rank();
        Ok((answer.forward)(&rank.into(), &self.parts[own], self.heads_of(own), &self.x)?)
    }

    /// Both passes of the answer on a rank, and the bytes that the rank has sent in each.
    fn passes(&self, answer: Answer, rank: &Rank) -> Result<(Passes, [u64; 2]), Error> {
        let (own, group, forward) = (rank.rank(), rank.into(), Cell::new(0));
        let passes = self.parts[own].passes(
            [&self.x, &self.dy],
            |part, x| (answer.forward)(&group, part, self.heads_of(own), x),
            || forward.set(rank.traffic().bytes),
        )?;
        Ok((passes, [forward.get(), rank.traffic().bytes - forward.get()]))
    }

    fn run(&self, law: &str, answer: Answer) -> Outcome<Vec<(Passes, [u64; 2])>> {
        let case = self.clone();
        ranks::run(self.parts.len(), Sends::Buffered, move |rank| case.passes(answer, rank))
            .map_err(ranks::all_take_part(law, false))
    }

    /// Attention with another scale, or whose weights become 0 after softmax.
    fn variant(&self, scale: f64, mask_first: bool) -> Result<Tensor> {
        let [_, batch, tokens, heads, size] = self.sizes;
        let by_head =
            |x: Tensor| x.reshape((batch, tokens, heads, size))?.transpose(1, 2)?.contiguous();
        let [q, k, v] = self.of_tokens()?.map(by_head);
        let scores = (q?.matmul(&k?.t()?)? * scale)?;
        let seen = Tensor::tril2(tokens, DType::F64, &Device::Cpu)?;
        let weights = match mask_first {
            true => softmax(&scores.broadcast_add(&seen.log()?)?)?,
            false => softmax(&scores)?.broadcast_mul(&seen)?,
        };
        weights.matmul(&v?)?.transpose(1, 2)?.reshape((batch, tokens, heads * size))
    }
}

fn later_tokens_change_nothing_before(answer: Answer, case: &Case) -> Outcome {
    let [_, batch, tokens, heads, size] = case.sizes;
    let [q, k, v] = &case.of_tokens()?;
    let changed = |x: &Tensor| {
        let (before, last) = (x.narrow(1, 0, tokens - 1)?, (x.narrow(1, tokens - 1, 1)? + 1.0)?);
        Tensor::cat(&[before, last], 1)
    };
    let one = (answer.attend)(q, k, v, heads)?;
    let other = (answer.attend)(q, &changed(k)?, &changed(v)?, heads)?;
    let shape = [batch, tokens, heads * size];
    let what = "the result of attention";
    for it in [&one, &other] {
        let sides = [&shape[..], it.dims()].map(|dims| format!("{dims:?}"));
        same(what, &sides[0], &sides[1], "a result for each token and each column")?;
    }
    for token in 0..tokens - 1 {
        let [one, other] = [&one, &other].map(|it| it.narrow(1, token, 1));
        Expectation::of(format!("the results of token {token}"))
            .between("first", &format!("after a change of token {}", tokens - 1))
            .law(MASK)
            .compare_tensors(&one?, &other?)?;
    }
    Ok(())
}

fn attention_is_that_of_one_device(answer: Answer, case: &Case) -> Outcome {
    let [_, batch, tokens, heads, size] = case.sizes;
    let [q, k, v] = &case.of_tokens()?;
    let right = causal_attention(q, k, v, heads)?;
    let runs = |x: &Tensor| x.reshape((batch * heads, tokens, size));
    let of_runs = causal_attention(&runs(q)?, &runs(k)?, &runs(v)?, 1)?;
    let scale = |size: usize| 1.0 / (size as f64).sqrt();
    let known = vec![
        ("attention without the scale", case.variant(1.0, true)),
        ("attention with √(all features) as the scale", case.variant(scale(heads * size), true)),
        ("attention with one head of all columns", causal_attention(q, k, v, 1)),
        (
            "weights that do not add up to 1: the mask comes after softmax",
            case.variant(scale(size), false),
        ),
        ("heads of some tokens, in place of some columns", of_runs.reshape(right.shape())),
    ];
    let place = |index: usize| {
        let features = heads * size;
        format!("sample {}, token {}", index / features / tokens, index / features % tokens)
    };
    Expectation::of("the result of attention")
        .law(HEADS)
        .up_to(1e-12)
        .known(known)
        .at(place)
        .compare_tensors(&right, &(answer.attend)(q, k, v, heads)?)
}

fn a_part_has_whole_heads(answer: Answer, case: &Case) -> Outcome {
    for (rank, right) in case.parts.iter().enumerate() {
        let found = (answer.part)(&case.whole, case.heads(), rank, case.parts.len())?;
        let heads = shard_range(case.heads(), case.parts.len(), rank);
        for (at, (right, found)) in right.tensors().into_iter().zip(found.tensors()).enumerate() {
            Expectation::of(format!("{} on rank {rank} (heads {heads:?})", NAMES[at]))
                .law(if at == 6 { OUT_BIAS } else { WHOLE_HEADS })
                .compare_tensors(right, found)?;
        }
    }
    Ok(())
}

fn forward_is_that_of_one_device(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(REDUCED, answer)?;
    let (right, bias) = (case.whole.on_one_device(&case.x, case.heads())?, &case.whole.out.bias);
    let more = (bias * (case.parts.len() as f64 - 1.0))?;
    for (rank, ((y, ..), _)) in found.iter().enumerate() {
        let alone = case.parts[rank].on_one_device(&case.x, case.heads_of(rank));
        let known = vec![
            ("the sum with the bias k times", right.broadcast_add(&more)),
            ("the term of this rank alone, with the bias", alone),
            ("the sum without the bias", right.broadcast_sub(bias)),
        ];
        Expectation::of(format!("the result on rank {rank}"))
            .law(REDUCED)
            .up_to(1e-12)
            .known(known)
            .compare_tensors(&right, y)?;
    }
    Ok(())
}

fn backward_is_that_of_one_device(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(OWN, answer)?;
    let (_, dx, gradients) = case.alone(&case.whole, case.heads())?;
    let parts = gradients.parts(case.heads(), case.parts.len())?;
    for (rank, ((_, found_dx, found), _)) in found.iter().enumerate() {
        let both = parts[rank].tensors().into_iter().zip(found.tensors());
        // The backward pass computes the last tensor first.
        for (at, (right, found)) in both.enumerate().rev() {
            let what = format!("the gradient of {} on rank {rank}", NAMES[at]);
            Expectation::of(what).law(OWN).up_to(1e-11).compare_tensors(right, found)?;
        }
        let alone = case.alone(&case.parts[rank], case.heads_of(rank))?.1;
        Expectation::of(format!("the gradient of x on rank {rank}"))
            .law(ALL_USES)
            .up_to(1e-11)
            .known(vec![("the term of this rank alone", Ok(alone))])
            .compare_tensors(&dx, found_dx)?;
    }
    Ok(())
}

fn all_ranks_have_the_same(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(ORDER, answer)?;
    let [(first, first_dx, _), others @ ..] = &found.iter().map(|it| &it.0).collect::<Vec<_>>()[..]
    else {
        return Ok(());
    };
    for (rank, (y, dx, _)) in (1..).zip(others) {
        for (name, one, other) in [("the result", first, y), ("the gradient of x", first_dx, dx)] {
            Expectation::of(format!("{name} on two ranks"))
                .between("rank 0", &format!("rank {rank}"))
                .law(ORDER)
                .compare_tensors(one, other)?;
        }
    }
    Ok(())
}

/// On two ranks every all-reduce algorithm sends the same: all numbers once in each direction.
fn no_more_is_sent_than_one_all_reduce(answer: Answer, case: &Case) -> Outcome {
    let found = case.run(ONE_SUM, answer)?;
    let most = 2 * ops::size_in_bytes(&case.x) as u64;
    ["forward", "backward"].into_iter().enumerate().try_for_each(|(at, pass)| {
        let sent: u64 = found.iter().map(|(_, bytes)| bytes[at]).sum();
        let what = format!("{pass}, more is sent than an all-reduce like x");
        let sides = (format!("{most} bytes on 2 ranks"), format!("{sent} bytes"));
        expect(sent <= most, what, sides, ONE_SUM)
    })
}
