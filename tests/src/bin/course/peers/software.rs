//! The versions of what did the work: numbers mean little without them.

use std::collections::BTreeMap;

use harness::report::summary::Versions;
use serde::Serialize;

use crate::doctor::probe::{ask, first_line};

#[derive(Clone, Debug, Serialize)]
pub(super) struct Software {
    #[serde(flatten)]
    ours: Versions,
    rustc: Option<String>,
    #[serde(flatten)]
    peers: BTreeMap<String, Option<String>>,
}

impl Software {
    pub(super) fn with(peers: BTreeMap<String, Option<String>>) -> Self {
        let rustc = ask("rustc", &["--version"]).ok().map(first_line);
        Self { ours: Versions::of_this_binary(), rustc, peers }
    }
}
