//! Errors of schemas, methods and messages, with suggestions.

/// Why a schema, a method or a message can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A value in the file of rows does not fit its field.
    #[error("{0}")]
    Row(String),
    /// Any other problem. For `.proto` files this is the compiler's message, which begins with file, line and column.
    #[error("{0}")]
    Other(String),
}

impl SchemaError {
    pub(super) fn new(what: impl ToString) -> SchemaError {
        SchemaError::Other(what.to_string())
    }

    /// Returns the error for a field's value. `right` describes a valid value, and is empty if that is not known.
    pub(super) fn invalid_value(
        message: &str,
        path: &str,
        problem: &str,
        right: &str,
    ) -> SchemaError {
        let (at, instead) = (format_path(path), format_hint(right));
        SchemaError::new(format_args!("message of {message}: {at}{problem}{instead}"))
    }
}

pub(super) fn format_similar_names(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        several => format!("; similar names are {}", several.join(", ")),
    }
}

pub(super) fn format_suggestion_or_fields(near: &[String], fields: &str) -> String {
    match near {
        [] => format!("; its fields are {fields}"),
        near => format_similar_names(near),
    }
}

fn format_hint(right: &str) -> String {
    match right {
        "" => String::new(),
        right => format!("; write {right}"),
    }
}

fn format_path(path: &str) -> String {
    if path == "." {
        String::new()
    } else {
        format!("field {path:?}: ")
    }
}
