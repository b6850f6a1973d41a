//! A page of the book, taken apart: code blocks, links, headings and includes.

use std::path::{Path, PathBuf};

use pulldown_cmark::{
    BrokenLink, CodeBlockKind, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd,
};

/// The folders of the pages and of recorded outputs, below the checkout's root.
pub const FOLDER: &str = "book/src";
pub const OUTPUTS: &str = "book/outputs";

pattern!(DIRECTIVE, r"(\\?)\{\{\s*#([a-z_]+)\s+([^}:\s]*)(?::([^}]*?))?\s*\}\}");

#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The path below `book/src`.
    pub name: PathBuf,
    pub text: String,
    pub blocks: Vec<Block>,
    pub links: Vec<Link>,
    pub headings: Vec<String>,
    pub includes: Vec<Include>,
    /// Lines that begin with a comment and have words after it: Markdown takes the whole line to be HTML.
    pub torn: Vec<usize>,
}

/// A code block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub line: usize,
    /// The words after its fence: a language first.
    pub info: Vec<String>,
    pub content: String,
}

/// A link or an image.
#[derive(Clone, Debug)]
pub struct Link {
    pub line: usize,
    /// The target. Empty if the link refers to a definition that does not exist.
    pub target: String,
}

/// A directive of mdBook: `{{#include path:anchor}}`.
#[derive(Clone, Debug)]
pub struct Include {
    pub line: usize,
    /// `include`, or another word.
    pub kind: String,
    pub path: String,
    /// The path below the checkout's root; empty if the path leaves the checkout.
    pub file: PathBuf,
    pub anchor: Option<String>,
    /// Whether the line has nothing else.
    pub alone: bool,
}

impl Page {
    pub fn new(name: PathBuf, text: String) -> Self {
        let mut page = Self { name, ..Self::default() };
        page.includes = page.directives(&text);
        let mut broken = |link: BrokenLink<'_>| {
            // `[text]` alone is no link.
            let is_link = matches!(link.link_type, LinkType::Reference | LinkType::Collapsed);
            is_link.then(|| (CowStr::from(""), CowStr::from("")))
        };
        let parser = Parser::new_with_broken_link_callback(&text, options(), Some(&mut broken));
        let mut block: Option<Block> = None;
        let mut heading: Option<(Option<String>, String)> = None;
        for (event, span) in parser.into_offset_iter() {
            let line = line_of(&text, span.start);
            match event {
                Event::Text(words) | Event::Code(words) => {
                    if let Some(block) = &mut block {
                        block.content.push_str(&words);
                    } else if let Some((_, title)) = &mut heading {
                        title.push_str(&words);
                    }
                }
                Event::Html(html) => {
                    let after =
                        html.trim().strip_prefix("<!--").and_then(|it| it.rsplit_once("-->"));
                    if after.is_some_and(|(_, words)| !words.is_empty()) {
                        page.torn.push(line);
                    }
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match &kind {
                        CodeBlockKind::Fenced(info) => info,
                        CodeBlockKind::Indented => "",
                    };
                    let info = info.split([' ', ',']).filter(|it| !it.is_empty());
                    let info = info.map(str::to_owned).collect();
                    block = Some(Block { line, info, content: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link { line, target: dest_url.into_string() });
                }
                Event::Start(Tag::Heading { id, .. }) => {
                    heading = Some((id.map(|id| id.into_string()), String::new()));
                }
                Event::End(TagEnd::Heading(_)) => {
                    if let Some((id, title)) = heading.take() {
                        let id = id.unwrap_or_else(|| heading_id(&title, &page.headings));
                        page.headings.push(id);
                    }
                }
                _ => {}
            }
        }
        page.text = text;
        page
    }

    /// The path below the checkout's root.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// The path below the checkout's root to which a path on this page leads; empty if it leaves the checkout.
    pub fn resolve(&self, path: &str) -> PathBuf {
        let mut resolved = self.path();
        resolved.pop();
        for part in path.split('/') {
            match part {
                "." | "" => {}
                ".." if !resolved.pop() => return PathBuf::new(),
                ".." => {}
                part => resolved.push(part),
            }
        }
        resolved
    }

    /// The include that is alone on a line.
    pub fn include_on(&self, line: usize) -> Option<&Include> {
        self.includes.iter().find(|include| include.line == line && include.alone)
    }

    /// The first include of a recorded output in a block.
    pub fn output(&self, block: &Block) -> Option<&Include> {
        let mut includes = block.lines().filter_map(|(line, _)| self.include_on(line));
        includes.find(|include| include.file.starts_with(OUTPUTS))
    }

    fn directives(&self, text: &str) -> Vec<Include> {
        let mut includes = Vec::new();
        for (line, words) in (1..).zip(text.lines()) {
            let found = DIRECTIVE.captures_iter(words).filter(|found| found[1].is_empty());
            includes.extend(found.map(|found| Include {
                line,
                kind: found[2].to_owned(),
                path: found[3].to_owned(),
                file: self.resolve(&found[3]),
                anchor: found.get(4).map(|anchor| anchor.as_str().to_owned()),
                alone: found[0] == *words.trim(),
            }));
        }
        includes
    }
}

impl Include {
    /// The first and the last line that it shows, if it names lines.
    pub fn lines(&self) -> Option<(usize, usize)> {
        let anchor = self.anchor.as_deref()?;
        let (first, last) = anchor.split_once(':').unwrap_or((anchor, anchor));
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

impl Block {
    /// The marks of a `console` block.
    pub fn marks(&self) -> Option<&[String]> {
        match &self.info[..] {
            [language, marks @ ..] if language == "console" => Some(marks),
            _ => None,
        }
    }

    /// The lines that are not empty, with their numbers on the page.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = (self.line + 1..).zip(self.content.lines());
        lines.filter(|(_, text)| !text.trim().is_empty())
    }
}

/// The line of a place, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// The extensions of Markdown that mdBook has, and formulas.
fn options() -> Options {
    Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_DEFINITION_LIST
        | Options::ENABLE_GFM
        | Options::ENABLE_MATH
}

/// The id that mdBook gives a heading, after the headings before it.
fn heading_id(title: &str, before: &[String]) -> String {
    let kept = |c: &char| c.is_alphanumeric() || c.is_whitespace() || ['_', '-'].contains(c);
    let id: String = title.trim().to_ascii_lowercase().chars().filter(kept).collect();
    let id = id.replace(char::is_whitespace, "-");
    let mut numbered = (1..).map(|number| format!("{id}-{number}"));
    if before.contains(&id) {
        return numbered.find(|id| !before.contains(id)).unwrap_or(id);
    }
    id
}
