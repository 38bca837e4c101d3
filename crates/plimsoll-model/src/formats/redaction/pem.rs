//! Finds the contents of keys and certificates in PEM form (RFC 7468 §2) in a text.

use std::ops::Range;

const FIRST_LINE: &str = "-----BEGIN ";
const LAST_LINE: &str = "-----END ";
/// The end of either line.
const LINE_END: &str = "-----";

/// Minimum length of a word that is too long for prose and may be Base64, in bytes.
const MIN_WORD_BYTES: usize = 20;

/// Finds the contents of PEM blocks, which follow a line such as `-----BEGIN PRIVATE KEY-----`. Their line breaks may be
/// lost or escaped, and the last line may be missing: then the block ends with the last line of Base64.
pub(super) fn find_pem_contents(text: &str) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut from = 0;
    while let Some(found) = text[from..].find(FIRST_LINE) {
        let start = from + found + FIRST_LINE.len();
        let rest = &text[start..];
        let next = rest.find(FIRST_LINE).unwrap_or(rest.len());
        match rest[..next].find(LAST_LINE) {
            Some(end) => {
                all.extend(find_base64_words(text, start..start + end));
                from = start + end;
            }
            None => {
                all.extend(find_cut_contents(text, start..start + next));
                from = start + next;
            }
        }
    }
    all
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)
}

/// Returns whether a word without blanks is a line of a key, and not prose.
fn is_base64_line(word: &str) -> bool {
    word.len() >= MIN_WORD_BYTES || word.ends_with('=')
}

/// Finds the words in a part of `text` that are too long for prose and may be Base64 (RFC 4648 §4), and a word that is
/// padded.
fn find_base64_words(text: &str, part: Range<usize>) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut at = part.start;
    for word in text[part].split_inclusive(|c: char| !u8::try_from(c).is_ok_and(is_base64)) {
        let length = word.bytes().take_while(|b| is_base64(*b)).count();
        if is_base64_line(&word[..length]) {
            all.push(at..at + length);
        }
        at += word.len();
    }
    all
}

/// Finds the lines of Base64 that directly follow a first line whose label begins at the part's start. Headers, as
/// encrypted keys have them (RFC 1421 §4.6), may be in between. The block ends at the first word that is no line of it,
/// so whatever follows in the text is left as it is.
fn find_cut_contents(text: &str, part: Range<usize>) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let label = text[part.clone()].find(LINE_END);
    let Some(mut at) = label.map(|label| part.start + label + LINE_END.len()) else {
        return all;
    };
    loop {
        at += separator_length(&text[at..part.end]);
        let rest = &text[at..part.end];
        let length = rest.bytes().take_while(|b| is_base64(*b)).count();
        if is_base64_line(&rest[..length]) {
            all.push(at..at + length);
            at += length;
            continue;
        }
        match header_length(rest).filter(|_| all.is_empty()) {
            Some(header) => at += header,
            None => return all,
        }
    }
}

/// Returns the length of the blanks and line breaks at the beginning of a text. Line breaks may be escaped.
fn separator_length(text: &str) -> usize {
    let mut rest = text;
    loop {
        let behind = rest.trim_start();
        let behind = behind.strip_prefix("\\n").unwrap_or(behind);
        let behind = behind.strip_prefix("\\r").unwrap_or(behind);
        if behind.len() == rest.len() {
            return text.len() - rest.len();
        }
        rest = behind;
    }
}

/// Returns the length of a header line such as `DEK-Info: AES-256-CBC,00`, which ends with a line break; `None` if there
/// is none at the beginning of the text.
fn header_length(text: &str) -> Option<usize> {
    let end = text.find('\n')?;
    let (name, _) = text[..end].split_once(": ")?;
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::super::{mask_plan, mask_urls};

    #[test]
    fn keys_in_pem_form_are_masked() {
        let base64 = "MC4CAQAwBQYDK2VwBCIEIDbKUwKAwQn5";
        let stars = "*".repeat(base64.len());
        for (open, break_, close) in [
            (
                "-----BEGIN PRIVATE KEY-----",
                "\n",
                "-----END PRIVATE KEY-----\n",
            ),
            (
                "-----BEGIN EC PRIVATE KEY-----",
                " ",
                "-----END EC PRIVATE KEY-----",
            ),
            ("-----BEGIN RSA PRIVATE KEY-----", "\r\n", ""),
            ("-----BEGIN RSA PRIVATE KEY-----", "\\n", ""),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: DES-CBC,00",
                "\n",
                "",
            ),
        ] {
            let block = |text: &str, short: &str| {
                format!("key {open}{break_}{text}{break_}{short}{break_}{close}: no such file")
            };
            let (shown, expected) = (block(base64, "Ag=="), block(&stars, "****"));
            assert_eq!(mask_urls(&shown), expected);
            assert_eq!(mask_plan(&shown), expected);
        }
    }

    #[test]
    fn prose_after_unclosed_pem_line_stays() {
        for prose in [
            "it has no line -----BEGIN PRIVATE KEY-----, so it is no key: see https://a/b",
            "-----BEGIN PRIVATE KEY----- is missing in /etc/ssl/private/of/the/payment/service/key",
            "no -----BEGIN PRIVATE KEY-----: internationalizationandlocalization",
            "-----BEGIN of something without an end, internationalizationandlocalization",
        ] {
            assert_eq!(mask_urls(prose), prose);
        }
        let base64 = "MC4CAQAwBQYDK2VwBCIEIDbKUwKAwQn5";
        let cut = |content: &str| {
            format!(
                "-----BEGIN PRIVATE KEY-----\n{content}\nin /etc/plimsoll/certificates/service/key"
            )
        };
        assert_eq!(mask_urls(&cut(base64)), cut(&"*".repeat(base64.len())));
    }
}
