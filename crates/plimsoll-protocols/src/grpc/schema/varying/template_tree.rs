//! JSON whose strings and keys may contain templates, parsed once when a plan is resolved.

use plimsoll_model::rows::template::{FieldScope, FieldSource, RowColumn, Template, has_fields};
use serde_json::Value;

/// JSON whose strings are parsed as templates.
#[derive(Clone, Debug)]
pub(super) enum TemplateTree {
    Constant(Value),
    Template(Template),
    Object(Vec<(String, TemplateTree)>),
    /// An object with a key that varies.
    Keyed(Vec<(Template, TemplateTree)>),
    List(Vec<TemplateTree>),
}

impl TemplateTree {
    /// Returns the column, if the value is a single column.
    pub(super) fn column(&self) -> Option<&RowColumn> {
        match self {
            TemplateTree::Template(template) => match &template.sole_field()?.source {
                FieldSource::Row(column) => Some(column),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the index of the captured value, if the template is a single value of an earlier response.
    pub(super) fn captured_index(&self) -> Option<u16> {
        match self {
            TemplateTree::Template(template) => template.sole_captured_index(),
            _ => None,
        }
    }
}

/// Parses the templates in the strings of a JSON value. Errors contain the path.
pub(super) fn parse_tree(
    value: Value,
    slots: &mut u32,
    scope: FieldScope<'_>,
    path: &str,
) -> Result<TemplateTree, (String, String)> {
    if !has_fields(&value.to_string()) {
        return Ok(TemplateTree::Constant(value));
    }
    match value {
        Value::String(text) => match Template::parse(&text, slots, scope) {
            Ok(template) => Ok(match template.constant_text() {
                Some(text) => TemplateTree::Constant(Value::String(text.to_owned())),
                None => TemplateTree::Template(template),
            }),
            Err(e) => Err((path.to_owned(), e)),
        },
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            items
                .map(|(i, item)| parse_tree(item, slots, scope, &format!("{path}[{i}]")))
                .collect::<Result<_, _>>()
                .map(TemplateTree::List)
        }
        Value::Object(entries) => {
            if entries.keys().any(|key| has_fields(key)) {
                let entries = entries.into_iter();
                return entries
                    .map(|(key, value)| {
                        let path = join_path(path, &key);
                        let key = Template::parse(&key, slots, scope);
                        let key = key.map_err(|e| (path.clone(), e))?;
                        Ok((key, parse_tree(value, slots, scope, &path)?))
                    })
                    .collect::<Result<_, _>>()
                    .map(TemplateTree::Keyed);
            }
            let mut planted = Vec::new();
            for (key, value) in entries {
                let path = join_path(path, &key);
                planted.push((key, parse_tree(value, slots, scope, &path)?));
            }
            Ok(TemplateTree::Object(planted))
        }
        other => Ok(TemplateTree::Constant(other)),
    }
}

pub(super) fn join_path(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}
