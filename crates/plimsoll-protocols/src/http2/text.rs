//! Bytes from the network as text for a person.

/// Text from the network that is kept for a person, at most. Bytes.
const MAX_TEXT: usize = 1024;

/// Bytes from the network as text that a terminal shows and does not obey.
pub(crate) fn printable(bytes: &[u8]) -> String {
    cleaned(bytes, char::is_control)
}

/// [`printable`] text that may have several lines, and tabs in them. Whoever shows it in a
/// line of its own escapes them there.
pub(crate) fn lines(bytes: &[u8]) -> String {
    cleaned(bytes, |c| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
    })
}

fn cleaned(bytes: &[u8], is_unfit: impl Fn(char) -> bool) -> String {
    let cut = &bytes[..bytes.len().min(MAX_TEXT)];
    let mut text: String = String::from_utf8_lossy(cut)
        .chars()
        .map(|c| {
            if is_unfit(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect();
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}
