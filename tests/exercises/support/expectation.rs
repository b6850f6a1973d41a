//! Comparison of numbers: the first difference, the law that it breaks, and a guess that explains all wrong numbers.

use candle_core::{DType, Result, Tensor};
use ops::difference::relative_difference;

use crate::outcome::{Finding, Outcome, demand};
use crate::tracer::multiple;

/// The most numbers that a message shows in full.
const FEW: usize = 16;

/// A tensor that answers with a known mistake have, and its name.
pub type Known = (&'static str, Result<Tensor>);

/// The expected property of some numbers, and the message if they do not have it.
pub struct Expectation<'a> {
    what: String,
    sides: Option<[String; 2]>,
    law: String,
    tolerance: f64,
    place: Box<dyn Fn(usize) -> String + 'a>,
    guess: Box<dyn Fn(f64, f64) -> Option<String> + 'a>,
    known: Vec<Known>,
}

impl<'a> Expectation<'a> {
    /// Expects `what` to be exactly right.
    pub fn of(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            sides: None,
            law: String::new(),
            tolerance: 0.0,
            place: Box::new(|index| format!("element {index}")),
            guess: Box::new(|_, _| None),
            known: Vec::new(),
        }
    }

    /// The law that wrong numbers break.
    pub fn law(mut self, law: impl Into<String>) -> Self {
        self.law = law.into();
        self
    }

    /// Names both sides, in place of "expected" and "got": both are the answer's, and either may be wrong.
    pub fn between(mut self, one: &str, other: &str) -> Self {
        self.sides = Some([one, other].map(str::to_owned));
        self
    }

    /// Allows for rounding: a difference of up to `tolerance` times the largest number expected.
    pub fn up_to(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Names the place of a number by its index. A single number has no place.
    pub fn at(mut self, place: impl Fn(usize) -> String + 'a) -> Self {
        self.place = Box::new(place);
        self
    }

    /// A guess at the mistake, from an expected number and the answer's. The message has the guess only if it is the same
    /// for all wrong numbers.
    pub fn guess(mut self, guess: impl Fn(f64, f64) -> Option<String> + 'a) -> Self {
        self.guess = Box::new(guess);
        self
    }

    /// The message of a wrong tensor has the name of the first of these tensors that is equal to it.
    pub fn known(mut self, known: Vec<Known>) -> Self {
        self.known = known;
        self
    }

    /// Demands that numbers are right, one by one, and as many as expected.
    pub fn compare(&self, expected: &[f64], got: &[f64]) -> Outcome {
        let (what, [wanted, came]) = (&self.what, [expected, got].map(<[f64]>::len));
        demand(wanted == came, || {
            Finding::new(format!("{what}: expected {wanted} numbers, got {came}")).law(&self.law)
        })?;
        let largest = expected.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
        let allowed = self.tolerance * largest;
        // A NaN agrees with nothing.
        let agree =
            |&at: &usize| expected[at] == got[at] || (got[at] - expected[at]).abs() <= allowed;
        let wrong: Vec<usize> = (0..wanted).filter(|at| !agree(at)).collect();
        demand(wrong.is_empty(), || self.finding(expected, got, &wrong))
    }

    /// Demands that a tensor is right: element type, shape and every number.
    pub fn compare_tensors(&self, expected: &Tensor, got: &Tensor) -> Outcome {
        let [wanted, came] = [expected, got].map(|it| format!("{:?} {:?}", it.dtype(), it.dims()));
        demand(wanted == came, || {
            let what = format!("{}: expected a tensor {wanted}, got {came}", self.what);
            Finding::new(what).law(&self.law)
        })?;
        let is = |wrong: &Tensor| relative_difference(wrong, got).is_ok_and(|apart| apart < 1e-9);
        self.compare(&numbers(expected)?, &numbers(got)?).map_err(|finding| {
            let known = self.known.iter().find(|(_, wrong)| wrong.as_ref().is_ok_and(is));
            match known {
                Some((name, _)) => finding.note(Some(format!("that is {name}"))),
                None => finding,
            }
        })
    }

    fn finding(&self, expected: &[f64], got: &[f64], wrong: &[usize]) -> Finding {
        let first = wrong[0];
        let among = |numbers: &[f64]| match numbers.len() {
            2..=FEW => format!("   of {}", list(numbers)),
            _ => String::new(),
        };
        let place = match expected.len() {
            1 => String::new(),
            all => format!(" at {} ({} wrong of {all})", (self.place)(first), wrong.len()),
        };
        let [wanted, came] = told_apart(expected[first], got[first]);
        let sides = [wanted + &among(expected), came + &among(got)];
        // The law of the check is not about digits, unless both sides are the answer's.
        let digits = right_digits(expected, got).filter(|_| self.sides.is_none());
        let law = if digits.is_some() { "" } else { &self.law };
        let guess = |&at: &usize| (self.guess)(expected[at], got[at]);
        let guess =
            guess(&first).filter(|one| wrong.iter().all(|at| guess(at).as_ref() == Some(one)));
        let (is, [one, other]) = match &self.sides {
            None => ("is wrong", ["expected", "got"]),
            Some(sides) => ("differ", sides.each_ref().map(String::as_str)),
        };
        let [wanted, came] = sides;
        Finding::new(format!("{} {is}{place}", self.what))
            .between([(one, wanted), (other, came)])
            .note(guess.or(digits).or_else(|| common_factor(expected, got)))
            .law(law)
    }
}

