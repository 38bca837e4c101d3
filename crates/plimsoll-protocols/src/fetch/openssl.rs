//! Translates command lines of other tools that measure TLS with files: `openssl s_time`, `openssl s_server` when it
//! serves files, and the script `generate_html.sh`, which makes a file of a given size.

use std::ffi::OsString;
use std::slice::Iter;

use crate::interface::foreign::cipher_names::suite_from_openssl;
use crate::interface::protocol_module::UsageError;

/// Translates a tool's command line to arguments of Plimsoll, without the program's name. `words` begin with the tool's
/// name. Returns `None` if the tool is not one of these.
///
/// # Errors
/// When a word has no counterpart.
pub(crate) fn translate(words: &[OsString]) -> Option<Result<Vec<String>, UsageError>> {
    let (tool, words) = words.split_first()?;
    match tool.to_str()? {
        "s_time" => Some(translate_s_time(words)),
        "s_server" => Some(translate_s_server(words)),
        "generate_html.sh" => Some(translate_generate_html(words)),
        _ => None,
    }
}

/// The arguments of a tool whose flags have one dash; a flag's value is the next word.
struct ToolArguments<'a> {
    tool: &'static str,
    words: Iter<'a, OsString>,
    /// The arguments translated so far.
    ours: Vec<String>,
}

impl<'a> ToolArguments<'a> {
    fn new(tool: &'static str, words: &'a [OsString]) -> ToolArguments<'a> {
        ToolArguments {
            tool,
            words: words.iter(),
            ours: Vec::new(),
        }
    }

    /// Returns the next flag without its dash. Flags that all these tools have in common are translated here and
    /// skipped.
    fn next_flag(&mut self) -> Result<Option<&'a str>, UsageError> {
        while let Some(word) = self.words.next() {
            let text = word.to_str().unwrap_or_default();
            let Some(flag) = text.strip_prefix('-') else {
                return Err(self.unknown_argument_error(text));
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            match flag {
                "ciphersuites" => {
                    for suite in self.flag_value(flag)?.split(':') {
                        self.add("--suite", suite);
                    }
                }
                "cipher" => {
                    for suite in self.flag_value(flag)?.split(':') {
                        self.add("--suite", suite_from_openssl(suite).unwrap_or(suite));
                    }
                }
                "tls1_3" => self.add("--tls-version", "1.3"),
                "tls1_2" => self.add("--tls-version", "1.2"),
                own => return Ok(Some(own)),
            }
        }
        Ok(None)
    }

    fn add(&mut self, flag: &str, value: &str) {
        self.ours.extend([flag.to_owned(), value.to_owned()]);
    }

    fn flag_value(&mut self, flag: &str) -> Result<&'a str, UsageError> {
        let value = self.words.next().and_then(|word| word.to_str());
        value.ok_or_else(|| {
            UsageError::new(
                format_args!("{} -{flag}: the value is missing", self.tool),
                "write it after the flag",
            )
        })
    }

    fn flag_number(&mut self, flag: &str) -> Result<&'a str, UsageError> {
        let value = self.flag_value(flag)?;
        value.parse::<u64>().map(|_| value).map_err(|_| {
            UsageError::new(
                format_args!("{} -{flag}: `{value}` is not a number", self.tool),
                "give a whole number",
            )
        })
    }

    fn unknown_argument_error(&self, word: &str) -> UsageError {
        let (known, ours) = match self.tool {
            "s_time" => (
                "-connect -www -time -new -reuse -ciphersuites -tls1_3 -tls1_2 -CAfile -cert -key",
                "plimsoll fetch --help",
            ),
            _ => (
                "-accept -cert -key -CAfile -Verify -ciphersuites -tls1_3 -tls1_2 -WWW -quiet",
                "plimsoll serve files --help",
            ),
        };
        UsageError::new(
            format_args!("{}: `{word}` is not supported", self.tool),
            &format!("use {known}; `{ours}` lists Plimsoll's own flags"),
        )
    }

    /// Returns the words `begin` of Plimsoll's command, followed by the translated arguments.
    fn into_command(self, begin: &[&str]) -> Vec<String> {
        let begin = begin.iter().map(|word| (*word).to_owned());
        begin.chain(self.ours).collect()
    }
}

