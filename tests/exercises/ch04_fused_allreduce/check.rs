#[path = "exercise.rs"]
mod exercise;

// Sums, shapes and messages of a fused all-reduce, with numbers that tell where they come from.

use candle_core::{DType, Device, Result, Tensor};
use exercises::expectation::numbers;
use exercises::mismatch::fail;
use exercises::ranks::{self, Sends};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;

/// One more than the most elements that a rank brings.
const BASE: usize = 100;

/// A list of tensors on every rank.
///
/// Elements are numbered from 1 through all tensors, and rank r brings its number times 100 to the power
/// r. So two digits of a sum tell for each rank which of its elements went in: on two ranks the first
/// element's sum is 101, and 301 is element 1 of rank 0 and element 3 of rank 1.
#[derive(Clone)]
struct Case {
    ranks: usize,
    dtype: DType,
    shapes: Vec<Vec<usize>>,
}

/// What a rank got, and how many messages it sent for that.
struct Outcome {
    sums: Vec<Tensor>,
    messages: u64,
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
            // Matrices come as transposed views of themselves transposed: the same, stored otherwise.
            match shape.len() {
                2 => tensor.t()?.contiguous()?.t()?.to_dtype(self.dtype),
                _ => tensor.to_dtype(self.dtype),
            }
        };
        self.shapes.iter().map(tensor).collect()
    }

    fn fail(&self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        let Self { ranks, dtype, shapes } = self;
        fail(&format!("{ranks} ranks, tensors {shapes:?} {dtype:?}: {what}"), expected, got, law)
    }

    fn check(&self) -> Result<()> {
        let case = self.clone();
        let outcomes = ranks::run(self.ranks, Sends::Buffered, move |rank| {
            let tensors = case.brought(rank.rank())?;
            let sums = exercise::allreduce_fused(rank, &tensors, Algorithm::OneShot)?;
            Ok(Outcome { sums, messages: rank.traffic().messages })
        });
        for (rank, outcome) in outcomes.iter().enumerate() {
            self.kinds_are_kept(rank, &outcome.sums);
            self.sums_are_right(rank, &outcome.sums)?;
            self.one_call(rank, outcome.messages);
        }
        Ok(())
    }

    fn kinds_are_kept(&self, rank: usize, sums: &[Tensor]) {
        let law = "what comes back has the shapes, the order and the type of what went in";
        if sums.len() != self.shapes.len() {
            let [expected, got] = [self.shapes.len(), sums.len()].map(|n| format!("{n} tensors"));
            self.fail(&format!("rank {rank} gets too few or too many"), &expected, &got, law);
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
        let law = "a sum adds up what stands in the same place on every rank";
        let mut number = 1;
        for (index, sum) in sums.iter().enumerate() {
            for (element, got) in numbers(sum)?.into_iter().enumerate() {
                let expected: usize =
                    (0..self.ranks).map(|rank| number * BASE.pow(rank as u32)).sum();
                if got != expected as f64 {
                    let what = format!(
                        "rank {rank} gets a wrong sum in tensor {index}, element {element}"
                    );
                    let got = self.explained(got);
                    self.fail(&what, &self.explained(expected as f64), &got, law);
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// A sum, and what it is made of.
    fn explained(&self, sum: f64) -> String {
        let elements = self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let whole = sum as usize;
        let parts: Vec<String> = (0..self.ranks)
            .map(|rank| (rank, whole / BASE.pow(rank as u32) % BASE))
            .filter(|&(_, number)| (1..=elements).contains(&number))
            .map(|(rank, number)| format!("{} of rank {rank}", self.place(number)))
            .collect();
        let readable = sum == whole as f64 && whole < BASE.pow(self.ranks as u32);
        if readable && parts.len() == self.ranks {
            format!("{sum}: {}", parts.join(" + "))
        } else {
            format!("{sum}, which is no sum of one element of each rank")
        }
    }

    /// Where the element with this number stands.
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

    /// The one-shot algorithm sends one message to every other rank.
    fn one_call(&self, rank: usize, messages: u64) {
        let others = self.ranks as u64 - 1;
        let expected = if self.shapes.is_empty() { 0 } else { others };
        if messages != expected {
            let calls = |messages: u64| match (messages, others) {
                (_, 0) => format!("{messages} messages"),
                (_, 1) => format!("{messages} to the other rank"),
                _ => format!("{messages} to the {others} other ranks"),
            };
            let what = match others {
                0 => "messages to nobody".to_owned(),
                _ => format!("rank {rank} made {} all-reduces", messages / others),
            };
            let law = "all tensors travel in one message: its fixed cost is paid once";
            self.fail(&what, &calls(expected), &calls(messages), law);
        }
    }
}

fn check(shapes: &[&[usize]]) -> Result<()> {
    let shapes: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
    // In f32 a sum of three ranks still has all its digits; in f64 one of four needs more than f32 has.
    for (ranks, dtype) in [(2, DType::F32), (1, DType::F32), (3, DType::F32), (4, DType::F64)] {
        Case { ranks, dtype, shapes: shapes.clone() }.check()?;
    }
    Ok(())
}

#[test]
fn gradients_of_two_layers() -> Result<()> {
    check(&[&[2, 3], &[3], &[3, 4], &[4]])
}

#[test]
fn tensors_of_all_ranks_and_one_alone() -> Result<()> {
    check(&[&[3, 1, 2, 2], &[], &[1], &[2, 5]])?;
    check(&[&[3, 2]])?;
    check(&[&[]])
}

#[test]
fn tensors_without_elements() -> Result<()> {
    check(&[&[2], &[0, 4], &[3]])?;
    check(&[&[0], &[2, 2], &[0]])
}

#[test]
fn no_tensors_at_all() -> Result<()> {
    check(&[])
}
