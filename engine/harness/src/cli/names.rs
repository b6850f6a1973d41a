//! The names of values on the command line.

use clap::ValueEnum;

use super::UsageError;

/// Returns the name of a value on the command line, or an empty text if the value has none.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Refuses a flag that has the same value twice. `name` returns the name of a value.
///
/// # Errors
///
/// A [`UsageError`] that names the flag and the value.
pub fn each_once<T: PartialEq>(
    flag: &str,
    values: &[T],
    name: impl Fn(&T) -> String,
) -> Result<(), UsageError> {
    let mut all = values.iter().enumerate();
    match all.find(|(i, value)| values[..*i].contains(value)) {
        Some((_, value)) => {
            let name = name(value);
            Err(UsageError::new(format_args!("{flag} names {name} twice: leave one out")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
    enum Kind {
        Gpu,
        SliceOfCpu,
    }

    #[test]
    fn a_value_is_called_what_it_is_asked_for_by() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(&name_of(kind), false), Ok(*kind));
        }
        assert_eq!(name_of(&Kind::SliceOfCpu), "slice-of-cpu");
    }

    #[test]
    fn the_second_of_a_kind_is_refused() {
        let refused = |values: &[u8]| each_once("--number", values, u8::to_string);
        refused(&[]).unwrap();
        refused(&[3, 1, 2]).unwrap();
        let message = refused(&[3, 1, 2, 1, 3]).unwrap_err().to_string();
        assert_eq!(message, "--number names 1 twice: leave one out");
    }
}
