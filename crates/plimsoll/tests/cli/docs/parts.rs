//! Parses a documentation page into its commands and their output.

use super::*;

/// The parts of a page, in order.
#[derive(Debug)]
pub(super) enum PagePart {
    Commands(Vec<String>),
    File {
        name: String,
        content: String,
    },
    Output(String),
    Exit(i32),
    Prints(String),
    Run {
        dir: String,
        key: String,
        value: Value,
    },
}

pub(super) fn parts(page: &str) -> Vec<PagePart> {
    let mut parts = Vec::new();
    let mut lines = page.lines();
    let (mut file, mut left_out) = (None, false);
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let block: Vec<&str> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            if let Some(name) = file.take() {
                let content = block.join("\n") + "\n";
                parts.push(PagePart::File { name, content });
            } else if language == "sh" && !left_out {
                parts.push(PagePart::Commands(commands(&block)));
            } else if language == "text" && !left_out {
                parts.push(PagePart::Output(block.join("\n")));
            }
            left_out = false;
            continue;
        }
        let Some(comment) = line.trim().strip_prefix("<!-- ") else {
            continue;
        };
        let comment = comment
            .strip_suffix(" -->")
            .unwrap_or_else(|| panic!("{line}"));
        if let Some(name) = comment.strip_prefix("file ") {
            file = Some(name.to_owned());
        } else if let Some(reason) = comment.strip_prefix("not run: ") {
            assert!(!reason.is_empty(), "{line}: no reason");
            left_out = true;
        } else if let Some(code) = comment.strip_prefix("exit ") {
            parts.push(PagePart::Exit(code.parse().expect(line)));
        } else if let Some(words) = comment.strip_prefix("prints ") {
            parts.push(PagePart::Prints(words.to_owned()));
        } else if let Some(claim) = comment.strip_prefix("run ") {
            let (dir, rest) = claim.split_once(": ").expect(line);
            let (key, value) = rest.split_once(" = ").expect(line);
            parts.push(PagePart::Run {
                dir: dir.to_owned(),
                key: key.to_owned(),
                value: serde_json::from_str(value).expect(line),
            });
        }
    }
    parts
}

/// Returns the commands of a block: one per line, or over several lines with a backslash, an open
/// quote or a here document.
fn commands(block: &[&str]) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    let mut document: Option<&str> = None;
    for line in block {
        if command.is_empty() && (line.trim().is_empty() || line.starts_with('#')) {
            continue;
        }
        command += line;
        command.push('\n');
        let is_whole = match document {
            Some(end) => *line == end,
            None => {
                document = line.split_once("<<").map(|(_, end)| end.trim_matches('\''));
                document.is_none() && !line.ends_with('\\') && quotes_are_closed(&command)
            }
        };
        if is_whole {
            document = None;
            commands.push(std::mem::take(&mut command));
        }
    }
    assert!(command.is_empty(), "has no end: {command}");
    commands
}

fn quotes_are_closed(command: &str) -> bool {
    let mut open = None;
    let mut before = ' ';
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match (c, open) {
            ('\\', None | Some('"')) => {
                characters.next();
            }
            ('#', None) if before.is_whitespace() => {
                characters.by_ref().find(|c| *c == '\n');
            }
            ('\'' | '"', None) => open = Some(c),
            (c, Some(mark)) if c == mark => open = None,
            _ => {}
        }
        before = c;
    }
    open.is_none()
}

#[test]
fn commands_are_split_like_shell() {
    let block = [
        "a \\",
        "  b",
        "c 'd",
        "e' # it's",
        "cat > f <<'END'",
        "it's",
        "END",
        "g",
    ];
    let expected = [
        "a \\\n  b\n",
        "c 'd\ne' # it's\n",
        "cat > f <<'END'\nit's\nEND\n",
        "g\n",
    ];
    assert_eq!(commands(&block), expected);
}

/// Normalises white space, so that neither columns nor wrapping matter.
pub(super) fn plain(printed: &str) -> String {
    printed.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a line with each number and its unit replaced by `#`.
pub(super) fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let before = rest[..at].trim_end_matches(['+', '−', '-']);
        shape += before;
        shape.push('#');
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || ",.".contains(c));
        let bare = rest.strip_prefix(' ').unwrap_or(rest);
        let after = ["ns", "µs", "ms", "s", "B", "kB", "MB", "GB", "%"]
            .iter()
            .filter_map(|unit| bare.strip_prefix(unit))
            .find(|after| !after.starts_with(|c: char| c.is_alphanumeric()));
        rest = after.unwrap_or(rest);
    }
    plain(&(shape + rest))
}

/// Returns the shape of a line without the lower bounds that a late generator adds, in a table
/// column or in an objective's interval.
pub(super) fn without_low_ends(shape: &str) -> String {
    let mut words: Vec<&str> = shape.split(' ').collect();
    let is_row = ["p#", "mean", "sd", "min", "max"].contains(&words[0]);
    if is_row && words.len() > 2 {
        words.remove(2);
    }
    words
        .join(" ")
        .replace("response, at least ", "")
        .replace("# to #", "#")
}

#[test]
fn lower_bound_column_is_ignored() {
    let row = shape("p95      7.46 ms             4.76 ms     7.46 ms");
    assert_eq!(without_low_ends(&row), shape("p95  7.46 ms  7.46 ms"));
    let head = shape("   response  response, at least  service");
    assert_eq!(without_low_ends(&head), shape("response service"));
    let objective = shape("objective p99 < 5s: met (91.21ms to 107.81ms)");
    assert_eq!(
        without_low_ends(&objective),
        shape("objective p99 < 5s: met (102.6ms)")
    );
}

#[test]
fn lines_are_compared_ignoring_figures() {
    assert_eq!(shape("p99   14.32 ms  592 µs  –"), "p# # # –");
    assert_eq!(shape("  calls 600 due, 600 ok"), "calls # due, # ok");
    assert_eq!(shape("3 servers"), "# servers");
}
