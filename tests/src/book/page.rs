//! What a page consists of: code blocks, prose, links, headings, includes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use pulldown_cmark::{BrokenLink, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};
use regex::Regex;

/// A page of the book.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path below `book/src`.
    pub name: PathBuf,
    /// As it is written.
    pub text: String,
    /// Its code blocks, in order.
    pub blocks: Vec<Block>,
    /// What is read, a paragraph, a table's cell, a caption at a time.
    pub prose: Vec<Prose>,
    /// Links and images.
    pub links: Vec<Link>,
    /// The ids of its headings.
    pub headings: Vec<String>,
    /// mdBook's directives, in code blocks and outside.
    pub includes: Vec<Include>,
    /// Lines of prose that begin with a comment: to Markdown they are HTML, and a paragraph ends before them.
    pub torn: Vec<usize>,
}

/// A code block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it begins.
    pub line: usize,
    /// The words behind its fence: a language first. `None` for indented code.
    pub info: Option<Vec<String>>,
    /// What is between the fences.
    pub content: String,
}

/// A piece of text without its code and formulas.
#[derive(Clone, Debug)]
pub struct Prose {
    /// Where it begins.
    pub line: usize,
    /// As one line.
    pub text: String,
    /// Whether the text between the blank lines around it says where its numbers are from.
    pub has_source: bool,
}

/// A link or an image.
#[derive(Clone, Debug)]
pub struct Link {
    /// Where it begins.
    pub line: usize,
    /// Its target as it is written; `None` when it refers to a definition that is not there.
    pub target: Option<String>,
    /// What it was written as.
    pub written: String,
}

/// A directive of mdBook: `{{#include path:anchor}}`.
#[derive(Clone, Debug)]
pub struct Include {
    /// Where it is.
    pub line: usize,
    /// `include`, or another word.
    pub kind: String,
    /// The path as it is written.
    pub path: String,
    /// What follows its colon.
    pub anchor: Option<String>,
}

static DIRECTIVE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\\?)\{\{\s*#([a-z_]+)\s+([^}:\s]*)(?::([^}]*?))?\s*\}\}")
        .expect("a valid expression")
});
static SOURCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"<!--\s*source:\s*[^\s>-]").expect("a valid expression"));
static TAG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)<!--.*?-->|<[^>]*>").expect("a valid expression"));

impl Page {
    /// Takes a page apart.
    pub fn new(name: PathBuf, text: String) -> Self {
        let mut page = Self {
            includes: directives(&text),
            name,
            text: String::new(),
            blocks: Vec::new(),
            prose: Vec::new(),
            links: Vec::new(),
            headings: Vec::new(),
            torn: Vec::new(),
        };
        page.read(&text);
        page.text = text;
        page
    }

    /// Below the checkout's root.
    pub fn path(&self) -> PathBuf {
        Path::new("book/src").join(&self.name)
    }

    fn read(&mut self, text: &str) {
        let mut undefined = Vec::new();
        let mut broken = |link: BrokenLink<'_>| {
            // `[text]` alone is no link, just brackets.
            if matches!(link.link_type, LinkType::Reference | LinkType::Collapsed) {
                undefined.push((link.span.start, text[link.span].to_owned()));
            }
            None
        };
        let parser = Parser::new_with_broken_link_callback(text, options(), Some(&mut broken));
        // The piece of prose under way, from where.
        let mut piece: Option<(usize, String)> = None;
        let mut heading: Option<(Option<String>, String)> = None;
        for (event, span) in parser.into_offset_iter() {
            let line = line_of(text, span.start);
            let mut write = |words: &str| {
                piece.get_or_insert_with(|| (span.start, String::new())).1.push_str(words);
            };
            match event {
                Event::Text(words) => {
                    if let Some(block) = self.open_block() {
                        block.content.push_str(&words);
                        continue;
                    }
                    if let Some((_, title)) = &mut heading {
                        title.push_str(&words);
                    }
                    write(&words);
                }
                Event::Code(words) => {
                    if let Some((_, title)) = &mut heading {
                        title.push_str(&words);
                    }
                    write("`");
                }
                Event::InlineMath(_) | Event::DisplayMath(_) => write("`"),
                Event::SoftBreak | Event::HardBreak => write(" "),
                Event::Html(html) => {
                    write(&html);
                    let after =
                        html.trim().strip_prefix("<!--").and_then(|rest| rest.rsplit_once("-->"));
                    if after.is_some_and(|(_, words)| !words.is_empty()) {
                        self.torn.push(line);
                    }
                }
                Event::InlineHtml(html) => write(&html),
                Event::Start(Tag::CodeBlock(kind)) => {
                    self.end_piece(text, piece.take());
                    self.blocks.push(Block {
                        line,
                        info: words_behind(&kind),
                        content: OPEN.into(),
                    });
                }
                Event::End(TagEnd::CodeBlock) => {
                    if let Some(block) = self.open_block() {
                        block.content.drain(..OPEN.len());
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let written = text[span].to_owned();
                    self.links.push(Link { line, target: Some(dest_url.into_string()), written });
                }
                Event::Start(Tag::Heading { id, .. }) => {
                    self.end_piece(text, piece.take());
                    heading = Some((id.map(|id| id.into_string()), String::new()));
                }
                Event::End(TagEnd::Heading(_)) => {
                    self.end_piece(text, piece.take());
                    if let Some((id, title)) = heading.take() {
                        self.headings
                            .push(id.unwrap_or_else(|| heading_id(&title, &self.headings)));
                    }
                }
                Event::Start(tag) if is_block(tag.to_end()) => {
                    self.end_piece(text, piece.take());
                }
                Event::End(tag) if is_block(tag) => self.end_piece(text, piece.take()),
                _ => {}
            }
        }
        self.end_piece(text, piece);
        self.links.extend(undefined.into_iter().map(|(start, written)| Link {
            line: line_of(text, start),
            target: None,
            written,
        }));
    }

