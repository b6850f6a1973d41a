//! Chapter 4, `book/src/ch04-data-parallel.md`: all gradients in one all-reduce.
//!
//! The sums have numbers that show their origin. Shapes and messages are compared, too.

use crate::panicking;
use crate::prelude::*;

/// A rank, its tensors and the algorithm; the sums over all ranks.
pub type Answer = fn(&Rank, &[Tensor], Algorithm) -> Result<Vec<Tensor>, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![one_all_reduce_gives_every_sum, errors_are_passed_on];

/// One more than the most elements that a rank brings.
const BASE: usize = 100;

/// A list of tensors on every rank.
///
/// Elements are numbered from 1 through all tensors, and rank r brings its number times 100 to the power
/// r. Two digits of a sum show for each rank which of its elements went in: on two ranks the first
/// element's sum is 101, and 301 is element 1 of rank 0 and element 3 of rank 1.
#[derive(Clone)]
struct Case {
    ranks: usize,
    algorithm: Algorithm,
    dtype: DType,
    shapes: Vec<Vec<usize>>,
}

struct Found {
    sums: Vec<Tensor>,
    sent: Traffic,
}

impl Case {
    fn brought(&self, rank: usize) -> Result<Vec<Tensor>> {
        let mut first = 1;
        let tensor = |shape: &Vec<usize>| {
            let elements: usize = shape.iter().product();
            let numbers = first..first + elements;
            first += elements;
            let scale = BASE.pow(rank as u32);
            let numbers: Vec<f64> = numbers.map(|number| (number * scale) as f64).collect();
            let tensor = Tensor::from_vec(numbers, shape.as_slice(), &Device::Cpu)?;
            // A matrix is a transposed view of its transpose: the same matrix, stored in another order.
            match shape.len() {
                2 => tensor.t()?.contiguous()?.t()?.to_dtype(self.dtype),
                _ => tensor.to_dtype(self.dtype),
            }
        };
        self.shapes.iter().map(tensor).collect()
    }

    fn told(&self, what: &str) -> String {
        let Self { ranks, algorithm, dtype, shapes } = self;
        format!("{ranks} ranks, Algorithm::{algorithm:?}, tensors {shapes:?} {dtype:?}: {what}")
    }

    fn fail(&self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        fail(&self.told(what), expected, got, law)
    }

    fn check(&self, answer: Answer) -> Result<()> {
        let case = self.clone();
        let outcomes = panicking::attempt(self.ranks, Sends::Buffered, move |rank| {
            let tensors = case.brought(rank.rank())?;
            let sums = answer(rank, &tensors, case.algorithm)?;
            Ok(Found { sums, sent: rank.traffic() })
        });
        let outcomes = outcomes.unwrap_or_else(|failure| {
            let law = match self.shapes.is_empty() {
                true => "with no tensors, the ranks send nothing and the result is empty",
                false => "every rank gets a sum for each of its tensors",
            };
            let (what, expected) = (self.told("there are no sums"), self.shapes.len());
            let empty =
                self.shapes.is_empty() || self.shapes.iter().any(|shape| shape.contains(&0));
            panicking::fail_on_ranks(&what, &format!("{expected} sums"), &failure, law, empty)
        });
        for (rank, outcome) in outcomes.iter().enumerate() {
            self.kinds_are_kept(rank, &outcome.sums);
            self.sums_are_right(rank, &outcome.sums)?;
        }
        self.one_call(&outcomes.iter().map(|outcome| outcome.sent).collect::<Vec<_>>());
        Ok(())
    }

    fn kinds_are_kept(&self, rank: usize, sums: &[Tensor]) {
        let law = "the result has the shapes, the order and the type of the input";
        if sums.len() != self.shapes.len() {
            let [expected, got] = [self.shapes.len(), sums.len()].map(|n| format!("{n} sums"));
            self.fail(&format!("rank {rank} gets {got} back"), &expected, &got, law);
        }
        for (index, (sum, shape)) in sums.iter().zip(&self.shapes).enumerate() {
            let expected = format!("{:?} {shape:?}", self.dtype);
            let got = format!("{:?} {:?}", sum.dtype(), sum.dims());
            if got != expected {
                let what = format!("rank {rank} gets tensor {index} in another form");
                self.fail(&what, &expected, &got, law);
            }
        }
    }

    fn sums_are_right(&self, rank: usize, sums: &[Tensor]) -> Result<()> {
        let law = "a sum adds up the elements at the same place on all ranks, and no others";
        let mut number = 1;
        for (index, sum) in sums.iter().enumerate() {
            for (element, got) in numbers(sum)?.into_iter().enumerate() {
                let expected: usize =
                    (0..self.ranks).map(|rank| number * BASE.pow(rank as u32)).sum();
                let expected = expected as f64;
                if got != expected {
                    let what = format!(
                        "rank {rank} gets a wrong sum in tensor {index}, element {element}"
                    );
                    let got = self.guess(expected, got);
                    self.fail(&what, &self.made_of(expected), &got, law);
                }
                number += 1;
            }
        }
        Ok(())
    }

