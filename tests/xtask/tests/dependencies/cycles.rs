//! Circles of modules that lie side by side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::modules::{Mention, Modules, Names};

/// Modules of one parent, each of which leads to each other one.
#[derive(Debug)]
pub(crate) struct Cycle {
    parent: Names,
    modules: BTreeSet<String>,
    /// A shortest way from the first of them back to it.
    way: Vec<Mention>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.parent.is_empty() {
            write!(f, "{}: ", self.parent.join("::"))?;
        }
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        f.write_str(&modules.join(", "))
    }
}

impl Cycle {
    /// Which lines make it, one below the other.
    pub(crate) fn told(&self) -> String {
        let depth = self.parent.len();
        let told = |mention: &Mention| {
            let Mention { by, of, file, line, text } = mention;
            format!("    {} uses {}: {}:{line}: {text}\n", by[depth], of[depth], file.display())
        };
        self.way.iter().map(told).collect()
    }
}

/// From a module to those beside it that it or a module in it mentions.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Mention>>;

pub(crate) fn of(modules: &Modules) -> Vec<Cycle> {
    let mut by_parent: BTreeMap<&[String], Uses<'_>> = BTreeMap::new();
    for mention in &modules.mentions {
        let Mention { by, of, .. } = mention;
        let common = by.iter().zip(of).take_while(|(one, other)| one == other).count();
        if common < by.len() && common < of.len() && modules.names.contains(&of[..=common]) {
            let uses = by_parent.entry(&by[..common]).or_default();
            uses.entry(&by[common]).or_default().entry(&of[common]).or_insert(mention);
        }
    }
    by_parent.iter().flat_map(|(parent, uses)| among(parent, uses)).collect()
}

fn among(parent: &[String], uses: &Uses<'_>) -> Vec<Cycle> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut cycles = Vec::new();
    for &module in uses.keys() {
        if seen.contains(module) {
            continue;
        }
        let Some(way) = way(uses, module, module) else { continue };
        let there_and_back = |other: &&str| {
            self::way(uses, module, other).is_some() && self::way(uses, other, module).is_some()
        };
        let together: BTreeSet<&str> = uses.keys().copied().filter(there_and_back).collect();
        seen.extend(&together);
        let modules = together.iter().map(|&name| name.to_owned()).collect();
        cycles.push(Cycle {
            parent: parent.to_vec(),
            modules,
            way: way.into_iter().cloned().collect(),
        });
    }
    cycles
}

/// A shortest way from one module to another, of at least one step.
fn way<'a>(uses: &Uses<'a>, from: &str, to: &str) -> Option<Vec<&'a Mention>> {
    let mut waiting = VecDeque::from([(from, Vec::new())]);
    let mut seen = BTreeSet::new();
    while let Some((module, way)) = waiting.pop_front() {
        for (&next, &mention) in uses.get(module).into_iter().flatten() {
            let way = [&way[..], &[mention]].concat();
            if next == to {
                return Some(way);
            }
            if seen.insert(next) {
                waiting.push_back((next, way));
            }
        }
    }
    None
}
