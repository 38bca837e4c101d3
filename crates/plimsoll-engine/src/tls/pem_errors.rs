//! Error messages for invalid PEM files. The messages of the PEM library (rustls-pki-types) are not used, because they
//! quote unreadable lines, which may belong to a private key.

use rustls::pki_types::pem;

/// A shell command that restores lost newlines, with `{in}` and `{out}` for the files.
const RESTORE_NEWLINES_COMMAND: &str = r"sed -E 's/(\\r)?\\n/\n/g; s/-----BEGIN [A-Z0-9 ]+-----/&\n/g; s/-----END/\n&/g; s/\n+/\n/g' {in} > {out}";

/// Describes the problem of `content`, which the library rejected with `error`. `mend` replaces `{in}` and `{out}` in a
/// command by the actual file names.
pub(super) fn describe_pem_problem(
    content: &[u8],
    error: &pem::Error,
    mend: impl FnOnce(&str) -> String,
) -> String {
    if let Some(lost) = describe_lost_newlines(content) {
        return format!(
            "PEM without its newlines ({lost}), as variables of shells and CI systems leave it; put them back: {}",
            mend(RESTORE_NEWLINES_COMMAND)
        );
    }
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => {
            "a section has no -----END …----- line, as in a file that was cut off"
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins with -----BEGIN does not end with -----"
        }
        pem::Error::Base64Decode(_) => "the text between BEGIN and END is not base64",
        _ => "no section of it can be read",
    };
    format!("not valid PEM: {problem}")
}

/// Returns a description of how newlines were lost, if any text follows `-----BEGIN …-----` on its line.
fn describe_lost_newlines(content: &[u8]) -> Option<&'static str> {
    const BEGIN_MARKER: &[u8] = b"-----BEGIN ";
    const DASHES: &[u8] = b"-----";
    let mut rest = content;
    while let Some(at) = find_bytes(rest, BEGIN_MARKER) {
        rest = &rest[at + BEGIN_MARKER.len()..];
        rest = &rest[find_bytes(rest, DASHES)? + DASHES.len()..];
        let line = rest.split(|byte| b"\r\n".contains(byte)).next();
        match line.unwrap_or_default().trim_ascii() {
            [] => {}
            [b'\\', b'n' | b'r', ..] => return Some(r"they are the two characters \n"),
            _ => return Some("a line continues after -----BEGIN …-----"),
        }
    }
    None
}

fn find_bytes(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
