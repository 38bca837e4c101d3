//! Conversion of received bytes to text that is safe to print.

/// The maximum number of received bytes that are converted; further bytes are dropped.
const MAX_TEXT_BYTES: usize = 1024;

/// Converts received bytes to one line of text without control characters, so that a terminal does not
/// interpret them.
pub(crate) fn to_printable(bytes: &[u8]) -> String {
    replace_unprintable(bytes, char::is_control)
}

/// Converts received bytes to text that may have several lines and tabs. A caller that prints it on one line
/// has to escape line ends and tabs.
pub(crate) fn to_printable_lines(bytes: &[u8]) -> String {
    replace_unprintable(bytes, |c| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
    })
}

fn replace_unprintable(bytes: &[u8], is_unfit: impl Fn(char) -> bool) -> String {
    let cut = &bytes[..bytes.len().min(MAX_TEXT_BYTES)];
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
