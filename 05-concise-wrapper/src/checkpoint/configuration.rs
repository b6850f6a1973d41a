//! What has to be the same when a run goes on.

use std::fmt;

use datasets::source::LoadedData;
use harness::records::TrainOptions;
use serde::{Deserialize, Serialize};

use crate::Precision;
use crate::optimizer::Extras;

/// The name of what tells one folder's images from another's of the same name. Checkpoints of before that was looked at
/// are without it, and are taken at their word.
const IMAGES: &str = "training images with hash";

/// The name of whose statistics batch norms use. Checkpoints of before the number of parts was written down say `local` of
/// any, and are taken at their word, or `sync`.
const NORMS: &str = "batch norm";
const WHOLE_BATCH: &str = "over the whole batch";
const SYNCHRONISED: &str = "over the whole batch, synchronised";

/// Of whose images the statistics of batch norms are: networks that differ in it are trained otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormsOf {
    /// Of all, on one device.
    WholeBatch,
    /// Of all, on several: the same network.
    Synchronised,
    /// Of each device's part of the batch, of so many.
    Parts(usize),
    /// Of each shard, whatever the number of devices.
    Shards,
}

impl fmt::Display for NormsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WholeBatch => f.write_str(WHOLE_BATCH),
            Self::Synchronised => f.write_str(SYNCHRONISED),
            Self::Parts(parts) => write!(f, "over each of {parts} parts of a batch"),
            Self::Shards => f.write_str("over each shard"),
        }
    }
}

/// What a training loop does not know of the run it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The network, such as `ResNet-18`.
    pub model: String,
    /// Channels of its first layer, where that can be chosen.
    pub width: Option<usize>,
    /// Of whose images the statistics of its batch norms are; `None` without batch norm.
    pub norms: Option<NormsOf>,
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
        precision: Precision,
    ) -> Self {
        let TrainOptions { batch_size, learning_rate, seed, .. } = options;
        let Extras { constants, warm_up } = extras;
        let count = |count: Option<usize>| count.map_or_else(none, |count| count.to_string());
        let entries = [
            ("model", about.model.clone()),
            ("width", count(about.width)),
            (NORMS, about.norms.map_or_else(none, |norms| norms.to_string())),
            ("shards", count(about.shards)),
            ("dtype", precision.weights().as_str().to_owned()),
            ("precision", precision.to_string()),
            ("data", data.name.clone()),
            ("training images", data.train.len().to_string()),
            (IMAGES, data.train.fingerprint().to_owned()),
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
        let told = |value: Option<&str>| value.map_or_else(none, str::to_owned);
        let differs = |what: &String| {
            let (here, there) = (self.value(what), checkpoint.value(what));
            let there = Self::meant(what, there, here).or(there);
            let (here, there) = (told(here), told(there));
            (here != there).then(|| Difference { what: what.clone(), there, here })
        };
        names.map(differs).find_map(|difference| difference)
    }

    fn value(&self, what: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == what).map(|(_, value)| &**value)
    }

    /// What a checkpoint means by a setting, or by its absence, where this run says it in other words.
    fn meant<'a>(what: &str, value: Option<&str>, here: Option<&'a str>) -> Option<&'a str> {
        match (what, value) {
            (IMAGES, None) => here,
            (NORMS, Some("local")) => here.filter(|here| *here != SYNCHRONISED),
            (NORMS, Some("sync" | WHOLE_BATCH | SYNCHRONISED)) => {
                here.filter(|here| [WHOLE_BATCH, SYNCHRONISED].contains(here))
            }
            _ => None,
        }
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

    #[test]
    fn without_a_hash_of_its_images_a_checkpoint_is_taken_at_its_word() {
        let of = |hash: Option<&str>| {
            let entries =
                [Some(("data", "mine")), hash.map(|hash| (IMAGES, hash)), Some(("seed", "1"))];
            let owned = |(what, value): (&str, &str)| (what.to_owned(), value.to_owned());
            Configuration(entries.into_iter().flatten().map(owned).collect())
        };
        let run = of(Some("12ab"));
        for checkpoint in [of(None), of(Some("12ab"))] {
            assert_eq!(run.difference(&checkpoint), None);
        }
        let Difference { what, there, here } = run.difference(&of(Some("34cd"))).unwrap();
        assert_eq!([&what, &there, &here], ["training images with hash", "34cd", "12ab"]);
    }

    #[test]
    fn another_number_of_parts_to_normalise_by_is_another_run() {
        let of = |norms: &str| Configuration(vec![(NORMS.to_owned(), norms.to_owned())]);
        let text = |norms: NormsOf| of(&norms.to_string());
        use NormsOf::{Parts, Shards, Synchronised, WholeBatch};
        let all = [WholeBatch, Synchronised, Parts(2), Parts(4), Shards];
        let whole = |norms| [WholeBatch, Synchronised].contains(&norms);
        for here in all {
            let run = text(here);
            for there in all {
                let same = here == there || whole(here) && whole(there);
                assert_eq!(run.difference(&text(there)).is_none(), same, "{here}, {there}");
            }
            // Of before parts were counted.
            assert_eq!(run.difference(&of("local")).is_none(), here != Synchronised, "{here}");
            assert_eq!(run.difference(&of("sync")).is_none(), whole(here), "{here}");
            assert!(run.difference(&of("none")).is_some());
        }
    }
}
