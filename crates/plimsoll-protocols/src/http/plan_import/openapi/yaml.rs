//! Parses a description in YAML to the value that it has in JSON.

use serde_json::Value;
use serde_saphyr::{Options, budget, options};

/// The maximum number of nodes in a description; the largest published descriptions have several hundred thousand.
const MAX_NODES: usize = 5_000_000;
/// The maximum number of parser events; a node causes up to two.
const MAX_EVENTS: usize = 2 * MAX_NODES;

/// Parses a text in YAML 1.2 whose keys are strings.
///
/// # Errors
/// Returns a message with line and column.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let limits = budget! {
        max_events: MAX_EVENTS,
        max_nodes: MAX_NODES,
    };
    let options: Options = options! {
        budget: limits,
        // YAML 1.2 reads `yes` and `on` as strings.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let problem = e.without_snippet().to_string();
        let problem = problem.lines().next().unwrap_or_default();
        match e.location() {
            Some(at) => format!(
                "line {}, column {}: not YAML: {problem}",
                at.line(),
                at.column()
            ),
            None => format!("not YAML: {problem}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_has_values_of_json() {
        let text = "a: &x [1, 2.5, yes, ~, '7', 2026-01-01]\n200: {b: *x}\nc: |\n  two\n  lines\n";
        assert_eq!(
            parse(text),
            Ok(json!({
                "a": [1, 2.5, "yes", null, "7", "2026-01-01"],
                "200": {"b": [1, 2.5, "yes", null, "7", "2026-01-01"]},
                "c": "two\nlines\n"
            }))
        );
    }

    #[test]
    fn broken_yaml_has_line_and_column() {
        for (text, expected) in [
            ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column "),
            ("a: 1\n  b: 2\n", "line 2, column "),
            ("a: 1\na: 2\n", "line 2, column 1: "),
            ("a: *unknown\n", "line 1, column 4: "),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.starts_with(expected), "{text}: {problem}");
        }
        let lines = (0..20).map(|n| {
            format!(
                "a{}: &a{} [*a{n}, *a{n}, *a{n}, *a{n}, *a{n}, *a{n}]\n",
                n + 1,
                n + 1
            )
        });
        let bomb = format!("a0: &a0 [x]\n{}", lines.collect::<String>());
        assert!(parse(&bomb).is_err());
    }
}
