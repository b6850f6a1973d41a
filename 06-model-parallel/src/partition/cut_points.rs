//! A cut that somebody asks for.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::Error;

/// The layers at which a new stage begins: `3,7` cuts layers 0, 1, … into 0..3, 3..7 and 7 to the end.
///
/// ```
/// use model_parallel::partition::CutPoints;
///
/// let cut: CutPoints = "3,7".parse()?;
/// assert_eq!(cut.ranges(9)?, [0..3, 3..7, 7..9]);
/// # Ok::<_, model_parallel::partition::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPoints(Vec<usize>);

impl CutPoints {
    /// How many stages it makes.
    pub fn stages(&self) -> usize {
        self.0.len() + 1
    }

    /// The layers of every stage, of so many layers.
    ///
    /// # Errors
    ///
    /// When a stage would begin after the last layer.
    pub fn ranges(&self, layers: usize) -> Result<Vec<Range<usize>>, Error> {
        if let Some(&begin) = self.0.iter().find(|&&begin| begin >= layers) {
            return Err(Error::Beyond { cut: self.to_string(), begin, layers });
        }
        let begins = std::iter::once(0).chain(self.0.iter().copied());
        let ends = self.0.iter().copied().chain([layers]);
        Ok(begins.zip(ends).map(|(begin, end)| begin..end).collect())
    }
}

impl FromStr for CutPoints {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |part: &str| {
            let part = part.trim();
            part.parse().map_err(|_| Error::NotANumber { found: part.to_owned() })
        };
        let begins = text.split(',').map(number).collect::<Result<Vec<usize>, _>>()?;
        let mut before = 0;
        for &begin in &begins {
            if begin <= before {
                return Err(Error::NotRising { cut: Self(begins).to_string(), begin, before });
            }
            before = begin;
        }
        Ok(Self(begins))
    }
}

impl fmt::Display for CutPoints {
    /// `3,7`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begins: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&begins.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_names_the_first_layer_of_each_stage_but_the_first() {
        let cut: CutPoints = " 1, 4".parse().unwrap();
        assert_eq!((cut.stages(), cut.to_string()), (3, "1,4".to_owned()));
        assert_eq!(cut.ranges(5).unwrap(), [0..1, 1..4, 4..5]);
    }

    #[test]
    fn cuts_that_make_no_sense_are_refused() {
        let told = |text: &str, layers| -> String {
            let cut = text.parse().and_then(|cut: CutPoints| cut.ranges(layers));
            cut.unwrap_err().to_string()
        };
        for (text, found) in [("", ""), ("3,", ""), ("a", "a"), ("-1", "-1"), ("1.5", "1.5")] {
            assert!(told(text, 9).ends_with(&format!("\"{found}\" is no number")), "{text}");
        }
        for text in ["0", "0,3", "3,3", "7,3"] {
            assert!(told(text, 9).contains("Each stage begins later"), "{text}");
        }
        assert_eq!(told("3,9", 9), "cut 3,9: no stage can begin at layer 9; layers are 0 to 8");
    }
}
