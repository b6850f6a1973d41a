//! A release is named in three files: the workspace's `Cargo.toml`, `CHANGELOG.md` and `CITATION.cff`. What they
//! say has to agree, and the changelog's section is what a release tells of itself.

/// What the changelog says of one version, under a heading such as `## 0.1.0 – 2026-11-22`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Section {
    /// `0.1.0`, or `Unreleased`.
    pub version: String,
    /// As in `2026-11-22`; the unreleased section has none.
    pub date: Option<String>,
    /// What stands below the heading, without blank lines around it.
    pub text: String,
}

/// The sections of a changelog, in their order: newest first.
pub fn sections(changelog: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in changelog.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let (version, date) = match heading.split_once(" – ") {
                Some((version, date)) => (version, Some(date.trim().to_owned())),
                None => (heading, None),
            };
            let version = version.trim().to_owned();
            sections.push(Section { version, date, text: String::new() });
        } else if let Some(section) = sections.last_mut() {
            section.text.push_str(line);
            section.text.push('\n');
        }
    }
    for section in &mut sections {
        section.text = section.text.trim().to_owned();
    }
    sections
}

/// Where changelog and citation file part from `version`, the workspace's: one sentence each.
pub fn disagreements(version: &str, changelog: &str, citation: &str) -> Vec<String> {
    let mut found = Vec::new();
    let newest = sections(changelog).into_iter().find(|section| section.version != "Unreleased");
    let newest_date = match &newest {
        None => {
            found.push(format!("CHANGELOG.md has no release: write \"## {version} – DATE\""));
            None
        }
        Some(newest) if newest.version != version => {
            found.push(format!(
                "the newest release in CHANGELOG.md is {}, Cargo.toml has version {version}",
                newest.version
            ));
            None
        }
        Some(Section { date: None, .. }) => {
            found.push(format!(
                "CHANGELOG.md does not date version {version}: write \"## {version} – DATE\""
            ));
            None
        }
        Some(Section { date, .. }) => date.as_deref(),
    };
    match field(citation, "version") {
        None => found.push("CITATION.cff has no version".to_owned()),
        Some(cited) if cited != version => {
            found.push(format!("CITATION.cff has version {cited}, Cargo.toml {version}"));
        }
        Some(_) => {}
    }
    match (field(citation, "date-released"), newest_date) {
        (None, _) => found.push("CITATION.cff has no date-released".to_owned()),
        (Some(cited), Some(date)) if cited != date => found.push(format!(
            "CITATION.cff says that {version} was released on {cited}, CHANGELOG.md on {date}"
        )),
        _ => {}
    }
    found
}

/// What the release of `version` tells of itself: its section of the changelog.
/// Fails with all [disagreements], and what would be left out because it still stands under "Unreleased".
pub fn notes(version: &str, changelog: &str, citation: &str) -> Result<String, Vec<String>> {
    let mut wrong = disagreements(version, changelog, citation);
    let sections = sections(changelog);
    if sections.iter().any(|section| section.version == "Unreleased" && !section.text.is_empty()) {
        wrong.push(format!(
            "CHANGELOG.md has changes under \"Unreleased\": move them to {version}, or release them later"
        ));
    }
    match sections.into_iter().find(|section| section.version == version) {
        Some(section) if section.text.is_empty() => {
            wrong.push(format!("CHANGELOG.md says nothing of version {version}"));
        }
        Some(section) if wrong.is_empty() => return Ok(section.text),
        _ => {}
    }
    Err(wrong)
}

/// The value of a field at the outermost level of a citation file, which is YAML of the plainest kind.
fn field<'a>(citation: &'a str, name: &str) -> Option<&'a str> {
    citation.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.trim().trim_matches(['"', '\'']))
    })
}
