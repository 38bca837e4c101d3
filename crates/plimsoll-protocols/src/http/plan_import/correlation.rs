//! Finds values of earlier responses in later requests, and replaces them by fields.
//!
//! Values of responses are stored by their text, so that each value of a request needs one lookup. A value that a
//! request sent before any response contained it did not come from a response, even if a later response contains it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use plimsoll_model::formats::redaction;

use super::answer_values::{
    AnswerValue, MAX_SEARCHED_BODY_BYTES, answer_values, body_source, build_capture_regex,
    redirect_path,
};
use super::exchange::{PlusSign, RecordedExchange, percent_decode};
use super::nested_values::{embedded_secrets, nested_values};
use super::request_parts::find_pieces;
use super::request_value::{RequestValue, ValueSyntax};
use super::secrets::{SecretPlaceholders, is_password, is_secret_value};
use super::template_text::TemplateText;
use super::value_classes::{
    entity_words, id_owner_words, is_common, is_identifying_name, looks_random,
};
use crate::journey::TakeSpec;

/// The maximum number of responses that are stored as sources of the same value.
const MAX_SOURCES_PER_VALUE: usize = 8;
/// The maximum total size of the pages that are searched for values, in bytes.
const MAX_SEARCHED_PAGE_BYTES: usize = 512 << 20;
/// Names of built-in template fields, to which values can't be bound.
const BUILT_IN_NAMES: [&str; 7] = ["seq", "uuid", "random", "now", "client", "message", "row"];

/// A value of a response, and the name that its step gives it once a later request uses it.
#[derive(Debug)]
struct KnownValue {
    step: usize,
    value: AnswerValue,
    name: Option<String>,
}

/// The replacement of a value in a request.
enum ValueReplacement {
    Field(String),
    /// An environment variable.
    Variable(String),
}

/// The position of a value in the text of a request, and its replacement.
type FoundValue = (Range<usize>, ValueReplacement);

/// The result of the correlation: the values that each step takes, the step and name of each value in an item of a
/// list, and the plan's secrets.
type CorrelationResult = (
    Vec<BTreeMap<String, TakeSpec>>,
    Vec<(usize, String)>,
    SecretPlaceholders,
);

/// The values and pages of all exchanges before the current request.
#[derive(Debug)]
pub(super) struct ValueCorrelator {
    known: HashMap<String, Vec<KnownValue>>,
    /// Values that requests sent before any response contained them.
    sent: HashSet<String>,
    /// URLs to which responses redirected, most recent last.
    places: Vec<(String, KnownValue)>,
    /// The steps and bodies of all responses so far, for searching by regular expressions.
    pages: Vec<(usize, String)>,
    searched: usize,
    /// The sources of the values that each step takes, by name.
    takes: Vec<BTreeMap<String, TakeSpec>>,
    names: HashSet<String>,
    /// The step and name of each value that comes from an item of a list.
    list_items: Vec<(usize, String)>,
    pub(super) secrets: SecretPlaceholders,
}

impl ValueCorrelator {
    pub(super) fn new(secrets: SecretPlaceholders) -> ValueCorrelator {
        ValueCorrelator {
            known: HashMap::new(),
            sent: HashSet::new(),
            places: Vec::new(),
            pages: Vec::new(),
            searched: 0,
            takes: Vec::new(),
            names: BUILT_IN_NAMES.into_iter().map(str::to_owned).collect(),
            list_items: Vec::new(),
            secrets,
        }
    }

    /// Adds the response of the current step, after its request has been processed.
    pub(super) fn add_answer(&mut self, exchange: &RecordedExchange) {
        let step = self.takes.len();
        self.takes.push(BTreeMap::new());
        for value in answer_values(exchange) {
            // A common value is kept, because an earlier request may have sent it with another meaning.
            if self.sent.contains(&value.value) && !is_common(&value.value) {
                continue;
            }
            let known = self.known.entry(value.value.clone()).or_default();
            if known.len() < MAX_SOURCES_PER_VALUE {
                known.push(KnownValue {
                    step,
                    value,
                    name: None,
                });
            }
        }
        if let Some((path, take)) =
            redirect_path(exchange).filter(|(path, _)| may_vary_between_users(path))
        {
            let value = AnswerValue {
                value: path.to_owned(),
                take,
                name: "location".to_owned(),
                words: BTreeSet::new(),
                owner: BTreeSet::new(),
                is_distinctive: true,
                is_in_list: false,
            };
            let known = KnownValue {
                step,
                value,
                name: None,
            };
            let url = format!("{}{path}", exchange.origin);
            self.places.push((url, known));
        }
        let body = exchange
            .answer
            .as_ref()
            .and_then(|answer| answer.body.as_ref());
        self.pages.extend(
            body.filter(|body| body.len() <= MAX_SEARCHED_BODY_BYTES)
                .map(|body| (step, body.clone())),
        );
    }

    /// Returns the values that each step takes from its response, and the rest of the state that the plan needs.
    pub(super) fn into_result(self) -> CorrelationResult {
        (self.takes, self.list_items, self.secrets)
    }

