//! Reads metrics in the text format of Prometheus, and in OpenMetrics, which extends it.
//!
//! Only names and values are read: labels, types, timestamps and exemplars are skipped. A line that is no sample is
//! skipped, too, because the text comes from a server that may write other extensions.

/// Calls `f` with the name and the value of each sample, in order. A name occurs once for each set of labels.
pub fn for_each_sample<'a>(text: &'a str, mut f: impl FnMut(&'a str, f64)) {
    for line in text.lines() {
        if let Some((name, value)) = parse_sample(line.trim()) {
            f(name, value);
        }
    }
}

/// Parses `NAME VALUE` or `NAME{LABELS} VALUE`, with anything after the value.
fn parse_sample(line: &str) -> Option<(&str, f64)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (name, rest) = line.split_at(line.find(|c| !is_name(c))?);
    let rest = match rest.strip_prefix('{') {
        Some(labels) => &labels[end_of_labels(labels)?..],
        None => rest,
    };
    let value = rest.split_whitespace().next()?;
    let value: f64 = value.parse().ok()?;
    (!name.is_empty()).then_some((name, value))
}

/// Returns the position after the `}` that ends the labels; values in quotes may contain braces.
fn end_of_labels(labels: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in labels.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(text: &str) -> Vec<(&str, f64)> {
        let mut found = Vec::new();
        for_each_sample(text, |name, value| found.push((name, value)));
        found
    }

    #[test]
    fn samples_are_read_without_labels() {
        let text = "# HELP vllm:num_requests_running Number of requests.\n\
                    # TYPE vllm:num_requests_running gauge\n\
                    vllm:num_requests_running{engine=\"0\",model_name=\"a } \\\" b\"} 3.0\r\n\
                    \n\
                    llamacpp:prompt_tokens_total 512 1395066363000\n\
                    tgi_queue_size{}7\n\
                    x_total{le=\"+Inf\"} 1e3 # {trace_id=\"a\"} 0.67\n\
                    # EOF\n";
        let expected = [
            ("vllm:num_requests_running", 3.0),
            ("llamacpp:prompt_tokens_total", 512.0),
            ("tgi_queue_size", 7.0),
            ("x_total", 1000.0),
        ];
        assert_eq!(samples(text), expected);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        for line in [
            "",
            "name",
            "name ",
            "{a=\"b\"} 1",
            "name{a=\"b 1",
            "name{a=\"b\\\"} 1",
            "name one",
            "<html>1</html>",
            "é 1",
        ] {
            assert!(samples(line).is_empty(), "{line}");
        }
        assert!(samples("a NaN")[0].1.is_nan());
    }

    /// A text that ends anywhere is read up to there, and no cut makes the reader panic.
    #[test]
    fn truncated_text_is_read_to_its_end() {
        let text = "a{x=\"é}\"} 12\nb 34 é\n";
        for end in 0..=text.len() {
            let cut = String::from_utf8_lossy(&text.as_bytes()[..end]).into_owned();
            assert!(samples(&cut).len() <= 2);
        }
        assert_eq!(samples(text), [("a", 12.0), ("b", 34.0)]);
    }
}
