//! Chapter 4, `book/src/ch04-data-parallel.md`: all gradients in one all-reduce.
//!
//! The sums have numbers that show their origin. Shapes and messages are compared, too.

use std::fmt;

use candle_core::Shape;

use crate::prelude::*;
use crate::shards;

/// A rank, its tensors and the algorithm; the sums over all ranks.
pub type Answer = fn(&Rank, &[Tensor], Algorithm) -> Result<Vec<Tensor>, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_tensor_has_its_sum: sums in cases(),
    one_all_reduce in cases(),
    errors_are_passed_on
];

const KIND: &str = "the result has the shapes, the order and the type of the input";
const SUM: &str = "a sum adds up the elements at the same place on all ranks, and no others";
const NONE: &str = "with no tensors, the ranks send nothing and the result is empty";
const EACH: &str = "every rank gets a sum for each of its tensors";
const ONCE: &str = "all tensors travel together, and the fixed cost of a call is paid once";
const CALLER: &str = "the caller decides on the algorithm";
const TYPE: &str = "the ranks send the elements of the tensors, in their own type";

/// Lists of tensors: two layers; all numbers of dimensions; one alone; some, or all, without elements;
/// and none at all.
const LISTS: [&[&[usize]]; 8] = [
    &[&[2, 3], &[3], &[3, 4], &[4]],
    &[&[3, 1, 2, 2], &[], &[1], &[2, 5]],
    &[&[3, 2]],
    &[&[]],
    &[&[2], &[0, 4], &[3]],
    &[&[0], &[2, 2], &[0]],
    &[&[0, 3]],
    &[],
];

/// One more than the most elements that a rank brings.
const BASE: usize = 100;

/// A list of tensors on every rank.
///
/// Elements are numbered from 1 through all tensors, and rank r brings its number times 100 to the power
/// r. Two digits of a sum show for each rank which of its elements went in: on two ranks the first
/// element's sum is 101, and 301 is element 1 of rank 0 and element 3 of rank 1.
#[derive(Clone, Copy)]
struct Case {
    ranks: usize,
    algorithm: Algorithm,
    dtype: DType,
    shapes: &'static [&'static [usize]],
}

fn cases() -> Vec<Case> {
    // f32 holds all digits of a sum of three ranks. A sum of four ranks needs f64.
    let worlds = [(2, DType::F32), (1, DType::F32), (3, DType::F32), (4, DType::F64)];
    let mut cases = Vec::new();
    for shapes in LISTS {
        for (ranks, dtype) in worlds {
            let case = |algorithm| Case { ranks, algorithm, dtype, shapes };
            cases.extend(Algorithm::OURS.map(case));
        }
    }
    cases
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, algorithm, dtype, shapes } = self;
        write!(f, "{ranks} ranks, Algorithm::{algorithm:?}, tensors {shapes:?} {dtype:?}")
    }
}

impl Case {
    fn brought(self, rank: usize) -> Result<Vec<Tensor>> {
        let mut first = 1;
        let tensor = |shape: &&[usize]| {
            let elements: usize = shape.iter().product();
            let numbers = first..first + elements;
            first += elements;
            let scale = BASE.pow(rank as u32);
            let numbers: Vec<f64> = numbers.map(|number| (number * scale) as f64).collect();
            let tensor = Tensor::from_vec(numbers, *shape, &Device::Cpu)?;
            // A matrix is a transposed view of its transpose: the same matrix, stored in another order.
            match shape.len() {
                2 => tensor.t()?.contiguous()?.t()?.to_dtype(self.dtype),
                _ => tensor.to_dtype(self.dtype),
            }
        };
        self.shapes.iter().map(tensor).collect()
    }

    /// The sums and the messages of each rank.
    fn found(self, answer: Answer) -> Outcome<Vec<(Vec<Tensor>, Traffic)>> {
        let found = ranks::run(self.ranks, Sends::Buffered, move |rank| {
            let sums = answer(rank, &self.brought(rank.rank())?, self.algorithm)?;
            Ok((sums, rank.traffic()))
        });
        let empty = self.shapes.iter().any(|shape| shape.contains(&0));
        let law = if self.shapes.is_empty() { NONE } else { EACH };
        found.map_err(ranks::all_take_part(law, empty || self.shapes.is_empty()))
    }

    /// The elements that a sum is made of, one of each rank.
    fn made_of(self, sum: f64) -> String {
        let elements: usize = self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let whole = sum as usize;
        let parts: Vec<usize> =
            (0..self.ranks).map(|rank| whole / BASE.pow(rank as u32) % BASE).collect();
        let readable = sum == whole as f64 && whole < BASE.pow(self.ranks as u32);
        if !readable || parts.iter().any(|part| !(1..=elements).contains(part)) {
            return format!("{sum}: no sum of one element of each rank");
        }
        if parts.iter().all(|&part| part == parts[0]) {
            return format!("{sum}: {} of every rank", self.place(parts[0]));
        }
        let name = |(rank, &part): (usize, &usize)| format!("{} of rank {rank}", self.place(part));
        let names: Vec<String> = parts.iter().enumerate().map(name).collect();
        format!("{sum}: {}", names.join(" + "))
    }

