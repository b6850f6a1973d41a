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
    let is_late = |section: &(&str, _, &str)| section.0 == "Unreleased" && !section.2.is_empty();
    let mut wrong = Vec::new();
    let mut tell = |is: bool, what: String| wrong.extend(is.then_some(what));
    let what = format!("the newest release is {newest}, of the date {date}");
    let what = format!("CHANGELOG.md: {what}; write \"## {version} – DATE\"");
    tell(newest != version || date == "none", what);
    let what = format!("CITATION.cff: the version is {cited}, and {version} in Cargo.toml");
    tell(cited != version, what);
    let what = format!("CITATION.cff: date-released is {cited_date}, and {date} in CHANGELOG.md");
    tell(cited_date != date, what);
    let what = "CHANGELOG.md has changes under \"Unreleased\"";
    let what = format!("{what}: move them to {version}, or release them later");
    tell(sections.iter().any(is_late), what);
    tell(text.is_empty(), format!("CHANGELOG.md says nothing of version {version}"));
    if wrong.is_empty() { Ok(text.to_owned()) } else { Err(wrong) }
}
