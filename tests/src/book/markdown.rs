//! A page's Markdown, taken apart.

use std::sync::LazyLock;

use pulldown_cmark::{BrokenLink, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::page::{Block, Link, Page, Prose, line_of};

static SOURCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"<!--\s*source:\s*[^\s>-]").expect("a valid expression"));
static TAG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)<!--.*?-->|<[^>]*>").expect("a valid expression"));

impl Page {
    /// Finds everything but the directives.
    pub(super) fn read(&mut self, text: &str) {
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

/// The text between the blank lines around a place.
fn paragraph_around(text: &str, offset: usize) -> &str {
    let before = text[..offset].rfind("\n\n").map_or(0, |blank| blank + 2);
    let after = text[offset..].find("\n\n").map_or(text.len(), |blank| offset + blank);
    &text[before..after]
}
