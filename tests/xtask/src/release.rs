//! A release is named in three files: the workspace's `Cargo.toml`, `CHANGELOG.md` and `CITATION.cff`. They have to agree,
//! and the changelog's section of the version is the text of the release.

// `## 0.1.0 – 2026-11-22`, or `## Unreleased`.
pattern!(HEADING, r"(?m)^## (\S+)(?: – (\S+))?[ \t]*$");

// A field at the outermost level of a citation file, which is YAML of the plainest kind.
pattern!(FIELD, r#"(?m)^([\w-]+):\s*["']?([^"'\n]+?)["']?\s*$"#);

/// The sections of a changelog, newest first: version, date, text.
fn sections(changelog: &str) -> Vec<(&str, Option<&str>, &str)> {
    let headings: Vec<_> = HEADING.captures_iter(changelog).collect();
    let section = |(nth, found): (usize, &regex::Captures<'_>)| {
        let end = headings.get(nth + 1).and_then(|next| next.get(0)).map(|next| next.start());
        let begin = found.get(0).map_or(0, |heading| heading.end());
        let part = |group| found.get(group).map(|it| &changelog[it.range()]);
        let text = changelog[begin..end.unwrap_or(changelog.len())].trim();
        (part(1).unwrap_or_default(), part(2), text)
    };
    headings.iter().enumerate().map(section).collect()
}

/// The text of the release of `version`, the workspace's: its section of the changelog. Fails with a sentence for each difference
/// of a file from the workspace, for changes under "Unreleased", and for a section without a text.
pub fn notes(version: &str, changelog: &str, citation: &str) -> Result<String, Vec<String>> {
    let field = |name: &str| {
        let found = FIELD.captures_iter(citation).find(|found| &found[1] == name);
        found.map_or_else(|| "none".to_owned(), |found| found[2].to_owned())
    };
    let sections = sections(changelog);
    let newest = sections.iter().find(|section| section.0 != "Unreleased");
    let (newest, date, _) = *newest.unwrap_or(&("none", None, ""));
    let date = date.unwrap_or("none");
    let (cited, cited_date) = (field("version"), field("date-released"));
    let text = sections.iter().find(|section| section.0 == version).map_or("", |section| section.2);
    let mut wrong = Vec::new();
    if newest != version || date == "none" {
        wrong.push(format!(
            "CHANGELOG.md: the newest release is {newest}, of the date {date}; write \"## {version} – DATE\""
        ));
    }
    if cited != version {
        wrong.push(format!("CITATION.cff: the version is {cited}, and {version} in Cargo.toml"));
    }
    if cited_date != date {
        wrong.push(format!(
            "CITATION.cff: date-released is {cited_date}, and {date} in CHANGELOG.md"
        ));
    }
    if sections.iter().any(|(name, _, text)| *name == "Unreleased" && !text.is_empty()) {
        wrong.push(format!(
            "CHANGELOG.md has changes under \"Unreleased\": move them to {version}, or release them later"
        ));
    }
    if text.is_empty() {
        wrong.push(format!("CHANGELOG.md says nothing of version {version}"));
    }
    if wrong.is_empty() { Ok(text.to_owned()) } else { Err(wrong) }
}
