//! Rules for comments and test names: comments are sentences with a subject, tests are named by
//! subject and condition, and a choice by a bool is written with `if`.

use std::collections::BTreeMap;

use crate::ratchet::Ratchet;
use crate::sources::{Source, crate_of, sources};

/// Words with which a sentence with a subject seldom begins.
const FRAGMENT_STARTS: [&str; 14] = [
    "And", "As", "At", "But", "By", "For", "From", "In", "Of", "On", "Or", "To", "Where", "With",
];
/// A longer comment may begin with any of them.
const MAX_FRAGMENT_WORDS: usize = 8;
const MAX_TEST_NAME_WORDS: usize = 9;
/// First words that make a test's name a proverb.
const PROVERB_STARTS: [&str; 4] = ["that", "what", "who", "whose"];

/// Returns the comments of a text, each with the number of its first line; consecutive lines of one
/// kind are merged.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let kind = ["///", "//!", "//"]
            .into_iter()
            .find(|kind| line.starts_with(kind));
        let words = kind.map(|kind| line[kind.len()..].trim());
        match (words, found.last_mut()) {
            (Some(words), Some((_, before))) if open == kind => {
                before.push(' ');
                before.push_str(words);
            }
            (Some(words), _) => found.push((number, words.to_owned())),
            (None, _) => {}
        }
        open = kind;
    }
    found
}

fn is_fragment(comment: &str) -> bool {
    let mut words = comment.split_whitespace();
    let first = words.next().unwrap_or_default();
    FRAGMENT_STARTS.contains(&first) && words.count() < MAX_FRAGMENT_WORDS
}

/// Returns the names of functions below `#[test]` and `#[tokio::test…]`.
fn test_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        }
        let declared = line.strip_prefix("async ").unwrap_or(line);
        if let (true, Some(declared)) = (is_test, declared.strip_prefix("fn ")) {
            names.extend(declared.split(['(', '<']).next());
            is_test = false;
        }
    }
    names
}

fn is_proverb(name: &str) -> bool {
    let first = name.split('_').next().unwrap_or_default();
    PROVERB_STARTS.contains(&first) || name.split('_').count() > MAX_TEST_NAME_WORDS
}

/// Returns the lines that are the first arm of a `match` on a bool.
fn bool_arms(text: &str) -> Vec<usize> {
    let lines = (1..).zip(text.lines());
    let arms = lines.filter(|(_, line)| line.trim_start().starts_with("true => "));
    arms.map(|(number, _)| number).collect()
}

/// Checks the places that `find` finds in the sources, by crate.
fn check_findings(table: &'static str, with_tests: bool, find: impl Fn(&Source) -> Vec<String>) {
    let mut by_crate = BTreeMap::<String, Vec<String>>::new();
    for source in sources()
        .iter()
        .filter(|source| with_tests || !source.is_test)
    {
        let places = find(source).into_iter();
        let places = places.map(|place| format!("{}:{place}", source.file));
        by_crate
            .entry(crate_of(&source.file).to_owned())
            .or_default()
            .extend(places);
    }
    Ratchet::read(table).hold(&by_crate);
}

#[test]
fn comments_have_a_subject() {
    check_findings("comments without a subject", false, |source| {
        let comments = comments(&source.text).into_iter();
        let fragments = comments.filter(|(_, comment)| is_fragment(comment));
        fragments
            .map(|(number, comment)| format!("{number}: {comment}"))
            .collect()
    });
}

#[test]
fn test_names_are_subject_and_condition() {
    check_findings("proverbs as test names", true, |source| {
        let proverbs = test_names(&source.text).into_iter();
        let proverbs = proverbs.filter(|name| is_proverb(name));
        proverbs.map(|name| format!(" {name}")).collect()
    });
}

#[test]
fn bools_are_not_matched() {
    check_findings("matches on a bool", false, |source| {
        let arms = bool_arms(&source.text).into_iter();
        arms.map(|line| line.to_string()).collect()
    });
}

#[test]
fn detects_fragments_proverbs_and_matches() {
    let text = "//! A head.\n\n/// Of the\n/// plan.\n/// \nfn f() {} // beside\n// In time.\n";
    let found = comments(text);
    assert_eq!(
        found.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
        [1, 3, 7]
    );
    assert!(is_fragment(&found[1].1) && is_fragment(&found[2].1));
    for right in [
        "The plan's name.",
        "In an open loop, arrivals do not wait for answers.",
        "Office hours.",
    ] {
        assert!(!is_fragment(right), "{right}");
    }
    let text = "#[test]\nfn one() {}\n#[tokio::test]\n#[ignore]\nasync fn two() {}\nfn helper() {}";
    assert_eq!(test_names(text), ["one", "two"]);
    for wrong in [
        "what_is_cut_is_cut",
        "whose_failure_it_is",
        "one_two_three_four_five_six_seven_eight_nine_ten",
    ] {
        assert!(is_proverb(wrong), "{wrong}");
    }
    assert!(!is_proverb("whatever_arrives_is_read"));
    assert_eq!(
        bool_arms("match a {\n    true => 1,\n    false => 2,\n}"),
        [2]
    );
}
