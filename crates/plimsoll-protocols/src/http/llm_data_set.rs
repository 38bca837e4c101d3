//! The file of `--dataset`: which of its columns are prompts, messages and limits of answers.

use std::path::Path;

use plimsoll_model::formats::input;
use plimsoll_model::rows::template::Rows;

use crate::interface::protocol_module::UsageError;

/// Accepted names of the prompt column. The first one that the file has is used.
const PROMPT_COLUMNS: [&str; 7] = [
    "prompt",
    "text",
    "question",
    "query",
    "input",
    "instruction",
    "content",
];

/// Accepted names of the column with the maximum number of tokens of an answer.
const LIMIT_COLUMNS: [&str; 5] = [
    "output_tokens",
    "output_length",
    "output_len",
    "expected_output_len",
    "max_tokens",
];

/// The columns of a data set from which requests are built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DataSetColumns {
    /// The input of each request.
    pub(super) input: DataSetInput,
    /// The template field, such as `{{row.max_tokens}}`, for the maximum number of tokens of an answer.
    pub(super) limit: Option<String>,
}

/// The input of a request, as a template field such as `{{row.prompt}}`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DataSetInput {
    /// The field of a plain-text prompt.
    Prompt(String),
    /// The field of a JSON list of messages.
    Messages(String),
}

impl DataSetColumns {
    /// Reads the file.
    ///
    /// # Errors
    /// Returns an error if it can't be read, or has neither prompts nor messages.
    pub(super) fn read(file: &Path) -> Result<DataSetColumns, UsageError> {
        const DATA_SET_HELP: &str = "a data set is JSON of ShareGPT (conversations), JSON lines with messages, or JSON lines or \
             CSV with a column such as prompt, and output_tokens where answers have a limit";
        let shown = file.display();
        let text = input::read_to_string(file).map_err(|e| {
            UsageError::new(
                format_args!("--dataset: can't read {shown}: {e}"),
                DATA_SET_HELP,
            )
        })?;
        let rows = Rows::parse(&shown.to_string(), &text)
            .map_err(|e| UsageError::new(format_args!("--dataset: {e}"), DATA_SET_HELP))?;
        DataSetColumns::find(&rows).ok_or_else(|| {
            UsageError::new(
                format_args!("--dataset: {shown} has neither prompts nor messages"),
                DATA_SET_HELP,
            )
        })
    }

    fn find(rows: &Rows) -> Option<DataSetColumns> {
        let first = |names: &[&str]| {
            let mut known = names.iter().filter(|name| rows.column(name).is_some());
            known.next().map(|name| format!("{{{{row.{name}}}}}"))
        };
        let messages = first(&["messages"]).map(DataSetInput::Messages);
        let input = messages.or_else(|| first(&PROMPT_COLUMNS).map(DataSetInput::Prompt))?;
        let limit = first(&LIMIT_COLUMNS);
        Some(DataSetColumns { input, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_their_names() {
        let found = |text: &str| DataSetColumns::find(&Rows::parse("f", text).expect(text));
        let columns = |input: DataSetInput, limit: Option<&str>| {
            let limit = limit.map(str::to_owned);
            Some(DataSetColumns { input, limit })
        };
        let prompt = |name: &str| DataSetInput::Prompt(format!("{{{{row.{name}}}}}"));
        assert_eq!(
            found(r#"{"text": "a", "output_length": 5}"#),
            columns(prompt("text"), Some("{{row.output_length}}"))
        );
        assert_eq!(found("prompt,n\na,1\n"), columns(prompt("prompt"), None));
        let messages = DataSetInput::Messages("{{row.messages}}".to_owned());
        assert_eq!(
            found(r#"{"messages": [{"role": "user", "content": "a"}]}"#),
            columns(messages, None)
        );
        let list = r#"[{"conversations": [{"from": "human", "value": "a"}]}]"#;
        assert_eq!(found(list), columns(prompt("prompt"), None));
        assert_eq!(found("a,b\n1,2\n"), None);
    }
}