    fn guess(&self, expected: f64, got: f64) -> String {
        if got * self.ranks as f64 == expected {
            return format!("{got}: the mean");
        }
        if self.dtype == DType::F64 && got == f64::from(expected as f32) {
            return format!("{got}: the sum rounded to f32");
        }
        self.made_of(got)
    }

    fn made_of(&self, sum: f64) -> String {
        let elements = self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
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

    fn place(&self, number: usize) -> String {
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

    fn sent_by_one_call(&self, algorithm: Algorithm) -> Vec<Traffic> {
        let elements: usize = self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let dtype = self.dtype;
        panicking::must(ranks::run(self.ranks, Sends::Buffered, move |rank| {
            rank.all_reduce(&Tensor::zeros(elements, dtype, rank.device())?, algorithm)?;
            Ok(rank.traffic())
        }))
    }

    fn one_call(&self, sent: &[Traffic]) {
        let traffic = self.sent_by_one_call(self.algorithm);
        let [one_call, messages] = [&traffic, sent].map(numbers_of_messages);
        // An answer may send nothing if there is no element, and must send nothing if there is no tensor.
        let nothing_to_send = self.shapes.iter().all(|shape| shape.contains(&0));
        if nothing_to_send && messages.iter().all(|&sent| sent == 0) {
            return;
        }
        let expected = if self.shapes.is_empty() { &vec![0; self.ranks] } else { &one_call };
        let Some(rank) = (0..self.ranks).find(|&rank| messages[rank] != expected[rank]) else {
            return self.as_many_bytes(&traffic, sent);
        };
        let [wanted, sent] = [expected[rank], messages[rank]];
        let told = format!("messages sent: {wanted}");
        let calls = match one_call[rank] {
            one @ 1.. if sent > wanted && sent % one == 0 => Some(sent / one),
            _ => None,
        };
        let others = Algorithm::OURS.into_iter().filter(|&other| other != self.algorithm);
        let mut others =
            others.filter(|&other| numbers_of_messages(&self.sent_by_one_call(other)) == messages);
        let other = if self.shapes.is_empty() { None } else { others.next() };
        let decides = "the caller decides on the algorithm";
        let once = "all tensors travel together, and the fixed cost of a call is paid once";
        let got = format!("messages sent: {sent}");
        let (what, got, law) = match (calls, other) {
            (None, None) => (format!("rank {rank} sends another number of messages"), got, once),
            (None, Some(other)) => (
                format!("rank {rank} adds up in another way"),
                format!("{got}, as with Algorithm::{other:?}"),
                decides,
            ),
            (Some(calls), None) => (format!("rank {rank} makes {calls} all-reduces"), got, once),
            // The numbers of messages fit both.
            (Some(calls), Some(other)) => (
                format!("rank {rank} makes {calls} all-reduces, or one in another way"),
                format!("{got}, as with {calls} calls, or one of Algorithm::{other:?}"),
                if self.shapes.len() == 1 { decides } else { once },
            ),
        };
        self.fail(&what, &told, &got, law);
    }

    /// The number of messages is right; the sizes may be wrong.
    fn as_many_bytes(&self, one_call: &[Traffic], sent: &[Traffic]) {
        for (rank, (one_call, sent)) in one_call.iter().zip(sent).enumerate() {
            let [expected, got] = [one_call, sent].map(|sent| format!("{} bytes", sent.bytes));
            if expected != got {
                let law = "the ranks send the elements of the tensors, in their own type";
                self.fail(&format!("rank {rank} sends {got}"), &expected, &got, law);
            }
        }
    }
}

fn numbers_of_messages(sent: &[Traffic]) -> Vec<u64> {
    sent.iter().map(|sent| sent.messages).collect()
}

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

fn one_all_reduce_gives_every_sum(answer: Answer) -> Result<()> {
    for list in LISTS {
        let shapes: Vec<Vec<usize>> = list.iter().map(|shape| shape.to_vec()).collect();
        // f32 holds all digits of a sum of three ranks. A sum of four ranks needs f64.
        for (ranks, dtype) in [(2, DType::F32), (1, DType::F32), (3, DType::F32), (4, DType::F64)] {
            for algorithm in Algorithm::OURS {
                Case { ranks, algorithm, dtype, shapes: shapes.clone() }.check(answer)?;
            }
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let (algorithm, shapes) = (Algorithm::Ring, vec![vec![2, 3], vec![3]]);
    let case = Case { ranks: 3, algorithm, dtype: DType::F32, shapes };
    let brought = case.clone();
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        answer(rank, &brought.brought(rank.rank())?, algorithm)
    })
}
