//! A solution, changed in one small way at a time.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use syn::visit::Visit as _;

use super::changes::Changes;

#[derive(Clone, Debug)]
pub(super) struct Mutant {
    pub(super) line: usize,
    /// That line, as it was.
    pub(super) source: String,
    /// The change: what was there, and what is there now.
    pub(super) what: String,
    pub(super) text: String,
}

/// All changes to a solution, in the order of its lines.
pub(super) fn mutants(solution: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text = fs::read_to_string(solution).with_context(|| format!("{}", solution.display()))?;
    of_text(&text).with_context(|| format!("{}", solution.display()))
}

fn of_text(text: &str) -> anyhow::Result<Vec<Mutant>> {
    let file = syn::parse_file(text)?;
    let mut changes = Changes { text, found: Vec::new() };
    changes.visit_file(&file);
    changes.found.sort_by_key(|change| change.place.start);
    Ok(changes.found.iter().map(|change| change.applied_to(text)).collect())
}

/// A piece of the text, and what takes its place.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) place: Range<usize>,
    pub(super) replacement: String,
    pub(super) what: String,
}

impl Change {
    fn applied_to(&self, text: &str) -> Mutant {
        let Range { start, end } = self.place;
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        Mutant {
            line: text[..start].matches('\n').count() + 1,
            source: text[line_start..].lines().next().unwrap_or_default().to_owned(),
            what: self.what.clone(),
            text: format!("{}{}{}", &text[..start], self.replacement, &text[end..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> Vec<(usize, String)> {
        of_text(text).unwrap().into_iter().map(|mutant| (mutant.line, mutant.what)).collect()
    }

    #[test]
    fn each_kind_of_change_is_found_with_its_line() {
        let text = "#[allow(x = 1)]\nfn f(a: [u8; 4]) {\n    a[0] += 2;\n    if a < b {\n        vec![-1.5; n]\n    }\n    \
                    let Some(c) = d.min(e) else { panic!(\"{}\", 7) };\n}\n";
        let told: Vec<(usize, String)> = [
            (3, "without `a[0] += 2;`"),
            (3, "`0` → `1`"),
            (3, "`a[0] += 2` → `a[0] -= 2`"),
            (3, "`a[0] += 2` → `a[0] = 2`"),
            (3, "`2` → `3`"),
            (3, "`2` → `1`"),
            (4, "`a < b` → `!(a < b)`"),
            (4, "`a < b` → `a <= b`"),
            (4, "`a < b` → `a > b`"),
            (5, "`-1.5` → `1.5`"),
            (5, "`1.5` → `2.5`"),
            (7, "`min` → `max`"),
        ]
        .map(|(line, what)| (line, what.to_owned()))
        .to_vec();
        assert_eq!(changes(text), told);
    }

    #[test]
    fn a_change_changes_one_place() {
        let text = "fn f(n: usize) -> usize {\n    (1..n).rev().sum()\n}\n";
        let texts: Vec<String> = of_text(text).unwrap().into_iter().map(|m| m.text).collect();
        let with = |range: &str| text.replace("(1..n).rev()", range);
        assert_eq!(texts, ["(1..n)", "(2..n).rev()", "(0..n).rev()", "(1..=n).rev()"].map(with));
    }

    #[test]
    fn neighbours_change_places_unless_they_are_alike() {
        let told: Vec<String> = changes("fn f() {\n    (g(a, b.h(c, c), d), e)\n}\n")
            .into_iter()
            .map(|(_, what)| what)
            .collect();
        let call = "g(a, b.h(c, c), d)";
        assert_eq!(
            told,
            [
                format!("`({call}, e)` → `(e, {call})`"),
                format!("`{call}` → `g(b.h(c, c), a, d)`"),
                format!("`{call}` → `g(a, d, b.h(c, c))`"),
            ]
        );
    }

    #[test]
    fn a_condition_that_binds_is_not_negated() {
        assert_eq!(changes("fn f() {\n    if let Some(a) = b && c {}\n}\n").len(), 1);
    }

    #[test]
    fn a_condition_is_negated_once() {
        let told = |condition: &str| changes(&format!("fn f() {{\n    if {condition} {{}}\n}}\n"));
        assert_eq!(told("a == b"), [(2, "`a == b` → `a != b`".to_owned())]);
        assert_eq!(told("a"), [(2, "`a` → `!(a)`".to_owned())]);
    }
}