    /// Returns a field in place of `path`, if an earlier response redirected to this path of the origin.
    pub(super) fn redirect_field(&mut self, origin: &str, path: &str) -> Option<TemplateText> {
        let is_it = |url: &str| url.strip_prefix(origin) == Some(path);
        let at = self.places.iter().rposition(|(url, _)| is_it(url))?;
        let (url, mut known) = self.places.remove(at);
        let name = self.bind_value(&mut known);
        self.places.push((url, known));
        let mut text = TemplateText::default();
        text.push_field(&name);
        Some(text)
    }

    /// Returns the text with fields in place of secrets and of values of earlier responses. `values`: the values of the
    /// text, in order.
    pub(super) fn replace_known_values(
        &mut self,
        text: &str,
        values: &[RequestValue],
    ) -> TemplateText {
        let found = values.iter();
        let found = found
            .flat_map(|value| self.find_replacements(text, value))
            .collect();
        replace_values(text, found)
    }

    /// Returns the value of a header field with fields in place of values of earlier responses. Secrets are not
    /// replaced.
    pub(super) fn replace_in_header_value(&mut self, name: &str, text: &str) -> TemplateText {
        let credentials = text.find(' ').map_or(0, |blank| blank + 1);
        let mut wholes = vec![0, credentials];
        wholes.dedup();
        for begin in wholes {
            let value = RequestValue {
                span: begin..text.len(),
                value: text[begin..].to_owned(),
                name: name.to_owned(),
                place: ValueSyntax::Text,
            };
            let found = self.find_bound_name(&value);
            if let Some(field) = found.or_else(|| self.search_pages(&value)) {
                let mut made = TemplateText::from_literal(&text[..begin]);
                if made.can_append_field() {
                    made.push_field(&field);
                    return made;
                }
            }
        }
        let whole = RequestValue {
            span: 0..text.len(),
            value: text.to_owned(),
            name: name.to_owned(),
            place: ValueSyntax::Text,
        };
        let found = self.find_known_pieces(text, &whole);
        if found.is_empty() {
            self.sent.insert(text[credentials..].to_owned());
            self.sent.insert(text.to_owned());
        }
        replace_values(text, found)
    }

    /// Returns the name bound to the cookie `name`, if an earlier response set it to `value`.
    pub(super) fn cookie_field(&mut self, name: &str, value: &str) -> Option<String> {
        let is_it = |known: &KnownValue| match &known.value.take {
            TakeSpec::From(table) => table.cookie.as_deref() == Some(name),
            TakeSpec::Json(_) => false,
        };
        self.bind_matching_value(value, &is_it)
    }

    fn find_replacements(&mut self, text: &str, value: &RequestValue) -> Vec<FoundValue> {
        let held = &text[value.span.clone()];
        let is_one_segment = !is_segment(value) || !value.value.contains('/');
        // The value of a field inside another value is not encoded for the syntax around it, so there only values that
        // need no encoding are replaced.
        let is_plain = value.place != ValueSyntax::Embedded || held == value.value;
        let takes_field = is_one_segment && is_plain;
        if let Some(name) = self.find_bound_name(value).filter(|_| takes_field) {
            return vec![(value.span.clone(), ValueReplacement::Field(name))];
        }
        if is_secret_value(value) {
            // A token may come from a page; a password never does.
            let is_given = takes_field && !is_password(&value.name);
            if let Some(name) = is_given.then(|| self.search_pages(value)).flatten() {
                return vec![(value.span.clone(), ValueReplacement::Field(name))];
            }
            return vec![(value.span.clone(), self.secret_placeholder(value, held))];
        }
        let nested = nested_values(text, value);
        if !nested.is_empty() {
            let found = nested
                .iter()
                .flat_map(|part| self.find_replacements(text, part));
            return found.collect();
        }
        let secrets = embedded_secrets(text, value);
        let mut found = self.find_known_pieces(text, value);
        found.retain(|(span, _)| {
            let mut secrets = secrets.iter().map(|secret| &secret.span);
            secrets.all(|secret| span.end <= secret.start || secret.end <= span.start)
        });
        for secret in &secrets {
            found.extend(self.find_replacements(text, secret));
        }
        found.sort_by_key(|(span, _)| span.start);
        if found.is_empty() {
            if let Some(name) = self.search_pages(value).filter(|_| takes_field) {
                return vec![(value.span.clone(), ValueReplacement::Field(name))];
            }
            self.sent.insert(value.value.clone());
        }
        found
    }

    /// Returns the placeholder of a secret. `held`: the secret as encoded in the request.
    fn secret_placeholder(&mut self, value: &RequestValue, held: &str) -> ValueReplacement {
        self.sent.insert(value.value.clone());
        let is_variable =
            value.place == ValueSyntax::Query && redaction::is_secret_parameter_name(&value.name);
        // A variable replaces the encoded text of a query parameter, so it contains the encoded value.
        if is_variable {
            ValueReplacement::Variable(self.secrets.assign_variable(&value.name, held))
        } else {
            ValueReplacement::Field(format!("row.{}", self.secrets.assign_value_column(value)))
        }
    }

