//! What a page consists of: code blocks, links, headings, includes.

use std::path::{Path, PathBuf};

use pulldown_cmark::{BrokenLink, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

use super::directive::{Include, directives};

/// A page of the book.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its path below `book/src`.
    pub name: PathBuf,
    pub text: String,
    pub blocks: Vec<Block>,
    pub links: Vec<Link>,
    pub headings: Vec<String>,
    pub includes: Vec<Include>,
    /// Lines of prose that begin with a comment: to Markdown they are HTML, and a paragraph ends before them.
    pub torn: Vec<usize>,
}

/// A code block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub line: usize,
    /// The words behind its fence: a language first. `None` for indented code.
    pub info: Option<Vec<String>>,
    pub content: String,
}

/// A link or an image.
#[derive(Clone, Debug)]
pub struct Link {
    pub line: usize,
    /// Its target as it is written; `None` when it refers to a definition that is not there.
    pub target: Option<String>,
    pub written: String,
}

impl Page {
    /// Takes a page apart.
    pub fn new(name: PathBuf, text: String) -> Self {
        let mut page = Self { name, includes: directives(&text), ..Self::default() };
        let mut undefined = Vec::new();
        let mut broken = |link: BrokenLink<'_>| {
            // `[text]` alone is no link, just brackets.
            if matches!(link.link_type, LinkType::Reference | LinkType::Collapsed) {
                let (line, written) = (line_of(&text, link.span.start), text[link.span].to_owned());
                undefined.push(Link { line, target: None, written });
            }
            None
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
                        html.trim().strip_prefix("<!--").and_then(|rest| rest.rsplit_once("-->"));
                    if after.is_some_and(|(_, words)| !words.is_empty()) {
                        page.torn.push(line);
                    }
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    block = Some(Block { line, info: words_behind(&kind), ..Block::default() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let written = text[span].to_owned();
                    page.links.push(Link { line, target: Some(dest_url.into_string()), written });
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
        page.links.extend(undefined);
        page.text = text;
        page
    }

    /// Below the checkout's root.
    pub fn path(&self) -> PathBuf {
        Path::new("book/src").join(&self.name)
    }
}

/// The line of a place, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// What mdBook's Markdown has, and formulas.
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

fn words_behind(kind: &CodeBlockKind<'_>) -> Option<Vec<String>> {
    let CodeBlockKind::Fenced(info) = kind else { return None };
    let words = info.split([' ', ',']).filter(|word| !word.is_empty());
    Some(words.map(str::to_owned).collect())
}

/// The id that mdBook gives a heading after those before it.
fn heading_id(title: &str, before: &[String]) -> String {
    let id: String = title
        .trim()
        .chars()
        .filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .collect();
    let numbered = (1..).map(|number| format!("{id}-{number}"));
    let mut ids = std::iter::once(id.clone()).chain(numbered);
    ids.find(|id| !before.contains(id)).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::super::directive::only_directive;
    use super::*;

    fn page(text: &str) -> Page {
        Page::new("page.md".into(), text.to_owned())
    }

    #[test]
    fn a_page_is_taken_apart() {
        let page = page(
            "# One `step` of it\n\nTwo *words*\nand [a link](there.md#x).\n\n- an item of 3 ms\n\n\
             ```rust\n{{#include ../a.rs:b}}\n```\n",
        );
        assert_eq!(page.headings, ["one-step-of-it"]);
        assert_eq!(page.links[0].target.as_deref(), Some("there.md#x"));
        let [block] = &page.blocks[..] else { panic!("{:?}", page.blocks) };
        assert_eq!((block.line, &*block.content), (8, "{{#include ../a.rs:b}}\n"));
        let include = only_directive(&block.content).unwrap();
        assert_eq!((&*include.path, include.anchor.as_deref()), ("../a.rs", Some("b")));
        assert_eq!(page.includes[0].line, 9);
    }

    #[test]
    fn headings_of_the_same_name_are_numbered_and_can_have_ids() {
        let page = page("# Why?\n## Why?\n## Why? {#because}\n### Why?\n");
        assert_eq!(page.headings, ["why", "why-1", "because", "why-2"]);
    }

    #[test]
    fn a_comment_in_front_of_words_tears_a_paragraph() {
        let torn = |text: &str| page(text).torn;
        assert_eq!(torn("one\n<!-- source: x --> *two*\nthree\n"), [2]);
        assert!(torn("one <!-- source: x --> *two*\n<!-- source: y -->\n\nthree\n").is_empty());
        assert!(torn("```html,sketch\n<!-- a --> b\n```\n").is_empty());
    }
}
