//! What has to be the same when a run goes on.

use candle_core::DType;
use serde::{Deserialize, Serialize};
use single_gpu::data::source::LoadedData;
use single_gpu::train::TrainOptions;

use crate::train::Extras;

/// What a training loop does not know of the run it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The network, such as `ResNet-18`.
    pub model: String,
    /// Channels of its first layer, where that can be chosen.
    pub width: Option<usize>,
    /// Whose statistics its batch norms use, such as `local`; `None` without batch norm.
    pub norms: Option<String>,
    /// Into how many shards every batch is cut, where bits must not depend on the number of devices.
    pub shards: Option<usize>,
}

/// The settings that decide what a run computes, each with its name, in the order in which they are
/// compared. How long it goes on is none of them.
///
/// As text, so that a difference can be told; numbers are written such that equal text means equal numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Configuration(Vec<(String, String)>);

/// A setting that two configurations do not have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) there: String,
    pub(super) here: String,
}

impl Configuration {
    pub(crate) fn new(
        about: &About,
        data: &LoadedData,
        options: &TrainOptions,
        extras: &Extras,
        dtype: DType,
    ) -> Self {
        let TrainOptions { batch_size, learning_rate, seed, .. } = options;
        let Extras { constants, warm_up } = extras;
        let count = |count: Option<usize>| count.map_or_else(none, |count| count.to_string());
        let entries = [
            ("model", about.model.clone()),
            ("width", count(about.width)),
            ("batch norm", about.norms.clone().unwrap_or_else(none)),
            ("shards", count(about.shards)),
            ("dtype", dtype.as_str().to_owned()),
            ("data", data.name.clone()),
            ("training images", data.train.len().to_string()),
            ("batch size", batch_size.to_string()),
            // As Debug, a very large or small number is told with an exponent, and exactly nevertheless.
            ("learning rate", format!("{learning_rate:?}")),
            ("momentum", format!("{:?}", constants.momentum)),
            ("weight decay", format!("{:?}", constants.weight_decay)),
            ("warm-up", warm_up.to_string()),
            ("seed", seed.to_string()),
        ];
        Self(entries.map(|(what, value)| (what.to_owned(), value)).to_vec())
    }

    /// Names and values.
    pub(crate) fn entries(&self) -> &[(String, String)] {
        &self.0
    }

    /// The first setting in which a checkpoint's configuration is not this run's.
    pub(super) fn difference(&self, checkpoint: &Self) -> Option<Difference> {
        let names = self.0.iter().chain(&checkpoint.0).map(|(what, _)| what);
        let differs = |what: &String| {
            let (here, there) = (self.value(what), checkpoint.value(what));
            (here != there).then(|| Difference { what: what.clone(), there, here })
        };
        names.map(differs).find_map(|difference| difference)
    }

    fn value(&self, what: &str) -> String {
        let found = self.0.iter().find(|(name, _)| name == what);
        found.map_or_else(none, |(_, value)| value.clone())
    }
}

fn none() -> String {
    "none".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told() {
        let of = |entries: &[(&str, &str)]| {
            let owned = |(what, value): &(&str, &str)| ((*what).to_owned(), (*value).to_owned());
            Configuration(entries.iter().map(owned).collect())
        };
        let run = of(&[("model", "LeNet"), ("batch size", "256"), ("seed", "1")]);
        assert_eq!(run.difference(&run), None);
        let told = |checkpoint: &[(&str, &str)]| {
            let Difference { what, there, here } = run.difference(&of(checkpoint)).unwrap();
            format!("{what} {there}, {here}")
        };
        let other = [("model", "LeNet"), ("batch size", "128"), ("seed", "2")];
        assert_eq!(told(&other), "batch size 128, 256");
        assert_eq!(told(&other[..1]), "batch size none, 256");
        let more = [("model", "LeNet"), ("batch size", "256"), ("seed", "1"), ("new", "3")];
        assert_eq!(told(&more), "new 3, none");
    }
}
