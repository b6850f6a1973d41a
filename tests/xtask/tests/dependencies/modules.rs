//! The modules of a crate, read from its files, and the paths by which their code names other modules. Code of tests is
//! left out.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, ItemMod, ItemUse, Lit, Macro, Meta, UseTree};

use crate::*;

/// Names from the root of the crate to a module or an item.
pub(crate) type Names = Vec<String>;

/// A path in the code of a module that leads to something of the same crate.
#[derive(Clone, Debug)]
pub(crate) struct Mention {
    pub(crate) by: Names,
    pub(crate) of: Names,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) names: BTreeSet<Names>,
    pub(crate) mentions: Vec<Mention>,
    pub(crate) files: BTreeSet<PathBuf>,
}

impl Modules {
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.add_file(Vec::new(), root, root.parent().unwrap());
        modules
    }

    /// Adds a module that is a file; its modules lie in `folder`.
    fn add_file(&mut self, name: Names, file: &Path, folder: &Path) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if !parsed.attrs.iter().any(is_for_tests) {
            self.files.insert(file.canonicalize().unwrap());
            self.add(name, &parsed.items, (file, &text), folder);
        }
    }

    fn add(&mut self, name: Names, items: &[Item], (file, text): (&Path, &str), folder: &Path) {
        let mut reader = Reader { module: &name, file, text, mentions: &mut self.mentions };
        items.iter().for_each(|item| reader.visit_item(item));
        for item in items {
            let Item::Mod(module) = item else { continue };
            if module.attrs.iter().any(is_for_tests) {
                continue;
            }
            let child = [&name[..], &[module.ident.to_string()]].concat();
            let named = module.ident.to_string();
            match (&module.content, path_of(module)) {
                (Some((_, items)), _) => self.add(child, items, (file, text), &folder.join(named)),
                (None, Some(path)) => {
                    let path = file.parent().unwrap().join(path);
                    // A learner's answer to an exercise may not be there yet.
                    if path.exists() {
                        self.add_file(child, &path, path.parent().unwrap());
                    }
                }
                (None, None) => {
                    let alone = folder.join(format!("{named}.rs"));
                    let below = folder.join(&named);
                    let path = if alone.exists() { alone } else { below.join("mod.rs") };
                    self.add_file(child, &path, &below);
                }
            }
        }
        self.names.insert(name);
    }
}

/// What `#[path = "…"]` says of a module.
fn path_of(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Whether an attribute says `cfg(test)`, alone or with more conditions.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    let condition = list.tokens.to_string().replace(' ', "");
    list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
}

/// Reads paths in the code of a module, but not of the modules in it.
struct Reader<'a> {
    module: &'a Names,
    file: &'a Path,
    text: &'a str,
    mentions: &'a mut Vec<Mention>,
}

impl Reader<'_> {
    /// Notes a path, if it begins with `crate`, `self` or `super`: other paths lead down, or out of the crate.
    fn note(&mut self, path: &[&Ident]) {
        let Some(first) = path.first() else { return };
        let mut names = self.module.clone();
        let mut rest = path.iter().map(ToString::to_string).peekable();
        match rest.next().as_deref() {
            Some("crate") => names.clear(),
            Some("self") => {}
            Some("super") => drop(names.pop()),
            _ => return,
        }
        while rest.next_if(|name| name == "super").is_some() {
            names.pop();
        }
        names.extend(rest);
        let line = first.span().start().line;
        let text = self.text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
        let (by, file) = (self.module.clone(), self.file.to_owned());
        self.mentions.push(Mention { by, of: names, file, line, text });
    }

    fn note_tree<'t>(&mut self, tree: &'t UseTree, before: &[&'t Ident]) {
        let with = |ident: &'t Ident| [before, &[ident]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(before),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_tree(tree, before))
            }
        }
    }

    /// Paths in what a macro is given, which need not be Rust.
    fn note_tokens(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(colon)) if colon.as_char() == ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.note_tokens(&group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first];
                    while is_colon(at + 1) && is_colon(at + 2) {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next);
                        at += 3;
                    }
                    self.note(&path);
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            // Each is read for itself.
            Item::Mod(_) => return,
            other => return visit::visit_item(self, other),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if function.attrs.iter().any(is_for_tests) => {}
            other => visit::visit_impl_item(self, other),
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note(&path.segments.iter().map(|segment| &segment.ident).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        self.note_tokens(&invoked.tokens);
        visit::visit_macro(self, invoked);
    }
}
