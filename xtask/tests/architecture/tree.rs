//! The modules of a crate, and where a path that its code names leads to.

use std::collections::{BTreeMap, BTreeSet};

use crate::uses::{is_for_tests, read};

/// Segments of a path. As written, the first one may be `crate`, `self` or `super`; resolved, it is a module below the root.
/// A glob ends in `*`.
pub type Segments = Vec<String>;

/// A source file: its path below `src/`, and its text.
#[derive(Debug, Clone)]
pub struct Source {
    pub path: String,
    pub text: String,
}

/// A path that the code of a file names.
#[derive(Debug)]
pub struct Reference {
    pub file: String,
    pub line: usize,
    /// The module that the path stands in.
    pub module: Segments,
    /// The path as written.
    pub path: Segments,
}

/// A string literal.
#[derive(Debug)]
pub struct Literal {
    pub file: String,
    pub line: usize,
    pub text: String,
}

/// A module: its children, and the names that its `use` items bring into it.
#[derive(Debug, Default)]
struct Module {
    children: BTreeSet<String>,
    imports: BTreeMap<String, Vec<Segments>>,
}

/// All modules of a crate, with every path and literal of their code.
#[derive(Debug, Default)]
pub struct Tree {
    modules: BTreeMap<Segments, Module>,
    /// Macros of `#[macro_use]` modules, by name: they are in scope everywhere.
    macros: BTreeMap<String, Segments>,
    pub references: Vec<Reference>,
    pub literals: Vec<Literal>,
    /// File and line of each `pub use …::*`. Names behind it cannot be followed home.
    pub exported_globs: Vec<(String, usize)>,
}

impl Tree {
    /// Parses the sources of a crate, `lib.rs` among them.
    pub fn parse(sources: &[Source]) -> Self {
        let files: Vec<(&Source, Segments, syn::File)> = sources
            .iter()
            .map(|source| {
                let file = syn::parse_file(&source.text);
                let file = file.unwrap_or_else(|error| panic!("{} is not parsed: {error}", source.path));
                (source, module_of(&source.path), file)
            })
            .collect();
        let mut tests = BTreeSet::new();
        let mut macro_modules = BTreeSet::new();
        for (_, module, file) in &files {
            for declared in file.items.iter().filter_map(declared_module) {
                let path = child(module, &declared.ident.to_string());
                if declared.attrs.iter().any(is_for_tests) {
                    tests.insert(path);
                } else if declared.attrs.iter().any(|attribute| attribute.path().is_ident("macro_use")) {
                    macro_modules.insert(path);
                }
            }
        }
        let mut tree = Self::default();
        for (source, module, file) in files {
            if tests.iter().any(|test| module.starts_with(test)) {
                continue;
            }
            if macro_modules.contains(&module) {
                tree.macros.extend(macro_names(&file).map(|name| (name, module.clone())));
            }
            tree.declare(&module);
            read(&mut tree, &source.path, module, &file);
        }
        tree
    }

    /// Adds a module, and all modules around it.
    pub fn declare(&mut self, module: &[String]) {
        self.modules.entry(module.to_vec()).or_default();
        if let Some((name, parent)) = module.split_last() {
            self.declare(parent);
            self.modules.entry(parent.to_vec()).or_default().children.insert(name.clone());
        }
    }

    /// Adds a name that a `use` item brings into a module.
    pub fn import(&mut self, module: &[String], name: String, path: Segments) {
        let here = self.modules.entry(module.to_vec()).or_default();
        here.imports.entry(name).or_default().push(path);
    }

    /// `true` if the crate has this module, written as `store::memory`.
    pub fn has_module(&self, name: &str) -> bool {
        self.modules.contains_key(&name.split("::").map(str::to_owned).collect::<Segments>())
    }

    /// The modules directly below the root.
    pub fn top_level(&self) -> impl Iterator<Item = &String> {
        self.modules.get(&Vec::new()).into_iter().flat_map(|root| &root.children)
    }

    /// The places in the crate that a path names: its home behind all re-exports, and each module on the way that re-exports an
    /// item from outside itself. Empty for a path of another crate.
    pub fn resolve(&self, reference: &Reference) -> BTreeSet<Segments> {
        let mut found = BTreeSet::new();
        if let [name] = reference.path.as_slice()
            && let Some(home) = self.macros.get(name)
        {
            found.insert(child(home, name));
        } else if let Some(path) = self.absolute(&reference.module, &reference.path, None) {
            self.follow(&path, &mut BTreeSet::new(), &mut found);
        }
        found
    }

    /// The path from the root, or `None` for a path of another crate: its first segment is neither a child nor an import of the
    /// module. The import named `resolving` does not count, as `use metrics::metrics` would be its own target.
    fn absolute(&self, module: &[String], path: &[String], resolving: Option<&str>) -> Option<Segments> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => match rest.first().map(String::as_str) {
                Some("super") => self.absolute(module, rest, resolving),
                _ => Some([module, rest].concat()),
            },
            "super" => {
                let parent = &module[..module.len().checked_sub(1)?];
                match rest.first().map(String::as_str) {
                    Some("super") => self.absolute(parent, rest, resolving),
                    _ => Some([parent, rest].concat()),
                }
            }
            name => {
                let here = self.modules.get(module)?;
                let known = here.children.contains(name)
                    || here.imports.contains_key(name) && resolving != Some(name);
                known.then(|| [module, path].concat())
            }
        }
    }

    /// Follows a path from the root to its home. `seen` ends a circle of imports.
    fn follow(&self, path: &Segments, seen: &mut BTreeSet<Segments>, found: &mut BTreeSet<Segments>) {
        if !seen.insert(path.clone()) {
            return;
        }
        for (at, name) in path.iter().enumerate() {
            let (module, rest) = (&path[..at], &path[at + 1..]);
            let Some(here) = self.modules.get(module) else { break };
            if name == "*" {
                // A glob names every import of the module, as far as privacy lets it; more than that does no harm here.
                for target in here.imports.keys().flat_map(|name| self.targets(module, here, name)) {
                    self.follow(&target, seen, found);
                }
            } else if !here.children.contains(name) && here.imports.contains_key(name) {
                let targets = self.targets(module, here, name);
                if !module.is_empty() && !targets.iter().any(|target| target.starts_with(module)) {
                    found.insert(path.clone());
                }
                for target in targets {
                    self.follow(&[target, rest.to_vec()].concat(), seen, found);
                }
                return;
            }
        }
        found.insert(path.clone());
    }

    /// The targets of an import, from the root. It has several where conditions choose one, none in another crate.
    fn targets(&self, module: &[String], here: &Module, name: &str) -> Vec<Segments> {
        let targets = here.imports[name].iter();
        targets.filter_map(|target| self.absolute(module, target, Some(name))).collect()
    }
}

/// The path of an item in a module.
pub fn child(module: &[String], name: &str) -> Segments {
    [module, &[name.to_owned()]].concat()
}

/// `store/mod.rs` is `store`, `store/lease.rs` is `store::lease`, `lib.rs` is the root.
fn module_of(path: &str) -> Segments {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut module: Segments = path.split('/').map(str::to_owned).collect();
    module.pop_if(|last| *last == "mod" || path == "lib");
    module
}

fn declared_module(item: &syn::Item) -> Option<&syn::ItemMod> {
    match item {
        syn::Item::Mod(module) if module.content.is_none() => Some(module),
        _ => None,
    }
}

fn macro_names(file: &syn::File) -> impl Iterator<Item = String> {
    file.items.iter().filter_map(|item| match item {
        syn::Item::Macro(item) => item.ident.as_ref().map(ToString::to_string),
        _ => None,
    })
}
