//! Compilation of `.proto` files to descriptors, including those of editions.
//!
//! The compiler supports proto2 and proto3. Source files of editions differ from proto3 in a few statements
//! only. These statements are overwritten with the same number of characters, so that errors keep their line and
//! column. [`super::editions`] then translates the edition's features.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use plimsoll_model::formats::input;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _};
use protox::file::{
    ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver,
};

use super::descriptors::sanitize_file;
use super::editions::{UnsupportedFeatures, check_edition_name, translate};

/// A resolver of imports in a folder.
struct FolderResolver {
    path: PathBuf,
    resolver: IncludeFileResolver,
    unsupported: Rc<RefCell<UnsupportedFeatures>>,
    opened: Rc<RefCell<OpenedFiles>>,
}

/// The opened files by their paths on disk, each with the name of its first import.
type OpenedFiles = BTreeMap<PathBuf, String>;

/// Returns a resolver that searches `folders`, in that order, and then the files that come with protobuf. Features of
/// editions that prost-reflect can't represent are added to `unsupported`.
pub(super) fn import_resolver(
    folders: &[PathBuf],
    unsupported: &Rc<RefCell<UnsupportedFeatures>>,
) -> ChainFileResolver {
    let mut chain = ChainFileResolver::new();
    let opened = Rc::default();
    for path in folders {
        chain.add(FolderResolver {
            path: path.clone(),
            resolver: IncludeFileResolver::new(path.clone()),
            unsupported: Rc::clone(unsupported),
            opened: Rc::clone(&opened),
        });
    }
    chain.add(GoogleFileResolver::new());
    chain
}

/// The maximum nesting depth of braces and brackets. The compiler recurses for each level, and descriptors nested
/// deeper than 100 can't be decoded again ([protobuf's
/// limit](https://protobuf.dev/programming-guides/proto-limits/)).
const MAX_NESTING_DEPTH: usize = 100;

/// A problem of a file that is found before it is compiled.
#[derive(thiserror::Error)]
#[error("{name}:{line}:{column}: {problem}")]
struct SourceError {
    name: String,
    line: usize,
    column: usize,
    problem: String,
}

impl fmt::Debug for SourceError {
    /// Prints the same as `Display`, because errors of the compiler are shown in their `Debug` form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FileResolver for FolderResolver {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        self.resolver.resolve_path(path)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let refused_at = |(line, column), problem| {
            let name = name.to_owned();
            protox::Error::new(SourceError {
                name,
                line,
                column,
                problem,
            })
        };
        let refused = |problem| refused_at((1, 1), problem);
        let path = self.path.join(name);
        if let Some(first) = self.first_opened_name(&path, name) {
            return Ok(build_alias_file(name, first));
        }
        let text = match input::file_to_string(&path) {
            Ok(text) => text,
            // protox must not open this file itself: it would block on a pipe without a writer.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                return Err(refused(e.to_string()));
            }
            Err(_) => return self.resolver.open_file(name),
        };
        let tokens = tokenize(&text);
        if let Some(at) = find_excess_nesting(&tokens) {
            let before = &text[..at];
            let line = before.rfind('\n').map_or(0, |end| end + 1);
            return Err(refused_at(
                (before.matches('\n').count() + 1, at - line + 1),
                format!("nested more than {MAX_NESTING_DEPTH} deep"),
            ));
        }
        let Some(source) = EditionSource::from_edition(&text, &tokens) else {
            let length = fs::metadata(&path).map_or(0, |found| found.len());
            // protox can open the file itself, unless the file begins with a byte-order mark, which `text` does not
            // contain.
            return if length == text.len() as u64 {
                self.resolver.open_file(name)
            } else {
                File::from_source(name, &text)
            };
        };
        check_edition_name(&source.edition).map_err(refused)?;
        let mut file: FileDescriptorProto = File::from_source(name, &source.text)?.into();
        let declared = DynamicMessage::decode(file.descriptor(), &file.encode_to_vec()[..]);
        let declared = declared.map_err(|e| refused(e.to_string()))?;
        // The check gets no known messages, because this folder may contain the files that come with protobuf.
        sanitize_file(&mut file, &DescriptorPool::new()).map_err(refused)?;
        translate(&mut file, &declared, &mut self.unsupported.borrow_mut());
        Ok(file.into())
    }
}

impl FolderResolver {
    /// Returns the name under which the file at `path` was opened before, if that is not `name`. With overlapping
    /// import paths a file has two names, but its messages must not be defined twice.
    fn first_opened_name(&self, path: &Path, name: &str) -> Option<String> {
        let place = path.canonicalize().ok()?;
        let mut opened = self.opened.borrow_mut();
        let first = opened.entry(place).or_insert_with(|| name.to_owned());
        (first != name).then(|| first.clone())
    }
}

