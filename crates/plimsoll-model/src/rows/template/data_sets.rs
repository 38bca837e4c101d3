//! Converts data sets that are not files of rows: lists of URLs, and conversations in the format of ShareGPT.

use serde_json::{Map, Value, json};

/// Names of the person in a conversation.
const USER_ROLE_NAMES: [&str; 2] = ["human", "user"];

/// Names of the model in a conversation.
const MODEL_ROLE_NAMES: [&str; 4] = ["gpt", "assistant", "chatgpt", "model"];

/// Returns whether a text is a list of URLs: its first line is one, and not a line of CSV.
pub(super) fn is_url_list(text: &str) -> bool {
    url_lines(text).next().is_some_and(|(_, line)| {
        find_url(line).is_some_and(|url| !url.contains([',', ';', '"']) || url.contains('?'))
    })
}

/// Returns the lines that are neither empty nor comments, with their numbers from 1.
fn url_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| (index + 1, line))
}

/// Returns the URL in a line, which may be preceded by `GET`; `None`: the line contains anything else.
fn find_url(line: &str) -> Option<&str> {
    let url = line.strip_prefix("GET ").unwrap_or(line).trim();
    let (scheme, rest) = url.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_scheme && !rest.is_empty() && !url.contains(char::is_whitespace)).then_some(url)
}

/// Returns the columns of a list of URLs, as values of rows: the URL, and what follows the slash after its host.
///
/// # Errors
/// Returns an error with the number of the first line that is not a URL.
pub(super) fn url_columns(file: &str, text: &str) -> Result<[Vec<Box<str>>; 2], String> {
    let (mut urls, mut relatives) = (Vec::new(), Vec::new());
    for (number, line) in url_lines(text) {
        let url = find_url(line)
            .ok_or_else(|| format!("{file}, line {number}: not a URL, unlike the first line"))?;
        let (_, rest) = url.split_once("://").unwrap_or_default();
        let (_, relative) = rest.split_once('/').unwrap_or_default();
        urls.push(url.into());
        relatives.push(relative.into());
    }
    Ok([urls, relatives])
}

/// Returns conversations as JSON lines that have the first question as `prompt` and its answer as `answer`; `None` if
/// the text contains no conversations. The text is a JSON list, or has one conversation per line.
///
/// # Errors
/// Returns an error if the text is not JSON, or if no conversation has a question.
pub(super) fn conversation_lines(file: &str, text: &str) -> Option<Result<String, String>> {
    let trimmed = text.trim_start();
    let bytes = trimmed.as_bytes();
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_HEAD_BYTES)]);
    let is_list = trimmed.starts_with('[');
    if !head.contains("\"conversations\"") && !head.contains("\"conversation\"") {
        return None;
    }
    let objects: Result<Vec<Map<String, Value>>, String> = if is_list {
        serde_json::from_str(trimmed).map_err(|e| format!("{file}: {e}"))
    } else {
        let lines = text.lines().enumerate();
        lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(index, line)| {
                serde_json::from_str(line).map_err(|e| format!("{file}, line {}: {e}", index + 1))
            })
            .collect()
    };
    Some(objects.and_then(|objects| {
        let rows: Vec<String> = objects.iter().filter_map(first_turn).collect();
        if rows.is_empty() {
            return Err(format!(
                "{file}: no conversation begins with a question (from: \"human\" or \"user\")"
            ));
        }
        Ok(rows.join("\n"))
    }))
}

/// Maximum number of bytes at the start of a file that are searched for the key of conversations.
const MAX_HEAD_BYTES: usize = 4096;

/// Returns the first question of a conversation and its answer as a JSON line; `None` without a question.
fn first_turn(conversation: &Map<String, Value>) -> Option<String> {
    let turns = conversation
        .get("conversations")
        .or(conversation.get("conversation"))?
        .as_array()?;
    let text_of = |names: &[&str], from: usize| {
        let turn = turns.iter().enumerate().skip(from).find(|(_, turn)| {
            let speaker = turn.get("from").or(turn.get("role"));
            speaker
                .and_then(Value::as_str)
                .is_some_and(|name| names.contains(&name))
        })?;
        let text = ["value", "content", "text"]
            .iter()
            .find_map(|key| turn.1.get(*key)?.as_str())?;
        Some((turn.0, text))
    };
    let (at, prompt) = text_of(&USER_ROLE_NAMES, 0)?;
    let answer = text_of(&MODEL_ROLE_NAMES, at).map_or("", |(_, text)| text);
    let id = conversation.get("id").cloned().unwrap_or_default();
    Some(json!({ "id": id, "prompt": prompt, "answer": answer }).to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Rows;

    fn column(text: &str, name: &str) -> Vec<String> {
        let rows = Rows::parse("f", text).expect(text);
        let column = rows.column(name).expect(name);
        column.values().map(|value| value.into_owned()).collect()
    }

    #[test]
    fn lists_of_urls_are_rows() {
        let text = "# two pages\nhttp://a.test/x?y=1,2\n\nGET http://a.test\n";
        assert_eq!(
            column(text, "url"),
            ["http://a.test/x?y=1,2", "http://a.test"]
        );
        assert_eq!(column(text, "relative"), ["x?y=1,2", ""]);
        let error = Rows::parse("f", "http://a.test/\nhttp://a.test/ POST x\n").unwrap_err();
        assert!(error.contains("f, line 2: not a URL"), "{error}");
        // A column of CSV may be named after a URL.
        assert_eq!(column("http://schema.test/name,b\n1,2\n", "b"), ["2"]);
    }

    #[test]
    fn conversations_are_rows_of_first_questions() {
        let list = r#"[{"id": "7", "conversations": [{"from": "system", "value": "s"},
            {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
            {"conversations": []}]"#;
        assert_eq!(column(list, "prompt"), ["Why?"]);
        assert_eq!(column(list, "answer"), ["So."]);
        let lines = "{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}]}\n\
            {\"conversations\": [{\"role\": \"user\", \"content\": \"b\"}]}\n";
        assert_eq!(column(lines, "prompt"), ["a", "b"]);
        let error = Rows::parse("f", r#"[{"conversations": []}]"#).unwrap_err();
        assert!(
            error.contains("no conversation begins with a question"),
            "{error}"
        );
        let error = Rows::parse("f", r#"[{"conversations": 1}"#).unwrap_err();
        assert!(error.starts_with("f: "), "{error}");
    }
}
