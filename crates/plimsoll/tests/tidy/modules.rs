//! Checks imports between the modules of a crate: none upward, no cycles.
//!
//! A module is a file. A folder's first file and those beside it form one unit, so these may import
//! from it; importing what a module further above defines is upward, and so is importing what the
//! crate's root defines. A name that a module only re-exports, with `use` or `mod`, is imported
//! from where it is defined. Siblings that import each other, directly or through others, form a
//! cycle. Of the engine, relays may import only what lies below its loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use syn::visit::{self, Visit};
use syn::{File, Item, ItemMod, ItemUse, UseTree};

use crate::ratchet::Ratchet;
use crate::sizes::is_for_tests;
use crate::sources::{crate_of, sources};

/// The path of a module in its crate; empty for the crate itself.
type Module = Vec<String>;

/// `crates/a/src/b/c.rs`: b, c.
fn module_of(file: &str) -> Option<Module> {
    let path = file.split_once("/src/")?.1.strip_suffix(".rs")?;
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    Some(parts)
}

/// The modules of one crate.
struct Crate {
    modules: BTreeMap<Module, Parsed>,
}

struct Parsed {
    /// Names that the file itself defines.
    defines: BTreeSet<String>,
    /// Names that the file re-exports, with the path that each stands for; `None` for another
    /// crate's.
    passes_on: BTreeMap<String, Option<Vec<String>>>,
    /// The paths that the file uses, from the root of the crate.
    uses: BTreeSet<Vec<String>>,
    /// The engine's modules and root items that the file uses.
    of_engine: BTreeSet<String>,
}

/// The engine's parts that servers and relays share with its loop, and may import.
const BELOW_THE_LOOP: [&str; 8] = [
    "Address",
    "Clock",
    "clock",
    "defect",
    "fault",
    "structures",
    "tls",
    "transport",
];

/// Collects paths that begin with `crate`, `super` or `self`.
struct PathCollector {
    /// The current module, including modules within the file.
    module: Module,
    /// The modules that the file declares.
    beneath: BTreeSet<String>,
    parsed: Parsed,
}

impl PathCollector {
    /// Returns the path from the root of the crate; `None` for another crate's or a local name.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut at = self.module.clone();
        let mut parts = path.iter().peekable();
        match parts.peek()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            _ => return None,
        }
        parts.next();
        while parts.next_if(|part| *part == "super").is_some() {
            at.pop();
        }
        at.extend(parts.cloned());
        Some(at)
    }

    fn note_engine(&mut self, path: &[String]) {
        if let [of, name, ..] = path
            && of == "plimsoll_engine"
        {
            self.parsed.of_engine.insert(name.clone());
        }
    }

    fn add_use_tree(&mut self, before: &[String], tree: &UseTree) {
        let mut path = before.to_vec();
        let name = match tree {
            UseTree::Path(more) => {
                path.push(more.ident.to_string());
                return self.add_use_tree(&path, &more.tree);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use_tree(&path, tree);
                }
                return;
            }
            UseTree::Name(name) if name.ident == "self" => path.last().cloned().unwrap_or_default(),
            UseTree::Name(name) => {
                path.push(name.ident.to_string());
                name.ident.to_string()
            }
            UseTree::Rename(renamed) => {
                path.push(renamed.ident.to_string());
                renamed.rename.to_string()
            }
            UseTree::Glob(_) => "*".to_owned(),
        };
        self.note_engine(&path);
        // `pub use a::B` of a module of its own is written without `self`.
        let is_beneath = path
            .first()
            .is_some_and(|first| self.beneath.contains(first));
        let absolute = if is_beneath {
            Some([self.module.clone(), path].concat())
        } else {
            self.absolute(&path)
        };
        self.parsed.uses.extend(absolute.clone());
        self.parsed.passes_on.insert(name, absolute);
    }
}