/// Translates `s_time`, a load of one connection at a time.
fn translate_s_time(words: &[OsString]) -> Result<Vec<String>, UsageError> {
    let mut line = ToolArguments::new("s_time", words);
    let (mut connect, mut path, mut modes) = (None, None, Vec::new());
    let (mut duration, mut trusted) = ("30", false);
    while let Some(flag) = line.next_flag()? {
        match flag {
            "connect" => connect = Some(line.flag_value(flag)?),
            "www" => path = Some(line.flag_value(flag)?),
            "time" => duration = line.flag_number(flag)?,
            "new" | "reuse" => modes.push(flag),
            "CAfile" => {
                trusted = true;
                let file = line.flag_value(flag)?;
                line.add("--ca", file);
            }
            "cert" | "key" => {
                let file = line.flag_value(flag)?;
                line.add(&format!("--{flag}"), file);
            }
            other => return Err(line.unknown_argument_error(&format!("-{other}"))),
        }
    }
    let Some(connect) = connect else {
        return Err(UsageError::new(
            "s_time: -connect is needed: the server whose connections are measured",
            "for example: plimsoll s_time -connect localhost:4433 -www /test_1k.html -time 30 -new",
        ));
    };
    let mode = match modes[..] {
        ["new"] => "new",
        ["reuse"] => "resumed",
        _ => "both",
    };
    let versions = line
        .ours
        .windows(2)
        .filter(|pair| pair[0] == "--tls-version");
    let only_1_2 = versions.map(|pair| &pair[1]).eq(["1.2"]);
    if path.is_none() && mode != "new" && !only_1_2 {
        return Err(UsageError::new(
            "s_time without -www: TLS 1.3 servers send session tickets after the handshake, when \
             such connections are already closed",
            "add -www /PATH to measure resumed connections, -new to measure new ones alone, or -tls1_2",
        ));
    }
    let url = match path {
        Some(path) if !path.starts_with('/') => format!("https://{connect}/{path}"),
        Some(path) => format!("https://{connect}{path}"),
        None => format!("https://{connect}"),
    };
    let duration = format!("{duration}s");
    let mut begin = vec!["fetch", &url, "--mode", mode];
    if path.is_none() {
        begin.push("--handshake-only");
    }
    begin.extend(["--clients", "1", "--duration", &duration]);
    if !trusted {
        // `s_time` does not verify the server's certificate.
        begin.push("--insecure");
    }
    Ok(line.into_command(&begin))
}

/// Translates a command of `s_server` that serves files.
fn translate_s_server(words: &[OsString]) -> Result<Vec<String>, UsageError> {
    let mut line = ToolArguments::new("s_server", words);
    let (mut accept, mut ca) = ("4433", None);
    let (mut serves_files, mut verifies) = (false, false);
    while let Some(flag) = line.next_flag()? {
        match flag {
            "accept" | "port" => accept = line.flag_value(flag)?,
            "cert" | "key" => {
                let file = line.flag_value(flag)?;
                line.add(&format!("--tls-{flag}"), file);
            }
            "CAfile" => ca = Some(line.flag_value(flag)?),
            "Verify" => {
                line.flag_number(flag)?;
                verifies = true;
            }
            "WWW" => serves_files = true,
            "quiet" => line.ours.push("--quiet".to_owned()),
            other => return Err(line.unknown_argument_error(&format!("-{other}"))),
        }
    }
    if !serves_files {
        return Err(UsageError::new(
            "s_server without -WWW: only files can be served",
            "add -WWW, or type: plimsoll serve files DIR --listen HOST:PORT --tls-cert FILE --tls-key FILE",
        ));
    }
    match (ca, verifies) {
        (Some(ca), true) => line.add("--tls-client-ca", ca),
        (None, true) => {
            return Err(UsageError::new(
                "s_server -Verify: needs -CAfile, the CA of accepted client certificates",
                "add -CAfile FILE",
            ));
        }
        (_, false) => {}
    }
    let listen = if accept.contains(':') {
        accept.to_owned()
    } else {
        format!("0.0.0.0:{accept}")
    };
    Ok(line.into_command(&["serve", "files", ".", "--listen", &listen]))
}

/// Translates `generate_html.sh FILE KB`.
fn translate_generate_html(words: &[OsString]) -> Result<Vec<String>, UsageError> {
    let texts: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    match texts[..] {
        [file, kilobytes] if kilobytes.parse::<u64>().is_ok() => {
            let size = format!("{kilobytes}KiB");
            Ok(["payload", &size, file].map(str::to_owned).to_vec())
        }
        _ => Err(UsageError::new(
            "generate_html.sh takes a file and its size in KiB",
            "for example: plimsoll generate_html.sh test_1k.html 1, or: plimsoll payload 1KiB test_1k.html",
        )),
    }
}
