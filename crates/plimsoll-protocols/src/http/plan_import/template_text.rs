//! Texts of plans that may contain fields, and TOML syntax for strings and keys.

use std::fmt;

/// A text of literal parts and template fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TemplateText(Vec<TextPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TextPart {
    Literal(String),
    /// The text between the braces.
    Field(String),
    /// The name of an environment variable, written as `$NAME` in a query.
    Variable(String),
}

impl TemplateText {
    /// Creates a text without fields.
    pub(super) fn from_literal(text: &str) -> TemplateText {
        let mut made = TemplateText::default();
        made.push(text);
        made
    }

    /// Appends literal text.
    pub(super) fn push(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(TextPart::Literal(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(TextPart::Literal(text.to_owned())),
        }
    }

    /// Appends another text.
    pub(super) fn append(&mut self, other: TemplateText) {
        for part in other.0 {
            match part {
                TextPart::Literal(text) => self.push(&text),
                field => self.0.push(field),
            }
        }
    }

    /// Appends a field.
    pub(super) fn push_field(&mut self, field: &str) {
        self.0.push(TextPart::Field(field.to_owned()));
    }

    /// Appends an environment variable, which must be the whole value of a query parameter.
    pub(super) fn push_variable(&mut self, name: &str) {
        self.0.push(TextPart::Variable(name.to_owned()));
    }

    /// Returns whether a field can follow: a brace right before the field would be parsed as part of it.
    pub(super) fn can_append_field(&self) -> bool {
        let Some(TextPart::Literal(text)) = self.0.last() else {
            return true;
        };
        let braces = text.bytes().rev().take_while(|byte| *byte == b'{').count();
        braces % 2 == 0
    }

    /// Returns the text if it has no fields.
    pub(super) fn as_literal(&self) -> Option<&str> {
        match &*self.0 {
            [] => Some(""),
            [TextPart::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the text for a step's name, with fields in single braces.
    pub(super) fn to_label(&self) -> String {
        let parts = self.0.iter().map(|part| match part {
            TextPart::Literal(text) => text.clone(),
            TextPart::Field(name) => format!("{{{name}}}"),
            TextPart::Variable(name) => format!("${name}"),
        });
        parts.collect()
    }
}

impl fmt::Display for TemplateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            TextPart::Literal(text) => f.write_str(&text.replace("{{", "{{{{")),
            TextPart::Field(name) => write!(f, "{{{{{name}}}}}"),
            TextPart::Variable(name) => write!(f, "${name}"),
        })
    }
}

/// Returns a string in TOML syntax.
pub(super) fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Returns a key in TOML syntax, without quotes if possible.
pub(super) fn toml_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        toml_string(key)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::rows::template::{FieldScope, Template, TemplatePart};

    use super::*;

    #[test]
    fn braces_are_sent_as_recorded() {
        let names = ["id".to_owned()];
        let scope = FieldScope {
            rows: None,
            captured: &names,
        };
        for text in ["{{x}}", "{{{y", "{", "}}", "{{{{", "a{{{{{b", "{{"] {
            let mut made = TemplateText::from_literal(text);
            if made.can_append_field() {
                made.push_field("id");
            }
            let parsed = Template::parse(&made.to_string(), &mut 0, scope).expect(text);
            let literal: String = parsed
                .parts()
                .iter()
                .map(|part| match part {
                    TemplatePart::Text(text) => text.as_str(),
                    TemplatePart::Field(_) => "",
                })
                .collect();
            assert_eq!(literal, text);
        }
        assert!(!TemplateText::from_literal("{{{").can_append_field());
    }
}