impl<'ast> Visit<'ast> for PathCollector {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            self.module.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.add_use_tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.note_engine(&parts);
        if let Some(used) = self.absolute(&parts).filter(|_| parts.len() > 1) {
            self.parsed.uses.insert(used);
        }
        visit::visit_path(self, path);
    }

    // `pub(in crate::a)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn parse(module: &Module, text: &str) -> Parsed {
    let file: File = syn::parse_file(text).expect("it compiles");
    let defines = file.items.iter().filter_map(|item| {
        Some(match item {
            Item::Const(item) => item.ident.to_string(),
            Item::Enum(item) => item.ident.to_string(),
            Item::Fn(item) => item.sig.ident.to_string(),
            Item::Static(item) => item.ident.to_string(),
            Item::Struct(item) => item.ident.to_string(),
            Item::Trait(item) => item.ident.to_string(),
            Item::Type(item) => item.ident.to_string(),
            Item::Union(item) => item.ident.to_string(),
            Item::Macro(item) => item.ident.as_ref()?.to_string(),
            _ => return None,
        })
    });
    let beneath = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) => Some(module.ident.to_string()),
        _ => None,
    });
    let mut reader = PathCollector {
        module: module.clone(),
        beneath: beneath.collect(),
        parsed: Parsed {
            defines: defines.collect(),
            passes_on: BTreeMap::new(),
            uses: BTreeSet::new(),
            of_engine: BTreeSet::new(),
        },
    };
    reader.visit_file(&file);
    reader.parsed
}

impl Crate {
    fn of<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Crate {
        let modules = files.filter_map(|(file, text)| {
            let module = module_of(file)?;
            let parsed = parse(&module, text);
            Some((module, parsed))
        });
        Crate {
            modules: modules.collect(),
        }
    }

    /// Returns the module that defines the item at `path`.
    fn defining_module(&self, path: &[String], steps: usize) -> Option<&Module> {
        let at = (0..=path.len())
            .rev()
            .find(|n| self.modules.contains_key(&path[..*n]))?;
        let (module, parsed) = self.modules.get_key_value(&path[..at])?;
        let Some(name) = path.get(at) else {
            return Some(module);
        };
        if parsed.defines.contains(name) || steps == 0 {
            return Some(module);
        }
        match parsed.passes_on.get(name) {
            Some(to) => {
                let to = [to.as_deref()?, &path[at + 1..]].concat();
                self.defining_module(&to, steps - 1)
            }
            None => Some(module),
        }
    }

    /// Returns the imports of each module, except from itself and modules beneath it.
    fn imports(&self) -> BTreeSet<(&Module, &Module)> {
        let all = self.modules.iter().flat_map(|(module, parsed)| {
            let homes = parsed
                .uses
                .iter()
                .filter_map(|path| self.defining_module(path, 8));
            homes.map(move |home| (module, home))
        });
        all.filter(|(module, home)| !home.starts_with(module))
            .collect()
    }

    /// Returns `MODULE imports from MODULE` where the second is above the first's folder.
    fn upward(&self) -> Vec<String> {
        let upward = self.imports().into_iter().filter(|(module, home)| {
            module.starts_with(home) && (home.is_empty() || home.len() + 1 < module.len())
        });
        upward
            .map(|(module, home)| format!("{} imports from {}", name(module), name(home)))
            .collect()
    }

    /// Returns the groups of siblings that import each other.
    fn cycles(&self) -> Vec<String> {
        let mut siblings = BTreeMap::<&[String], BTreeMap<&str, BTreeSet<&str>>>::new();
        for (module, home) in self.imports() {
            let shared = module.iter().zip(home).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(shared), home.get(shared)) {
                let level = siblings.entry(&module[..shared]).or_default();
                level.entry(from).or_default().insert(to);
            }
        }
        let mut circles = Vec::new();
        for (above, imports) in siblings {
            let reached: BTreeMap<&str, BTreeSet<&str>> = imports
                .keys()
                .map(|from| (*from, reachable(from, &imports)))
                .collect();
            for (from, all) in &reached {
                if all.contains(from) {
                    circles.push(name(&[above, &[(*from).to_owned()]].concat()));
                }
            }
        }
        circles
    }
}