    fn place(self, number: usize) -> String {
        let mut element = number - 1;
        for (index, shape) in self.shapes.iter().enumerate() {
            let elements: usize = shape.iter().product();
            if element < elements {
                return format!("tensor {index}[{element}]");
            }
            element -= elements;
        }
        format!("element {number}")
    }

    /// The right sums of all elements, in order.
    fn right(self) -> impl Fn(usize) -> f64 {
        move |number| (0..self.ranks).map(|rank| (number * BASE.pow(rank as u32)) as f64).sum()
    }

    /// What explains all sums of a rank, if they are wrong.
    fn guess(self, got: &[f64]) -> Option<String> {
        let right = self.right();
        let all = |wrong: &dyn Fn(f64) -> f64| {
            (1..).zip(got).all(|(number, got)| *got == wrong(right(number)))
        };
        let mean = all(&|sum| sum / self.ranks as f64);
        let in_f32 = self.dtype == DType::F64 && all(&|sum| f64::from(sum as f32));
        match (mean, in_f32) {
            (true, _) => Some("that fits the mean".to_owned()),
            (_, true) => Some("that fits sums in f32".to_owned()),
            _ => None,
        }
    }
}

fn sums(answer: Answer, &case: &Case) -> Outcome {
    for (rank, (sums, _)) in case.found(answer)?.iter().enumerate() {
        let count = sums.len();
        same(format!("rank {rank} gets {count} sums back"), case.shapes.len(), count, KIND)?;
        for (index, (sum, shape)) in sums.iter().zip(case.shapes).enumerate() {
            let expected = format!("{:?} {shape:?}", case.dtype);
            let got = format!("{:?} {:?}", sum.dtype(), sum.dims());
            same(format!("rank {rank} gets tensor {index} in another form"), expected, got, KIND)?;
        }
        let got = sums.iter().map(numbers).collect::<Result<Vec<_>>>()?.concat();
        let right = case.right();
        for (number, &got_here) in (1..).zip(&got) {
            demand(got_here == right(number), || {
                Finding::new(format!("rank {rank} gets a wrong sum at {}", case.place(number)))
                    .expected(case.made_of(right(number)), case.made_of(got_here))
                    .note(case.guess(&got))
                    .law(SUM)
            })?;
        }
    }
    Ok(())
}

/// The messages are those of one all-reduce of all elements in a row.
fn one_all_reduce(answer: Answer, &case: &Case) -> Outcome {
    let sent: Vec<Traffic> = case.found(answer)?.into_iter().map(|(_, sent)| sent).collect();
    let numbers = |sent: &[Traffic]| sent.iter().map(|it| it.messages).collect::<Vec<_>>();
    let elements: usize = case.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
    let row = [Shape::from(elements)];
    let by = |algorithm| shards::traffic(case.ranks, &row, case.dtype, algorithm);
    let one_call = by(case.algorithm)?;
    let messages = numbers(&sent);
    // An answer may send nothing if there is no element, and must send nothing if there is no tensor.
    if elements == 0 && messages.iter().all(|&sent| sent == 0) {
        return Ok(());
    }
    let expected = match case.shapes.is_empty() {
        true => vec![0; case.ranks],
        false => numbers(&one_call),
    };
    let Some(rank) = (0..case.ranks).find(|&rank| messages[rank] != expected[rank]) else {
        return sent.iter().zip(&one_call).enumerate().try_for_each(|(rank, (sent, one))| {
            let [expected, got] = [one, sent].map(|it| format!("{} bytes", it.bytes));
            same(format!("rank {rank} sends {got}"), expected, got, TYPE)
        });
    };
    let [wanted, got] = [expected[rank], messages[rank]];
    let calls = match one_call[rank].messages {
        one @ 1.. if got > wanted && got % one == 0 => Some(got / one),
        _ => None,
    };
    let mut other = None;
    for algorithm in Algorithm::OURS {
        let is_other = algorithm != case.algorithm && !case.shapes.is_empty();
        if other.is_none() && is_other && numbers(&by(algorithm)?) == messages {
            other = Some(algorithm);
        }
    }
    // The numbers of messages can fit both.
    let (what, like, law) = match (calls, other) {
        (None, None) => ("sends another number of messages".to_owned(), String::new(), ONCE),
        (None, Some(other)) => {
            ("adds up in another way".to_owned(), format!(", as with Algorithm::{other:?}"), CALLER)
        }
        (Some(calls), None) => (format!("makes {calls} all-reduces"), String::new(), ONCE),
        (Some(calls), Some(other)) => (
            format!("makes {calls} all-reduces, or one in another way"),
            format!(", as with {calls} calls, or one of Algorithm::{other:?}"),
            if case.shapes.len() == 1 { CALLER } else { ONCE },
        ),
    };
    Err(Finding::new(format!("rank {rank} {what}"))
        .expected(format!("messages sent: {wanted}"), format!("messages sent: {got}{like}"))
        .law(law))
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let (algorithm, dtype) = (Algorithm::Ring, DType::F32);
    let case = Case { ranks: 3, algorithm, dtype, shapes: &[&[2, 3], &[3]] };
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        answer(rank, &case.brought(rank.rank())?, algorithm)
    })
}
