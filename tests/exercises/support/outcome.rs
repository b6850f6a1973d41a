//! The outcome of a law, and the one place that writes messages.

use std::fmt::{self, Display};

/// A mistake of an answer: a headline, the expected value, the answer's value, and the broken law.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    what: String,
    /// The names of two values and the values.
    sides: Vec<(String, String)>,
    note: Option<String>,
    law: Option<String>,
}

/// The verdict of a law, or the result of a step before the verdict.
pub type Outcome<T = ()> = Result<T, Finding>;

impl Finding {
    /// A finding with this headline.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// Shows the expected value and the answer's value, each of one or several lines.
    pub fn expected(self, expected: impl Display, got: impl Display) -> Self {
        self.between([("expected", expected.to_string()), ("got", got.to_string())])
    }

    /// Shows two values under other names.
    pub fn between(mut self, sides: [(&str, String); 2]) -> Self {
        self.sides = sides.map(|(name, value)| (name.to_owned(), value)).into();
        self
    }

    /// Adds a line, if there is one: a guess that explains all of the evidence.
    pub fn note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }

    /// Names the law, in place of a law named before. An empty text names none.
    pub fn law(mut self, law: impl Into<String>) -> Self {
        self.law = Some(law.into()).filter(|law| !law.is_empty());
        self
    }

    /// Names the law that belongs to the first of these texts in the message, if the message has one of them.
    pub fn law_by(self, laws: &[(&str, &str)]) -> Self {
        let message = self.to_string();
        let law = laws.iter().find(|(part, _)| message.contains(part));
        if let Some((_, law)) = law { self.law(*law) } else { self }
    }

    /// Puts the place, such as the case, before the headline.
    pub fn at(mut self, place: impl Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let width = self.sides.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.sides {
            let indent = format!("\n{}", " ".repeat(width + 3));
            write!(f, "\n  {name:<width$} {}", value.trim_end().replace('\n', &indent))?;
        }
        self.note.iter().try_for_each(|note| write!(f, "\n  {note}"))?;
        self.law.iter().try_for_each(|law| write!(f, "\n  law: {law}"))
    }
}

impl From<candle_core::Error> for Finding {
    fn from(error: candle_core::Error) -> Self {
        Self::new(format!("the answer's result cannot be used: {error}"))
    }
}

/// Demands that two values are equal.
pub fn same<T: PartialEq + Display>(
    what: impl Into<String>,
    expected: T,
    got: T,
    law: &str,
) -> Outcome {
    expect(expected == got, what.into(), (expected, got), law)
}

/// Demands that something is right. A finding shows both sides.
pub fn expect(
    right: bool,
    what: impl Display,
    (expected, got): (impl Display, impl Display),
    law: &str,
) -> Outcome {
    demand(right, || Finding::new(what.to_string()).expected(expected, got).law(law))
}

/// Demands that something holds.
pub fn demand(holds: bool, finding: impl FnOnce() -> Finding) -> Outcome {
    if holds { Ok(()) } else { Err(finding()) }
}

/// Demands that impossible input is refused: with an error that says why. `shown` prints a wrong result.
pub fn refused<R, E: Display>(result: Result<R, E>, shown: impl FnOnce(&R) -> String) -> Outcome {
    let law = "impossible input is refused with an error that says why";
    match result {
        Err(error) if !error.to_string().trim().is_empty() => Ok(()),
        Err(_) => Err(Finding::new("the error says nothing")
            .expected("a message", "an empty one")
            .law(law)),
        Ok(result) => {
            Err(Finding::new("not refused").expected("an error", shown(&result)).law(law))
        }
    }
}

/// Numbers as `0 1 2`, or `(none)`.
pub fn in_a_row<N: Display>(numbers: impl IntoIterator<Item = N>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    if numbers.is_empty() { "(none)".to_owned() } else { numbers.join(" ") }
}

/// Groups of numbers as `0 1 | 2 3 | (none)`.
pub fn in_groups<N: Display>(groups: &[Vec<N>]) -> String {
    groups.iter().map(in_a_row).collect::<Vec<_>>().join(" | ")
}

/// A number rounded to six digits behind the point.
pub fn short(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
