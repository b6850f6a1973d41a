//! Values by the names that the command line has for them.

use clap::ValueEnum;

/// What the command line calls a value; empty where it has no name for it.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceKind;

    #[test]
    fn a_value_is_called_what_it_is_asked_for_by() {
        for kind in DeviceKind::value_variants() {
            assert_eq!(DeviceKind::from_str(&name_of(kind), false), Ok(*kind));
        }
        assert_eq!(name_of(&DeviceKind::Cuda), "cuda");
    }
}
