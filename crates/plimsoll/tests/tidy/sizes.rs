//! Limits for the length of files and functions, and for parameters.
//!
//! A file of more than 500 lines gives its reason in its head, on a line that begins with `//! Long
//! because`. Existing violations are listed in `ratchet.toml` and cannot grow.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use syn::visit::{self, Visit};
use syn::{
    Block, FnArg, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, Signature, TraitItemFn, Type,
    Visibility,
};

use crate::ratchet::{Bounds, Ratchet};
use crate::sources::{Source, crate_of, sources};

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 100;
/// The most parameters of a function, including `self`.
const MAX_PARAMETERS: usize = 6;
const REASON_PREFIX: &str = "//! This file is long because";

/// The properties of a function that the rules check.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// The line on which the function begins.
    line: usize,
    lines: usize,
    parameters: usize,
    /// It is visible to other modules and takes a bool, whose meaning a call does not show.
    has_bare_bool: bool,
}

fn functions(text: &str) -> Vec<Function> {
    let file = syn::parse_file(text).expect("it compiles");
    let mut reader = FunctionCollector::default();
    reader.visit_file(&file);
    reader.found
}

#[derive(Default)]
struct FunctionCollector {
    found: Vec<Function>,
    /// The functions belong to a trait or implement one, whose signature fixes them.
    of_trait: bool,
}

impl FunctionCollector {
    fn take(&mut self, visibility: &Visibility, signature: &Signature, block: Option<&Block>) {
        let begins = signature.fn_token.span.start().line;
        let last = block.map_or(signature.paren_token.span.close(), |block| {
            block.brace_token.span.close()
        });
        let is_bool = |argument: &FnArg| match argument {
            FnArg::Typed(typed) => {
                matches!(&*typed.ty, Type::Path(path) if path.path.is_ident("bool"))
            }
            FnArg::Receiver(_) => false,
        };
        // A function with a single parameter explains it by its name.
        let others = signature
            .inputs
            .iter()
            .filter(|input| matches!(input, FnArg::Typed(_)));
        self.found.push(Function {
            name: signature.ident.to_string(),
            line: begins,
            lines: last.end().line + 1 - begins,
            parameters: signature.inputs.len(),
            has_bare_bool: !matches!(visibility, Visibility::Inherited)
                && !self.of_trait
                && others.count() > 1
                && signature.inputs.iter().any(is_bool),
        });
    }
}

impl<'ast> Visit<'ast> for FunctionCollector {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.take(&item.vis, &item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.take(&item.vis, &item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.take(&Visibility::Inherited, &item.sig, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let outer = std::mem::replace(&mut self.of_trait, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.of_trait = outer;
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        let outer = std::mem::replace(&mut self.of_trait, true);
        visit::visit_item_trait(self, item);
        self.of_trait = outer;
    }
}

/// `#[cfg(test)]`
pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|what| what.is_ident("test"))
    })
}

/// Returns the head of a file: the lines that describe its module.
fn has_reason(text: &str) -> bool {
    let head = text.lines().take_while(|line| line.starts_with("//!"));
    head.into_iter().any(|line| line.starts_with(REASON_PREFIX))
}

#[test]
fn long_files_are_justified_and_bounded() {
    let (mut sizes, mut unexplained) = (BTreeMap::new(), Vec::new());
    for Source { file, text, .. } in sources() {
        let lines = text.lines().count();
        sizes.insert(file.clone(), lines);
        if lines > MAX_FILE_LINES && !has_reason(text) {
            unexplained.push(file.clone());
        }
    }
    Bounds::read("lines").hold(&sizes, MAX_FILE_LINES);
    let unexplained = BTreeMap::from([("all".to_owned(), unexplained)]);
    Ratchet::read("long files without a reason").hold(&unexplained);
}

/// Returns the functions of all crates' sources, by file.
fn all_functions() -> &'static [(&'static str, Vec<Function>)] {
    static FUNCTIONS: OnceLock<Vec<(&str, Vec<Function>)>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let sources = sources().iter().filter(|source| !source.is_test);
        sources
            .map(|source| (source.file.as_str(), functions(&source.text)))
            .collect()
    })
}

/// Checks the violations of a rule for functions, by crate.
fn check_functions(table: &'static str, is_found: impl Fn(&Function) -> bool) {
    let mut by_crate = BTreeMap::<String, Vec<String>>::new();
    for (file, functions) in all_functions() {
        let found = by_crate.entry(crate_of(file).to_owned()).or_default();
        for Function {
            name,
            line,
            lines,
            parameters,
            ..
        } in functions.iter().filter(|f| is_found(f))
        {
            found.push(format!(
                "{file}:{line}: {name} ({lines} lines, {parameters} parameters)"
            ));
        }
    }
    Ratchet::read(table).hold(&by_crate);
}

#[test]
fn functions_are_short() {
    check_functions("long functions", |function| {
        function.lines > MAX_FUNCTION_LINES
    });
}

#[test]
fn functions_take_few_parameters() {
    check_functions("functions of many parameters", |function| {
        function.parameters > MAX_PARAMETERS
    });
}

#[test]
fn public_functions_take_no_bare_bool() {
    check_functions("bare bool parameters", |function| function.has_bare_bool);
}

#[test]
fn detects_long_functions_and_bare_bools() {
    let found = |text: &str| functions(text).remove(0);
    let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(99));
    assert_eq!(found(&long).lines, 101);
    assert_eq!(found("impl A { fn f(&self, b: u8) {} }").parameters, 2);
    for wrong in [
        "pub fn f(a: u8, b: bool) {}",
        "impl A { pub(crate) fn f(&self, a: u8, b: bool) {} }",
        "mod m { pub fn f(a: u8, b: bool) {} }",
    ] {
        assert!(found(wrong).has_bare_bool, "{wrong}");
    }
    for right in [
        "fn f(a: u8, b: bool) {}",
        "pub fn f(a: u8, b: Option<bool>) -> bool {}",
        "impl A { pub fn set(&mut self, on: bool) {} }",
        "impl A for B { fn f(a: u8, b: bool) {} }",
    ] {
        assert!(!found(right).has_bare_bool, "{right}");
    }
    assert_eq!(functions("#[cfg(test)] mod tests { fn f() {} }"), []);
    assert!(has_reason(
        "//! A list.\n//!\n//! This file is long because it is one.\nuse a;"
    ));
    assert!(!has_reason(
        "//! A list.\nuse a;\n//! This file is long because it is one."
    ));
}