    /// Returns the pieces of a value that equal distinctive values of responses, with their replacements.
    fn find_known_pieces(&mut self, text: &str, value: &RequestValue) -> Vec<FoundValue> {
        let held = &text[value.span.clone()];
        if held != value.value || value.place == ValueSyntax::JsonNumber {
            return Vec::new();
        }
        let mut found: Vec<FoundValue> = Vec::new();
        for piece in find_pieces(held) {
            let span = value.span.start + piece.start..value.span.start + piece.end;
            let is_covered = found
                .last()
                .is_some_and(|(known, _)| span.start < known.end);
            if is_covered {
                continue;
            }
            let is_distinctive = |known: &KnownValue| known.value.is_distinctive;
            match self.bind_matching_value(&held[piece.clone()], &is_distinctive) {
                Some(name) => found.push((span, ValueReplacement::Field(name))),
                // The whole value is not marked as sent yet, since a page may contain it.
                None if piece.len() == held.len() => {}
                None => drop(self.sent.insert(held[piece].to_owned())),
            }
        }
        found
    }

    /// Returns the name bound to the response value that equals this value and identifies the same thing.
    fn find_bound_name(&mut self, value: &RequestValue) -> Option<String> {
        // A value that is not distinctive is matched only if the names in request and response share a word.
        let is_common = is_common(&value.value);
        let is_segment = is_segment(value);
        let words = if is_common && !is_segment {
            id_owner_words(&value.name)
        } else {
            entity_words(&value.name)
        };
        // A common value counts as identified, because its `words` are already limited to the owner of an id.
        let is_identified = is_segment || is_common || is_identifying_name(&value.name);
        let shares = |known: &KnownValue| {
            let its_words = if is_common {
                &known.value.owner
            } else {
                &known.value.words
            };
            known.value.is_distinctive || is_identified && !words.is_disjoint(its_words)
        };
        self.bind_matching_value(&value.value, &shares)
    }

    fn bind_matching_value(
        &mut self,
        value: &str,
        is_it: &dyn Fn(&KnownValue) -> bool,
    ) -> Option<String> {
        let known = self.known.get_mut(value)?;
        let at = known.iter().position(is_it)?;
        if let Some(name) = &known[at].name {
            return Some(name.clone());
        }
        let mut found = known.swap_remove(at);
        let name = self.bind_value(&mut found);
        let known = self.known.entry(value.to_owned()).or_default();
        known.push(found);
        // Restores the order of the responses.
        known.sort_by_key(|known| known.step);
        Some(name)
    }

    /// Makes the value's step take it, and returns the name to which it is bound.
    fn bind_value(&mut self, known: &mut KnownValue) -> String {
        if let Some(name) = &known.name {
            return name.clone();
        }
        let name = self.unused_name(&known.value.name);
        self.takes[known.step].insert(name.clone(), known.value.take.clone());
        if known.value.is_in_list {
            self.list_items.push((known.step, name.clone()));
        }
        known.name = Some(name.clone());
        name
    }

    fn unused_name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        name
    }

    /// Searches earlier pages for a random value. Returns the name to which the found value is bound.
    fn search_pages(&mut self, value: &RequestValue) -> Option<String> {
        if !looks_random(&value.value) || self.sent.contains(&value.value) {
            return None;
        }
        let mut found = None;
        for (step, page) in &self.pages {
            self.searched += page.len();
            if self.searched > MAX_SEARCHED_PAGE_BYTES {
                return None;
            }
            if let Some(expression) = build_capture_regex(page, &value.value) {
                found = Some((*step, expression));
                break;
            }
        }
        let (step, expression) = found?;
        let decoded = percent_decode(&value.name, PlusSign::Plus).unwrap_or_default();
        let mut known = KnownValue {
            step,
            value: AnswerValue {
                value: value.value.clone(),
                take: body_source(expression),
                name: super::answer_values::to_snake_case(&decoded),
                words: BTreeSet::new(),
                owner: BTreeSet::new(),
                is_distinctive: true,
                is_in_list: false,
            },
            name: None,
        };
        let name = self.bind_value(&mut known);
        self.known
            .entry(value.value.clone())
            .or_default()
            .push(known);
        Some(name)
    }
}

/// Returns the text with the replacements. `found`: the replacements, in the order of the text.
fn replace_values(text: &str, found: Vec<FoundValue>) -> TemplateText {
    let mut made = TemplateText::default();
    let mut at = 0;
    for (span, replacement) in found {
        made.push(&text[at..span.start]);
        at = span.start;
        if made.can_append_field() {
            match replacement {
                ValueReplacement::Field(name) => made.push_field(&name),
                ValueReplacement::Variable(name) => made.push_variable(&name),
            }
            at = span.end;
        }
    }
    made.push(&text[at..]);
    made
}

fn is_segment(value: &RequestValue) -> bool {
    matches!(
        value.place,
        ValueSyntax::Segment | ValueSyntax::TokenSegment
    )
}

/// Returns whether the path of a redirect may differ between users.
fn may_vary_between_users(path: &str) -> bool {
    path.contains('?') || path.bytes().any(|byte| byte.is_ascii_digit())
}
