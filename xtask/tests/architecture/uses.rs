//! What the code of a file names: paths, and string literals.
//!
//! A path counts wherever it stands: in a `use` tree, in an expression, type, pattern or attribute, and among the tokens of a
//! macro. Code that is compiled for tests alone is left out, and so is documentation. A type that code holds without naming it,
//! such as the result of a call, is not seen.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{Literal, Reference, Segments, Tree, child};

/// `#[cfg(test)]`, and `#[cfg(all(test, …))]`.
pub fn is_for_tests(attribute: &syn::Attribute) -> bool {
    fn implies_test(condition: &syn::Meta) -> bool {
        match condition {
            syn::Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
            syn::Meta::List(list) if list.path.is_ident("all") => list
                .parse_args_with(syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated)
                .is_ok_and(|conditions| conditions.iter().any(implies_test)),
            _ => false,
        }
    }
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Meta>().is_ok_and(|condition| implies_test(&condition))
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    macro_rules! of {
        ($($kind:ident)*) => {
            match item {
                $(syn::Item::$kind(item) => &item.attrs,)*
                _ => &[],
            }
        };
    }
    of!(Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use)
}

/// Adds the paths, imports and literals of a file to a tree.
pub fn read(tree: &mut Tree, path: &str, module: Segments, file: &syn::File) {
    Reader { tree, file: path, module, globs: 0 }.visit_file(file);
}

struct Reader<'a> {
    tree: &'a mut Tree,
    file: &'a str,
    module: Segments,
    /// Globs that were read so far.
    globs: usize,
}

impl Reader<'_> {
    fn refer(&mut self, path: Segments, span: Span) {
        let (file, line, module) = (self.file.to_owned(), span.start().line, self.module.clone());
        self.tree.references.push(Reference { file, line, module, path });
    }

    fn literal(&mut self, literal: &syn::Lit) {
        let text = match literal {
            syn::Lit::Str(text) => text.value(),
            syn::Lit::ByteStr(text) => String::from_utf8_lossy(&text.value()).into_owned(),
            syn::Lit::CStr(text) => text.value().to_string_lossy().into_owned(),
            _ => return,
        };
        self.tree.literals.push(Literal {
            file: self.file.to_owned(),
            line: literal.span().start().line,
            text,
        });
    }

    /// Reads a branch of a `use` tree: each leaf is a reference, and a name in the module.
    fn import(&mut self, before: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(branch) => {
                self.import(&child(before, &branch.ident.to_string()), &branch.tree)
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(before, tree)),
            syn::UseTree::Glob(glob) => {
                self.globs += 1;
                self.refer(child(before, "*"), glob.star_token.spans[0]);
            }
            syn::UseTree::Name(leaf) => self.import_as(before, &leaf.ident, None),
            syn::UseTree::Rename(leaf) => self.import_as(before, &leaf.ident, Some(&leaf.rename)),
        }
    }

    fn import_as(&mut self, before: &[String], name: &syn::Ident, rename: Option<&syn::Ident>) {
        let path = if name == "self" && !before.is_empty() {
            before.to_vec()
        } else {
            child(before, &name.to_string())
        };
        let bound = rename.map(ToString::to_string).or_else(|| path.last().cloned());
        if let Some(bound) = bound.filter(|bound| bound != "_") {
            self.tree.import(&self.module, bound, path.clone());
        }
        self.refer(path, name.span());
    }

    /// Reads the tokens of a macro or an attribute: paths, groups behind a path as in a `use` tree, and literals.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) if !is_doc(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => self.literal(&syn::Lit::new(literal.clone())),
                TokenTree::Ident(_) => {
                    // A path with `::` in front leads to another crate.
                    let is_external = at >= 2 && is_separator(&tokens[at - 2..]);
                    let before = if is_external { vec!["::".to_owned()] } else { Vec::new() };
                    at = self.path(&before, &tokens, at);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads the path that begins at a token, and returns where it ends.
    fn path(&mut self, before: &[String], tokens: &[TokenTree], mut at: usize) -> usize {
        let mut path = before.to_vec();
        let (begin, span) = (at, tokens[at].span());
        loop {
            match &tokens[at] {
                TokenTree::Ident(name) => path.push(name.to_string()),
                TokenTree::Punct(star) if star.as_char() == '*' => path.push("*".to_owned()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let group: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut next = 0;
                    while next < group.len() {
                        match &group[next] {
                            TokenTree::Punct(punct) if punct.as_char() == ',' => next += 1,
                            _ => next = self.path(&path, &group, next),
                        }
                    }
                    return at + 1;
                }
                _ => break,
            }
            at += 1;
            if !is_separator(&tokens[at..]) || at + 2 == tokens.len() {
                break;
            }
            at += 2;
        }
        if path.len() > 1 {
            path.pop_if(|last| last == "self");
            self.refer(path, span);
        }
        at.max(begin + 1)
    }
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    matches!(tokens, [first, second, ..] if is_colon(first) && is_colon(second))
}

/// `[doc = "…"]`: a documentation comment among tokens.
fn is_doc(group: &proc_macro2::Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket && matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_placed = item.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
        assert!(!is_placed, "{}: `#[path]` of a module is not supported", self.file);
        self.module.push(item.ident.to_string());
        self.tree.declare(&self.module);
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let globs_before = self.globs;
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree);
        }
        if self.globs > globs_before && !matches!(item.vis, syn::Visibility::Inherited) {
            let line = item.use_token.span.start().line;
            self.tree.exported_globs.push((self.file.to_owned(), line));
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        if item.ident == "self" {
            self.refer(vec!["crate".to_owned()], item.ident.span());
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !field.attrs.iter().any(is_for_tests) {
            visit::visit_field(self, field);
        }
    }

    /// `pub(in …)` names a module and uses nothing of it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() && segments.len() > 1 {
            self.refer(segments, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.get_ident() {
            self.refer(vec![name.to_string()], name.span());
        }
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if !attribute.path().is_ident("doc") {
            visit::visit_attribute(self, attribute);
        }
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.visit_path(&list.path);
        self.tokens(list.tokens.clone());
    }

    fn visit_lit(&mut self, literal: &'ast syn::Lit) {
        self.literal(literal);
    }
}