/// Returns a file with this name that publicly imports `file`.
fn build_alias_file(name: &str, file: String) -> File {
    let alias = FileDescriptorProto {
        name: Some(name.to_owned()),
        dependency: vec![file],
        public_dependency: vec![0],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    alias.into()
}

/// A source file that uses editions, rewritten to proto3's syntax.
struct EditionSource {
    edition: String,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtoToken<'a> {
    /// A name or a number.
    Word(&'a str),
    /// A string with its quotes.
    Text(&'a str),
    Sign(char),
}

impl EditionSource {
    /// Rewrites a source file; returns `None` if it does not begin with an edition.
    fn from_edition(
        text: &str,
        tokens: &[(ProtoToken<'_>, Range<usize>)],
    ) -> Option<EditionSource> {
        let [
            (ProtoToken::Word("edition"), keyword),
            (ProtoToken::Sign('='), _),
            (ProtoToken::Text(edition), value),
            (ProtoToken::Sign(';'), _),
            rest @ ..,
        ] = tokens
        else {
            return None;
        };
        let mut source = EditionSource {
            edition: edition.trim_matches(['"', '\'']).to_owned(),
            text: text.to_owned(),
        };
        source.overwrite(keyword, "syntax ");
        let mut before = ProtoToken::Sign(';');
        for (i, (token, range)) in rest.iter().enumerate() {
            let after: Vec<ProtoToken<'_>> =
                rest[i + 1..].iter().take(2).map(|(t, _)| *t).collect();
            let begins = matches!(before, ProtoToken::Sign(';' | '{' | '}'));
            match (*token, &after[..]) {
                // Overwrites visibility keywords with blanks: they do not affect the wire format.
                (
                    ProtoToken::Word("export" | "local"),
                    [ProtoToken::Word("message" | "enum"), ProtoToken::Word(_)],
                ) if begins => {
                    source.overwrite(range, "");
                }
                // Overwrites option imports with blanks: they do not affect the encoding.
                (ProtoToken::Word("import"), [ProtoToken::Word("option"), ProtoToken::Text(_)])
                    if begins =>
                {
                    source.erase_statement(range.start, &rest[i..]);
                }
                // Overwrites reserved names without quotes, which are not valid in proto3, with blanks.
                (
                    ProtoToken::Word("reserved"),
                    [ProtoToken::Word(name), ProtoToken::Sign(',' | ';')],
                ) if begins && !name.starts_with(|c: char| c.is_ascii_digit()) => {
                    source.erase_statement(range.start, &rest[i..]);
                }
                // Replaces defaults of fields, which are not valid in proto3, and are never sent.
                (ProtoToken::Word("default"), [ProtoToken::Sign('='), _])
                    if matches!(before, ProtoToken::Sign('[' | ',')) =>
                {
                    source.overwrite(range, "dropped");
                    // Removes a minus sign: `-inf` is not a valid value of the option that replaces the default.
                    if let Some((ProtoToken::Sign('-'), sign)) = rest.get(i + 2) {
                        source.overwrite(sign, "");
                    }
                }
                _ => {}
            }
            before = *token;
        }
        // The edition's value is replaced last, because this shifts the offsets of all other tokens.
        source.text.replace_range(value.clone(), "\"proto3\"");
        Some(source)
    }

    /// Overwrites a range with `words`, padded with blanks. The range must not be shorter.
    fn overwrite(&mut self, at: &Range<usize>, words: &str) {
        let blank: String = self.text[at.start + words.len()..at.end]
            .bytes()
            .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
            .collect();
        self.text
            .replace_range(at.clone(), &format!("{words}{blank}"));
    }

    /// Overwrites a statement with blanks, up to its semicolon.
    fn erase_statement(&mut self, start: usize, rest: &[(ProtoToken<'_>, Range<usize>)]) {
        let end = rest
            .iter()
            .find(|(token, _)| *token == ProtoToken::Sign(';'));
        if let Some((_, end)) = end {
            self.overwrite(&(start..end.end), "");
        }
    }
}

/// Returns the offset at which the nesting exceeds [`MAX_NESTING_DEPTH`].
fn find_excess_nesting(tokens: &[(ProtoToken<'_>, Range<usize>)]) -> Option<usize> {
    let mut depth = 0_usize;
    for (token, range) in tokens {
        match token {
            ProtoToken::Sign('{' | '[' | '<' | '(') => depth += 1,
            ProtoToken::Sign('}' | ']' | '>' | ')') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING_DEPTH {
            return Some(range.start);
        }
    }
    None
}

/// Splits a source file into tokens, without its comments. A malformed token ends where it ends for the compiler,
/// which continues after it.
fn tokenize(text: &str) -> Vec<(ProtoToken<'_>, Range<usize>)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    let until = |from: usize, is_end: &dyn Fn(usize) -> bool| {
        (from..bytes.len())
            .find(|i| is_end(*i))
            .unwrap_or(bytes.len())
    };
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'#' => at = until(at, &|i| bytes[i] == b'\n'),
            b'/' if bytes[at..].starts_with(b"//") => at = until(at, &|i| bytes[i] == b'\n'),
            b'/' if bytes[at..].starts_with(b"/*") => at += block_comment_length(&bytes[at..]),
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote && bytes[at] != b'\n' {
                    at += match bytes[at..] {
                        [b'\\', b'\n', ..] | [b'\\'] => 1,
                        [b'\\', ..] => 2,
                        _ => 1,
                    };
                }
                at = (at + 1).min(bytes.len());
                // `text.get` returns `None` if an escape at the end of a malformed file ends within a character.
                if let Some(quoted) = text.get(start..at) {
                    found.push((ProtoToken::Text(quoted), start..at));
                }
            }
            byte if byte.is_ascii_alphanumeric() || byte == b'_' => {
                at = until(at, &|i| {
                    !(bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_')
                });
                found.push((ProtoToken::Word(&text[start..at]), start..at));
            }
            byte if byte.is_ascii_whitespace() || !byte.is_ascii() => at += 1,
            sign => {
                at += 1;
                found.push((ProtoToken::Sign(char::from(sign)), start..at));
            }
        }
    }
    found
}

/// Returns the length of the block comment at the beginning of `source`, including nested comments. An unterminated
/// comment ends at the last `*/` within it.
fn block_comment_length(source: &[u8]) -> usize {
    let (mut depth, mut at, mut last) = (0, 0, source.len());
    while at < source.len() {
        match source[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                last = at;
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    last
}