    /// The code block under way.
    fn open_block(&mut self) -> Option<&mut Block> {
        self.blocks.last_mut().filter(|block| block.content.starts_with(OPEN))
    }

    fn end_piece(&mut self, text: &str, piece: Option<(usize, String)>) {
        let Some((start, words)) = piece else { return };
        let words = TAG.replace_all(&words, " ");
        let words: Vec<&str> = words.split_whitespace().collect();
        if words.is_empty() {
            return;
        }
        self.prose.push(Prose {
            line: line_of(text, start),
            text: words.join(" "),
            has_source: SOURCE.is_match(paragraph_around(text, start)),
        });
    }
}

/// What the content of a code block begins with while it is being read: no text has it.
const OPEN: &str = "\0";

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

/// Whether a tag begins or ends a piece of text.
fn is_block(tag: TagEnd) -> bool {
    !matches!(
        tag,
        TagEnd::Emphasis
            | TagEnd::Strong
            | TagEnd::Strikethrough
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::Link
            | TagEnd::Image
    )
}

fn directives(text: &str) -> Vec<Include> {
    let all = DIRECTIVE.captures_iter(text).filter(|found| found[1].is_empty());
    all.map(|found| Include {
        line: line_of(text, found.get(0).map_or(0, |whole| whole.start())),
        kind: found[2].to_owned(),
        path: found[3].to_owned(),
        anchor: found.get(4).map(|anchor| anchor.as_str().to_owned()),
    })
    .collect()
}

/// The one directive that a piece of text consists of.
pub(super) fn only_directive(text: &str) -> Option<Include> {
    let found = DIRECTIVE.find(text)?;
    (found.as_str() == text.trim() && !text.trim().starts_with('\\'))
        .then(|| directives(text).swap_remove(0))
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
    let taken = |id: &String| before.contains(id);
    if !taken(&id) {
        return id;
    }
    let numbered = (1..).map(|number| format!("{id}-{number}"));
    numbered.into_iter().find(|id| !taken(id)).unwrap_or(id)
}

/// From 1.
fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// The text between the blank lines around a place.
fn paragraph_around(text: &str, offset: usize) -> &str {
    let before = text[..offset].rfind("\n\n").map_or(0, |blank| blank + 2);
    let after = text[offset..].find("\n\n").map_or(text.len(), |blank| offset + blank);
    &text[before..after]
}

#[cfg(test)]
mod tests {
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
        let prose: Vec<_> = page.prose.iter().map(|prose| (prose.line, &*prose.text)).collect();
        assert_eq!(
            prose,
            [(1, "One ` of it"), (3, "Two words and a link."), (6, "an item of 3 ms")]
        );
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
    fn a_source_counts_for_the_text_between_blank_lines() {
        let page = page("3 ms\n<!-- source: a book -->\n\n4 ms\n\n5 ms <!-- source: x -->\n");
        let sources: Vec<_> = page.prose.iter().map(|p| (&*p.text, p.has_source)).collect();
        assert_eq!(sources, [("3 ms", true), ("4 ms", false), ("5 ms", true)]);
    }

    #[test]
    fn a_comment_in_front_of_words_tears_a_paragraph() {
        let torn = |text: &str| page(text).torn;
        assert_eq!(torn("one\n<!-- source: x --> *two*\nthree\n"), [2]);
        assert!(torn("one <!-- source: x --> *two*\n<!-- source: y -->\n\nthree\n").is_empty());
        assert!(torn("```html,sketch\n<!-- a --> b\n```\n").is_empty());
    }

    #[test]
    fn code_and_formulas_are_not_prose_but_captions_are() {
        let page = page("a `3 ms` b $4 s$ c\n\n<figcaption>\n5 ms, <b\nclass=\"6 ms\">7 s</b>\n");
        let prose: Vec<_> = page.prose.iter().map(|prose| &*prose.text).collect();
        assert_eq!(prose, ["a ` b ` c", "5 ms, 7 s"]);
    }
}
