//! One word, one meaning: types whose names end with a word of `docs/terminology.md` are defined where its table "In
//! the source" says, constants are not named by vague words, and few names stand for several types.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::protocols::words_of;
use crate::ratchet::Bounds;
use crate::sizes::is_for_tests;
use crate::sources::sources;

const PAGE: &str = "docs/terminology.md";
/// The types that one name may stand for.
const MAX_TYPES_OF_ONE_NAME: usize = 3;
/// Names that do not say what a constant limits or holds.
const VAGUE_CONSTANTS: [&str; 18] = [
    "AHEAD", "BEHIND", "BESIDES", "ENOUGH", "EVERY", "FAREWELL", "FEW", "HARMLESS", "LEAST",
    "LITTLE", "LISTENED", "MOST", "MUCH", "NAP", "NOTICE", "PLENTY", "SEA", "SOON",
];

/// The types and constants that a file defines outside of its tests, with their lines.
#[derive(Default)]
struct Definitions {
    types: Vec<(String, usize)>,
    constants: Vec<(String, usize)>,
}

impl Definitions {
    fn of(text: &str) -> Definitions {
        let mut definitions = Definitions::default();
        definitions.visit_file(&syn::parse_file(text).expect("it compiles"));
        definitions
    }

    fn add_type(&mut self, name: &syn::Ident) {
        let line = name.span().start().line;
        self.types.push((name.to_string(), line));
    }

