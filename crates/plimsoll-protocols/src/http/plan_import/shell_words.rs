//! Splits command lines into words as a shell does, including Bash's `$'…'`, which browsers write and other splitters
//! don't support.

/// A command: the number of its first line, and its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandWords {
    pub(super) line: usize,
    pub(super) words: Vec<String>,
}

/// Returns the commands of a text. A command ends at the end of a line, at `;` or at `&`; a line that ends in `\`
/// continues on the next line.
///
/// # Errors
/// Returns an error if a quote is not closed; the message gives its line.
pub(super) fn split_commands(text: &str) -> Result<Vec<CommandWords>, String> {
    let mut splitter = CommandSplitter {
        rest: text.chars().peekable(),
        line: 1,
        word: None,
        command: CommandWords::default(),
        commands: Vec::new(),
    };
    splitter.run()?;
    Ok(splitter.commands)
}

struct CommandSplitter<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
    /// The current word; `None` between words.
    word: Option<String>,
    command: CommandWords,
    commands: Vec<CommandWords>,
}

impl CommandSplitter<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(c) = self.next() {
            match c {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some('\r') if self.rest.peek() == Some(&'\n') => drop(self.next()),
                    Some(c) => self.push(c),
                },
                '\'' => self.read_single_quoted()?,
                '"' => self.read_double_quoted()?,
                '$' if self.rest.peek() == Some(&'\'') => {
                    self.next();
                    self.read_ansi_quoted()?;
                }
                '#' if self.word.is_none() => {
                    while self.rest.peek().is_some_and(|c| *c != '\n') {
                        self.next();
                    }
                }
                '\n' | ';' | '&' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c),
            }
        }
        self.end_command();
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn push(&mut self, c: char) {
        if self.command.words.is_empty() && self.word.is_none() {
            self.command.line = self.line;
        }
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        self.command.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let command = std::mem::take(&mut self.command);
        self.commands
            .extend(Some(command).filter(|command| !command.words.is_empty()));
    }

    /// Returns the next character inside a quote that was opened on `line`.
    fn read_quoted(&mut self, line: usize) -> Result<char, String> {
        let next = self.next();
        next.ok_or_else(|| format!("line {line}: a quote is not closed"))
    }

    fn read_single_quoted(&mut self) -> Result<(), String> {
        let line = self.line;
        self.word.get_or_insert_default();
        loop {
            match self.read_quoted(line)? {
                '\'' => return Ok(()),
                c => self.push(c),
            }
        }
    }

    fn read_double_quoted(&mut self) -> Result<(), String> {
        let line = self.line;
        self.word.get_or_insert_default();
        loop {
            match self.read_quoted(line)? {
                '"' => return Ok(()),
                '\\' => match self.read_quoted(line)? {
                    '\n' => {}
                    c @ ('"' | '\\' | '$' | '`') => self.push(c),
                    c => {
                        self.push('\\');
                        self.push(c);
                    }
                },
                c => self.push(c),
            }
        }
    }

    /// Reads the rest of a `$'…'`.
    fn read_ansi_quoted(&mut self) -> Result<(), String> {
        let line = self.line;
        self.word.get_or_insert_default();
        loop {
            match self.read_quoted(line)? {
                '\'' => return Ok(()),
                '\\' => {
                    let c = match self.read_quoted(line)? {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'a' => '\u{7}',
                        'v' => '\u{b}',
                        'e' => '\u{1b}',
                        'x' => self.read_hex(2),
                        'u' => self.read_hex(4),
                        'U' => self.read_hex(8),
                        digit @ '0'..='7' => self.read_octal(digit),
                        c => c,
                    };
                    self.push(c);
                }
                c => self.push(c),
            }
        }
    }

    /// Reads the rest of a character written as up to three octal digits.
    fn read_octal(&mut self, first: char) -> char {
        let mut number = first.to_digit(8).unwrap_or(0);
        for _ in 0..2 {
            let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(8)) else {
                break;
            };
            number = number * 8 + digit;
            self.next();
        }
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    /// Reads a character written as at most `digits` hexadecimal digits.
    fn read_hex(&mut self, digits: usize) -> char {
        let mut number = 0_u32;
        for _ in 0..digits {
            let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(16)) else {
                break;
            };
            number = number.wrapping_mul(16).wrapping_add(digit);
            self.next();
        }
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_by_shell() {
        let text = "# all\ncurl 'a b' \\\n  -H \"c: \\\"d\\\" \\e\" \\\r\n  $'it\\'s\\n\\u0021\\x41' ''x;\ncurl b & curl c#d\n";
        let all = split_commands(text).expect("commands");
        let words: Vec<Vec<&str>> = all
            .iter()
            .map(|command| command.words.iter().map(String::as_str).collect())
            .collect();
        assert_eq!(
            words,
            [
                vec!["curl", "a b", "-H", "c: \"d\" \\e", "it's\n!A", "x"],
                vec!["curl", "b"],
                vec!["curl", "c#d"],
            ]
        );
        assert_eq!(all.iter().map(|c| c.line).collect::<Vec<_>>(), [2, 5, 5]);
    }

    #[test]
    fn open_quotes_are_rejected_with_line() {
        for text in ["\ncurl 'a", "\ncurl \"a\\", "\ncurl $'a\n\n"] {
            let problem = split_commands(text).expect_err(text);
            assert!(problem.starts_with("line 2:"), "{problem}");
        }
    }
}
