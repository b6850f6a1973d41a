//! What a page consists of: code blocks, prose, links, headings, includes.

use std::path::{Path, PathBuf};

use super::directive::{Include, directives};

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
}

/// The line of a place, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
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