    fn add_constant(&mut self, name: &syn::Ident) {
        let line = name.span().start().line;
        self.constants.push((name.to_string(), line));
    }
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add_type(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add_type(&item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.add_type(&item.ident);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add_type(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add_type(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add_constant(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add_constant(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add_constant(&item.ident);
    }
}

/// Returns the definitions of each file that is not only compiled for tests.
fn definitions() -> impl Iterator<Item = (&'static str, Definitions)> {
    let shipped = sources().iter().filter(|source| !source.is_test);
    shipped.map(|source| (source.file.as_str(), Definitions::of(&source.text)))
}

/// The table "In the source".
#[derive(Default)]
struct Terms {
    /// Where types may be defined whose names end with a word: crates without `plimsoll-`, or modules of one.
    places: BTreeMap<String, BTreeSet<String>>,
    /// Words that the names of types are not checked for.
    unchecked: BTreeSet<String>,
    /// Types in another sense, written `engine/worker::Lane`.
    exceptions: BTreeSet<String>,
}

impl Terms {
    fn parse(section: &str) -> Terms {
        let mut terms = Terms::default();
        let rows = section.lines().filter(|line| line.starts_with('|'));
        for row in rows.skip(2) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [term, _, not, types] = cells[..] else {
                panic!("{PAGE}: a row without four cells: {row}");
            };
            // A term of two words is one sense of its last word.
            let word = term.rsplit(' ').next().unwrap_or(term).to_owned();
            if types == "any" {
                terms.unchecked.insert(word);
                continue;
            }
            assert!(
                types == "–" || types.contains('`'),
                "{PAGE}: `{term}` says nothing of types; write – if there are none"
            );
            terms
                .places
                .entry(word)
                .or_default()
                .extend(code_spans(types));
            terms
                .exceptions
                .extend(code_spans(not).filter(|it| it.contains("::")));
        }
        terms
    }

    /// Returns what contradicts the table: types in other places, and places or exceptions without such a type.
    fn contradictions<'a>(&self, types: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
        let (mut found, mut used) = (Vec::new(), BTreeSet::new());
        for (file, name) in types {
            let Some((word, places)) = self.term_of(name) else {
                continue;
            };
            let place = place_of(file);
            let full = format!("{place}::{name}");
            let allowed = places.iter().find(|allowed| is_in(&place, allowed));
            if let Some(allowed) = allowed {
                used.insert(format!("{word}: {allowed}"));
            } else if self.exceptions.contains(&full) {
                used.insert(full);
            } else {
                found.push(format!(
                    "{file}: `{name}` ends with \"{word}\", which means something else in {PAGE}: choose another word, \
                     or add the place to the row"
                ));
            }
        }
        let places = self.places.iter();
        let places =
            places.flat_map(|(word, all)| all.iter().map(move |it| format!("{word}: {it}")));
        let listed = places.chain(self.exceptions.iter().cloned());
        let unused = listed.filter(|it| !used.contains(it));
        found.extend(unused.map(|it| format!("{PAGE}: `{it}`: no such type; take it out")));
        found
    }

    /// Returns the word of the table with which a type's name ends, perhaps in the plural, and its places.
    fn term_of(&self, name: &str) -> Option<(&String, &BTreeSet<String>)> {
        let last = words_of(name).pop()?;
        let singular = [
            Some(last.as_str()),
            last.strip_suffix('s'),
            last.strip_suffix("es"),
        ];
        let word = singular
            .into_iter()
            .flatten()
            .find(|word| self.places.contains_key(*word))?;
        self.places
            .get_key_value(word)
            .filter(|_| !self.unchecked.contains(word))
    }
}

/// Returns the texts in backticks.
fn code_spans(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// `engine/worker/call_starts` of `crates/plimsoll-engine/src/worker/call_starts.rs`.
fn place_of(file: &str) -> String {
    let place = file
        .strip_prefix("crates/")
        .unwrap_or(file)
        .replacen("/src/", "/", 1);
    let place = place.strip_suffix(".rs").unwrap_or(&place);
    let place = place.strip_suffix("/mod").unwrap_or(place);
    place.strip_prefix("plimsoll-").unwrap_or(place).to_owned()
}

fn is_in(place: &str, outer: &str) -> bool {
    let rest = place.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[test]
fn types_use_terms_in_their_one_meaning() {
    let page = crate::read(PAGE);
    let terms = Terms::parse(crate::section(&page, "In the source"));
    assert!(terms.places.len() > 40, "{PAGE}: is the table there?");
    let all: Vec<(&str, Definitions)> = definitions().collect();
    let types = all.iter().flat_map(|(file, definitions)| {
        let names = definitions.types.iter();
        names.map(move |(name, _)| (*file, name.as_str()))
    });
    let found = terms.contradictions(types);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn constants_have_no_vague_names() {
    let mut found = Vec::new();
    for (file, definitions) in definitions() {
        for (name, line) in definitions.constants {
            if VAGUE_CONSTANTS.contains(&name.as_str()) {
                found.push(format!("{file}:{line}: {name}"));
            }
        }
    }
    assert!(
        found.is_empty(),
        "limits are MAX_, MIN_ or DEFAULT_ with a unit last:\n{}",
        found.join("\n")
    );
}

#[test]
fn names_stand_for_at_most_three_types() {
    let mut counts = BTreeMap::new();
    for (_, definitions) in definitions() {
        for (name, _) in definitions.types {
            *counts.entry(name).or_insert(0) += 1;
        }
    }
    Bounds::read("types of one name").hold(&counts, MAX_TYPES_OF_ONE_NAME);
}

#[test]
fn term_table_rejects_types_in_other_senses() {
    let terms = Terms::parse(
        "| word | in the source | not | types |\n|---|---|---|---|\n\
         | lane | a load | a connection (`engine/worker::Lane`) | `model/lanes` |\n\
         | batch | calls | – | – |\n\
         | byte stream | bytes | – | `relays` |\n\
         | stop request | an order | – | any |\n",
    );
    let check = |types: &[(&'static str, &'static str)]| {
        let expected = [
            ("crates/plimsoll-engine/src/worker.rs", "Lane"),
            ("crates/plimsoll-model/src/lanes/mod.rs", "PlanLanes"),
            (
                "crates/plimsoll-relays/src/gateway/stream.rs",
                "ClientStream",
            ),
        ];
        terms.contradictions([&expected[..], types].concat().into_iter())
    };
    assert_eq!(check(&[]), Vec::<String>::new());
    let others = "crates/plimsoll-relays/src/lanes.rs";
    for wrong in ["Lane", "ClosedLanes", "Batch", "CallBatches"] {
        let found = check(&[(others, wrong)]);
        assert!(
            found.len() == 1 && found[0].contains(wrong),
            "{wrong}: {found:?}"
        );
    }
    for right in ["LaneWeight", "Planes", "StopRequest", "HttpStream"] {
        assert_eq!(check(&[(others, right)]), Vec::<String>::new(), "{right}");
    }
    let none = terms.contradictions(std::iter::empty());
    assert_eq!(
        none,
        [
            "docs/terminology.md: `lane: model/lanes`: no such type; take it out",
            "docs/terminology.md: `stream: relays`: no such type; take it out",
            "docs/terminology.md: `engine/worker::Lane`: no such type; take it out",
        ]
    );
}

#[test]
fn definitions_exclude_tests_and_associated_types() {
    let text = "struct A; enum B {} union C { a: u8 } type D = u8;\ntrait E { type F; }\nconst G: u8 = 0;\n\
                impl E for A { type F = A; }\nimpl A { const H: u8 = 0; }\nfn f() { struct I; static J: u8 = 0; }\n\
                #[cfg(test)]\nmod tests { struct K; const L: u8 = 0; }\n";
    let definitions = Definitions::of(text);
    let names = |all: &[(String, usize)]| {
        all.iter()
            .map(|(name, _)| name.as_str())
            .collect::<String>()
    };
    assert_eq!(names(&definitions.types), "ABCDEI");
    assert_eq!(names(&definitions.constants), "GHJ");
    assert_eq!(definitions.constants[0].1, 3);
}