/// The numbers of a tensor in order, in f64. Fails when the tensor has another element type than numbers.
pub fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// A note if all numbers are nearly right.
fn right_digits(expected: &[f64], got: &[f64]) -> Option<String> {
    let largest = |numbers: &mut dyn Iterator<Item = f64>| numbers.fold(0.0, f64::max);
    let size = largest(&mut expected.iter().map(|number| number.abs()));
    let apart = largest(&mut expected.iter().zip(got).map(|(a, b)| (a - b).abs())) / size;
    // Smaller differences come from the order of additions.
    let nearly = (1e-12..1e-5).contains(&apart) && got.iter().all(|number| number.is_finite());
    nearly.then(|| {
        let digits = -apart.log10().ceil();
        format!(
            "that is right to {digits} digits: was it computed in f32, or a small constant added?"
        )
    })
}

/// A note on the factor by which all numbers are wrong.
fn common_factor(expected: &[f64], got: &[f64]) -> Option<String> {
    let pairs = || expected.iter().zip(got);
    let nonzero = pairs().filter(|(expected, _)| **expected != 0.0);
    let factors: Vec<f64> = nonzero.map(|(expected, got)| got / expected).collect();
    let factor = *factors.first()?;
    let near = |number: f64, other: f64| (number - other).abs() < 1e-9;
    let whole = |number: f64| number.abs() < 1e4 && near(number, number.round());
    let common = factors.iter().all(|other| near(other / factor, 1.0))
        && pairs().all(|(expected, got)| *expected != 0.0 || *got == 0.0)
        && ![0.0, 1.0].iter().any(|nothing| near(factor, *nothing))
        // One number is always a multiple of another.
        && (factors.len() > 2 || whole(factor) || whole(1.0 / factor));
    common.then(|| match expected.len() {
        1 => format!("that is {} what it should be", multiple(factor)),
        _ => format!("every number is {} what it should be", multiple(factor)),
    })
}

/// Two numbers with as few digits as tell them apart.
fn told_apart(a: f64, b: f64) -> [String; 2] {
    const ALL: usize = 17;
    let enough = (4..ALL).find(|&digits| rounded(a, digits) != rounded(b, digits));
    [a, b].map(|number| rounded(number, enough.unwrap_or(ALL)))
}

fn list(numbers: &[f64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|&number| rounded(number, 4)).collect();
    format!("[{}]", numbers.join(", "))
}

/// A number with so many significant digits, without zeros at its end.
fn rounded(number: f64, digits: usize) -> String {
    let text = format!("{number:.*e}", digits - 1);
    let Ok(rounded) = text.parse::<f64>() else { return text };
    let plain = (1e-4..1e9).contains(&rounded.abs()) || rounded == 0.0 || !rounded.is_finite();
    if plain { rounded.to_string() } else { format!("{rounded:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(expectation: Expectation<'_>, expected: &[f64], got: &[f64]) -> String {
        expectation.compare(expected, got).map_or_else(|it| it.to_string(), |()| String::new())
    }

    #[test]
    fn a_message_has_the_place_both_sides_and_a_note_on_all_wrong_numbers() {
        #[rustfmt::skip]
        let cases: [(&[f64], &[f64], &str); 12] = [
            (&[1.0, 6.0], &[1.0, 3.0], "x is wrong at row 1 (1 wrong of 2)\n  expected 6   of [1, 6]\n  got      3   of [1, 3]\n  the mean\n  law: sum"),
            (&[4.0, 6.0, 8.0], &[0.5, 3.0, 5.0], "of [0.5, 3, 5]\n  law: sum"),
            (&[3.0, 0.0, 6.0], &[1.0, 0.0, 2.0], "every number is 1/3 of what it should be\n  law: sum"),
            (&[3.0], &[300.0], "got      300\n  that is 100 times what it should be\n  law: sum"),
            (&[1.0, 2.0], &[1.0, 2.0 + 1e-8], "8 digits: was it computed in f32, or a small constant added?"),
            (&[1.0, 2.0], &[1.0, 2.0 + 1e-12], "of [1, 2]\n  law: sum"),
            (&[1.0, 2.0], &[0.0, 0.0], "of [0, 0]\n  law: sum"),
            (&[0.0], &[1.0], "got      1\n  law: sum"),
            (&[0.0], &[f64::NAN], "x is wrong\n  expected 0\n  got      NaN\n  law: sum"),
            (&[0.0], &[], "x: expected 1 numbers, got 0\n  law: sum"),
            (&[0.0, 100.0], &[9e-13, 100.0], ""),
            (&[0.0, 100.0], &[2e-12, 100.0], "law: sum"),
        ];
        for (expected, got, message) in cases {
            let mean = |expected, got| (got * 2.0 == expected).then(|| "the mean".to_owned());
            let x = Expectation::of("x").law("sum").up_to(1e-14);
            let told = told(x.at(|index| format!("row {index}")).guess(mean), expected, got);
            assert!(told.ends_with(message) && told.is_empty() == message.is_empty(), "{told}");
        }
        let halves = Expectation::of("two losses").between("whole", "halves");
        assert_eq!(told(halves, &[1.0], &[2.5]), "two losses differ\n  whole  1\n  halves 2.5");
    }
}
