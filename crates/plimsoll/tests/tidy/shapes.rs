//! Limits for the shape of types and crates: methods of a trait, fields and bools of a struct, modules at a crate's
//! root, test binaries.
//!
//! A trait of many methods or a struct of many fields does several things at once, many bools hide a state that should
//! be an enum, a reader can't survey a crate of many modules, and each test binary takes seconds to link. Existing
//! violations are listed in `ratchet.toml` and can't grow.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Fields, File, Item, ItemMod, ItemStruct, ItemTrait, TraitItem, Type};

use crate::ratchet::Bounds;
use crate::sizes::is_for_tests;
use crate::sources::{Source, crate_of, sources};

const MAX_TRAIT_METHODS: usize = 12;
const MAX_STRUCT_FIELDS: usize = 16;
const MAX_STRUCT_BOOLS: usize = 3;
const MAX_ROOT_MODULES: usize = 16;
const MAX_TEST_BINARIES: usize = 2;

/// Sizes of the types of one file, by name.
#[derive(Default)]
struct TypeSizes {
    trait_methods: BTreeMap<String, usize>,
    struct_fields: BTreeMap<String, usize>,
    struct_bools: BTreeMap<String, usize>,
}

impl TypeSizes {
    fn measure(file: &File) -> TypeSizes {
        let mut sizes = TypeSizes::default();
        sizes.visit_file(file);
        sizes
    }
}

impl<'ast> Visit<'ast> for TypeSizes {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        let methods = item
            .items
            .iter()
            .filter(|of| matches!(of, TraitItem::Fn(_)));
        self.trait_methods
            .insert(item.ident.to_string(), methods.count());
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let name = item.ident.to_string();
        if let Fields::Named(fields) = &item.fields {
            let bools = fields.named.iter().filter(|field| is_bool(&field.ty));
            self.struct_bools.insert(name.clone(), bools.count());
            self.struct_fields.insert(name, fields.named.len());
        }
    }
}

fn is_bool(of: &Type) -> bool {
    matches!(of, Type::Path(path) if path.path.is_ident("bool"))
}

/// Returns the number of modules that a crate's root declares, without those for tests.
fn root_modules(root: &File) -> usize {
    let modules = root.items.iter().filter(|item| match item {
        Item::Mod(module) => !is_for_tests(&module.attrs),
        _ => false,
    });
    modules.count()
}

/// Returns a size of all types of the tree, by file and type.
fn sizes_of_types(select: fn(TypeSizes) -> BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let files = sources().iter().filter(|source| !source.is_test);
    let sizes = files.flat_map(|Source { file, text, .. }| {
        let parsed = syn::parse_file(text).expect("it compiles");
        let types = select(TypeSizes::measure(&parsed)).into_iter();
        types.map(move |(name, size)| (format!("{file} {name}"), size))
    });
    sizes.collect()
}

#[test]
fn traits_have_few_methods() {
    let sizes = sizes_of_types(|sizes| sizes.trait_methods);
    assert!(sizes.len() > 20, "traits are found: {}", sizes.len());
    Bounds::read("methods of a trait").hold(&sizes, MAX_TRAIT_METHODS);
}

#[test]
fn structs_have_few_fields() {
    let sizes = sizes_of_types(|sizes| sizes.struct_fields);
    assert!(sizes.len() > 500, "structs are found: {}", sizes.len());
    Bounds::read("fields of a struct").hold(&sizes, MAX_STRUCT_FIELDS);
}

#[test]
fn structs_have_few_bools() {
    let sizes = sizes_of_types(|sizes| sizes.struct_bools);
    Bounds::read("bools of a struct").hold(&sizes, MAX_STRUCT_BOOLS);
}

#[test]
fn crate_roots_have_few_modules() {
    let roots = sources().iter().filter(|source| {
        let of = source.file.rsplit_once("/src/");
        of.is_some_and(|(_, name)| matches!(name, "lib.rs" | "main.rs"))
    });
    let sizes: BTreeMap<String, usize> = roots
        .map(|Source { file, text, .. }| {
            let root = syn::parse_file(text).expect("it compiles");
            (crate_of(file).to_owned(), root_modules(&root))
        })
        .collect();
    assert!(sizes.len() > 5, "roots are found: {sizes:?}");
    Bounds::read("modules at a crate's root").hold(&sizes, MAX_ROOT_MODULES);
}

/// Returns the crate of which this file is the root of a test binary: `tests/a.rs` or `tests/a/main.rs`.
fn crate_of_test_binary(file: &str) -> Option<&str> {
    let (name, path) = file.strip_prefix("crates/")?.split_once("/tests/")?;
    let is_root = match path.split_once('/') {
        None => path.ends_with(".rs"),
        Some((_, within)) => within == "main.rs",
    };
    (is_root && !name.contains('/')).then_some(name)
}

#[test]
fn crates_have_few_test_binaries() {
    let mut sizes = BTreeMap::<String, usize>::new();
    for name in sources()
        .iter()
        .filter_map(|source| crate_of_test_binary(&source.file))
    {
        *sizes.entry(name.to_owned()).or_default() += 1;
    }
    assert!(sizes.len() > 5, "test binaries are found: {sizes:?}");
    Bounds::read("test binaries").hold(&sizes, MAX_TEST_BINARIES);
    for (file, of) in [
        ("crates/a/tests/b.rs", Some("a")),
        ("crates/a/tests/b/main.rs", Some("a")),
        ("crates/a/tests/b/c.rs", None),
        ("crates/a/tests/b/c/main.rs", None),
        ("crates/a/src/tests/b.rs", None),
    ] {
        assert_eq!(crate_of_test_binary(file), of, "{file}");
    }
}

#[test]
fn sizes_of_types_are_counted() {
    let file = syn::parse_file(
        "mod a; #[cfg(test)] mod tests { struct T { t: bool } }
         struct S { a: bool, b: Option<bool>, c: bool } struct U(bool, bool);
         trait T { const C: u8; fn a(&self); fn b() {} }",
    )
    .expect("it parses");
    assert_eq!(root_modules(&file), 1);
    let sizes = TypeSizes::measure(&file);
    assert_eq!(sizes.trait_methods, BTreeMap::from([("T".to_owned(), 2)]));
    assert_eq!(sizes.struct_fields, BTreeMap::from([("S".to_owned(), 3)]));
    assert_eq!(sizes.struct_bools, BTreeMap::from([("S".to_owned(), 2)]));
}