/// Returns everything that `from` imports directly or indirectly.
fn reachable<'a>(from: &str, imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = imports.get(from).into_iter().flatten().copied().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    found
}

fn name(module: &[String]) -> String {
    match module {
        [] => "the crate".to_owned(),
        module => module.join("::"),
    }
}

/// Parsed once for all tests, because it takes seconds.
fn crates() -> &'static BTreeMap<&'static str, Crate> {
    static CRATES: OnceLock<BTreeMap<&'static str, Crate>> = OnceLock::new();
    CRATES.get_or_init(|| {
        let mut files = BTreeMap::<&str, Vec<(&str, &str)>>::new();
        for source in sources().iter().filter(|source| !source.is_test) {
            let of = files.entry(crate_of(&source.file)).or_default();
            of.push((&source.file, &source.text));
        }
        let crates = files.into_iter();
        crates
            .map(|(name, files)| (name, Crate::of(files.into_iter())))
            .collect()
    })
}

#[test]
fn imports_point_down_without_cycles() {
    let crates = crates();
    let each = |look: fn(&Crate) -> Vec<String>| {
        let found = crates
            .iter()
            .map(|(name, modules)| (name.to_string(), look(modules)));
        found.collect()
    };
    Ratchet::read("upward imports").hold(&each(Crate::upward));
    Ratchet::read("modules in circles").hold(&each(Crate::cycles));
}

#[test]
fn relays_import_no_load_code() {
    for (module, parsed) in &crates()["plimsoll-relays"].modules {
        for used in &parsed.of_engine {
            let is_below = BELOW_THE_LOOP.contains(&used.as_str());
            let module = name(module);
            assert!(is_below, "{module} imports plimsoll_engine::{used}");
        }
    }
    let file =
        "use plimsoll_engine::{driver::Driver as D, Clock};\nfn f() { plimsoll_engine::run(); }";
    let used = parse(&Module::new(), file).of_engine;
    assert_eq!(Vec::from_iter(used), ["Clock", "driver", "run"]);
}

#[test]
fn upward_imports_and_cycles_are_detected() {
    let of = |files: &[(&str, &str)]| {
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|(file, text)| (format!("crates/x/src/{file}"), *text))
            .collect();
        let found = Crate::of(files.iter().map(|(file, text)| (file.as_str(), *text)));
        (found.upward(), found.cycles())
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(
        of(&[
            ("lib.rs", "mod a; pub struct X;"),
            ("a.rs", "use crate::X;")
        ]),
        (vec!["a imports from the crate".to_owned()], none.clone())
    );
    assert_eq!(
        of(&[
            ("a/mod.rs", "mod b; fn f() {}"),
            ("a/b.rs", "mod c; fn g() { super::f() }"),
            ("a/b/c.rs", "fn h() { super::super::f() }"),
        ]),
        (vec!["a::b::c imports from a".to_owned()], none.clone())
    );
    let circle = (
        none.clone(),
        vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
    );
    assert_eq!(
        of(&[
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::d::D; pub struct B;"),
            ("c.rs", "pub mod d;"),
            ("c/d.rs", "use crate::{a::A, e::E}; pub struct D;"),
            ("e.rs", "pub struct E;"),
        ]),
        circle
    );
    // A name that the module above re-exports is imported from where it is defined.
    assert_eq!(
        of(&[
            ("lib.rs", "mod a; mod b; pub use a::A; pub use other::O;"),
            ("a.rs", "pub struct A;"),
            (
                "b.rs",
                "use crate::{A, O}; mod own { use super::f; } fn f() {}"
            ),
        ]),
        (none.clone(), none)
    );
}
