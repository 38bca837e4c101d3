//! JSON whose strings and keys may contain templates, parsed once when a plan is resolved.

use plimsoll_model::template::{Column, Rows, Source, Template, has_fields};
use serde_json::Value;

/// JSON whose strings are parsed as templates.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Constant(Value),
    Template(Template),
    Object(Vec<(String, Tree)>),
    /// An object with a key that varies.
    Keyed(Vec<(Template, Tree)>),
    List(Vec<Tree>),
}

impl Tree {
    /// Returns the column, if the value is a single column.
    pub(super) fn column(&self) -> Option<&Column> {
        match self {
            Tree::Template(template) => match &template.alone()?.source {
                Source::Row(column) => Some(column),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Parses the templates in the strings of a JSON value. Errors contain the path.
pub(super) fn plant(
    value: Value,
    slots: &mut u32,
    rows: Option<&Rows>,
    path: &str,
) -> Result<Tree, (String, String)> {
    if !has_fields(&value.to_string()) {
        return Ok(Tree::Constant(value));
    }
    match value {
        Value::String(text) => match Template::parse(&text, slots, rows) {
            Ok(template) => Ok(match template.constant() {
                Some(text) => Tree::Constant(Value::String(text.to_owned())),
                None => Tree::Template(template),
            }),
            Err(e) => Err((path.to_owned(), e)),
        },
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            items
                .map(|(i, item)| plant(item, slots, rows, &format!("{path}[{i}]")))
                .collect::<Result<_, _>>()
                .map(Tree::List)
        }
        Value::Object(entries) => {
            if entries.keys().any(|key| has_fields(key)) {
                let entries = entries.into_iter();
                return entries
                    .map(|(key, value)| {
                        let path = join(path, &key);
                        let key = Template::parse(&key, slots, rows);
                        let key = key.map_err(|e| (path.clone(), e))?;
                        Ok((key, plant(value, slots, rows, &path)?))
                    })
                    .collect::<Result<_, _>>()
                    .map(Tree::Keyed);
            }
            let mut planted = Vec::new();
            for (key, value) in entries {
                let path = join(path, &key);
                planted.push((key, plant(value, slots, rows, &path)?));
            }
            Ok(Tree::Object(planted))
        }
        other => Ok(Tree::Constant(other)),
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}
