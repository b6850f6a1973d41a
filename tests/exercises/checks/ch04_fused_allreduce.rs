//! Chapter 4, `book/src/ch04-data-parallel.md`: all gradients in one all-reduce.
//!
//! The sums have numbers that show their origin. Shapes and messages are compared, too.

use crate::prelude::*;
use crate::shards;

/// A rank, its tensors and the algorithm; the sums over all ranks.
pub type Answer = fn(&Rank, &[Tensor], Algorithm) -> Result<Vec<Tensor>, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    every_tensor_has_its_sum: sums in cases(),
    one_all_reduce in cases(),
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank| {
        let (algorithm, dtype) = (Algorithm::Ring, DType::F32);
        let case = Case { ranks: 3, algorithm, dtype, shapes: &[&[2, 3], &[3]] };
        answer(rank, &case.brought(rank.rank())?, algorithm)
    },
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
/// Elements are numbered from 1 through all tensors, and rank r brings its number times 100 to the power r. On two ranks the sum
/// of the first element is 101. No two sets of elements have the same sum.
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

shown!(Case { ranks, algorithm, dtype, shapes } =>
    "{ranks} ranks, Algorithm::{algorithm:?}, tensors {shapes:?} {dtype:?}");

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

    fn elements(self) -> usize {
        self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// The sum of the elements with this number.
    fn right(self, number: usize) -> f64 {
        (0..self.ranks).map(|rank| (number * BASE.pow(rank as u32)) as f64).sum()
    }

    /// The place of the elements that a sum is made of.
    fn made_of(self, sum: f64) -> String {
        match (1..=self.elements()).find(|&number| self.right(number) == sum) {
            Some(number) => format!("{sum}: {} of every rank", self.place(number)),
            None => format!("{sum}: not the elements at one place of all ranks"),
        }
    }

    fn place(self, number: usize) -> String {
        let elements = self.shapes.iter().map(|shape| shape.iter().product::<usize>()).enumerate();
        let mut places =
            elements.flat_map(|(index, all)| (0..all).map(move |element| (index, element)));
        let (index, element) = places.nth(number - 1).unwrap_or_default();
        format!("tensor {index}[{element}]")
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
        let mut pairs = (1..).zip(&got);
        let is_mean = pairs.all(|(number, got)| *got == case.right(number) / case.ranks as f64);
        (1..).zip(&got).try_for_each(|(number, &got)| {
            demand(got == case.right(number), || {
                Finding::new(format!("rank {rank} gets a wrong sum at {}", case.place(number)))
                    .expected(case.made_of(case.right(number)), case.made_of(got))
                    .note(is_mean.then(|| "that fits the mean".to_owned()))
                    .law(SUM)
            })
        })?;
    }
    Ok(())
}

/// The messages are those of one all-reduce of all elements in a row.
fn one_all_reduce(answer: Answer, &case: &Case) -> Outcome {
    let sent: Vec<Traffic> = case.found(answer)?.into_iter().map(|(_, sent)| sent).collect();
    // An answer may send nothing if there is no element, and must send nothing if there is no tensor.
    if case.elements() == 0 && sent.iter().all(|sent| sent.messages == 0) {
        return Ok(());
    }
    let row = [Shape::from(case.elements())];
    let by = |algorithm| match case.shapes {
        [] => Ok(vec![Traffic::default(); case.ranks]),
        _ => shards::traffic(case.ranks, &row, case.dtype, algorithm),
    };
    let messages = |sent: &[Traffic]| Vec::from_iter(sent.iter().map(|it| it.messages));
    let (one, own) = (by(case.algorithm)?, messages(&sent));
    let Some(rank) = (0..case.ranks).find(|&rank| own[rank] != one[rank].messages) else {
        return sent.iter().zip(&one).enumerate().try_for_each(|(rank, (sent, one))| {
            let [expected, got] = [one, sent].map(|it| format!("{} bytes", it.bytes));
            same(format!("rank {rank} sends {got}"), expected, got, TYPE)
        });
    };
    let (wanted, got) = (one[rank].messages, own[rank]);
    // The numbers of messages can fit several calls, and another algorithm too.
    let is_calls = wanted > 0 && got > wanted && got % wanted == 0;
    let fits = |&other: &Algorithm| by(other).is_ok_and(|other| messages(&other) == own);
    let other = Algorithm::OURS.into_iter().find(fits);
    let is_choice = other.is_some() && (!is_calls || case.shapes.len() == 1);
    let calls = is_calls.then(|| format!("{} calls", got / wanted));
    let like = calls.into_iter().chain(other.map(|it| format!("one call of Algorithm::{it:?}")));
    let like = like.collect::<Vec<_>>().join(", or ");
    let like = if like.is_empty() { like } else { format!(", as with {like}") };
    Err(Finding::new(format!("rank {rank} sends another number of messages"))
        .expected(format!("messages sent: {wanted}"), format!("messages sent: {got}{like}"))
        .law(if is_choice { CALLER } else { ONCE }))
}
