//! Recognises pages that report a missing file with status 200, as `openssl s_server -WWW` sends them.

use crate::http2::to_printable;

/// The maximum number of bytes of a body that are compared.
pub(super) const MAX_COMPARED_BYTES: usize = 200;

/// The pages that file servers send instead of a missing file.
#[derive(Debug)]
pub(super) struct MissingPage {
    /// The possible beginnings of these pages.
    prefixes: Vec<String>,
}

impl MissingPage {
    /// Creates the pages that servers send for a missing file at `path`, which must begin with a slash.
    pub(super) fn for_path(path: &str) -> MissingPage {
        let file = path.strip_prefix('/').unwrap_or(path);
        MissingPage {
            // The texts of apps/s_server.c, from OpenSSL 1.0 to 3.6.
            prefixes: vec![
                format!("Error opening '{file}'"),
                format!("'{file}' is a directory"),
                format!("'{file}' is an invalid"),
                format!("'{file}' contains '..'"),
            ],
        }
    }

    /// Returns why a body that begins with `begin` is an error page; `None` if it may be the file. `begin`: up to
    /// [`MAX_COMPARED_BYTES`] bytes.
    pub(super) fn error_page_reason(&self, begin: &[u8]) -> Option<String> {
        let is_it = |text: &&String| {
            let text = &text.as_bytes()[..text.len().min(MAX_COMPARED_BYTES)];
            begin.starts_with(text)
        };
        self.prefixes.iter().find(is_it)?;
        let line = begin.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = to_printable(line.trim_ascii());
        Some(format!(
            "the file is missing on the server, which reports it with status 200: {line}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_server_error_pages_are_recognised() {
        let long = format!("/{}", "x".repeat(300));
        for (path, body, line) in [
            (
                "/none.bin",
                "Error opening 'none.bin' mode='r'\r\n80EBF4B8807F0000:error:",
                "Error opening 'none.bin' mode='r'",
            ),
            ("/a", "Error opening 'a'\r\n", "Error opening 'a'"),
            ("/d", "'d' is a directory\r\n", "'d' is a directory"),
            ("/../x", "'../x' contains '..' or ':'\r\n", "contains '..'"),
            ("/", "'' is an invalid path\r\n", "'' is an invalid path"),
            (&long, &format!("Error opening '{}'", &long[1..]), "Error"),
        ] {
            let begin = &body.as_bytes()[..body.len().min(MAX_COMPARED_BYTES)];
            let reason = MissingPage::for_path(path).error_page_reason(begin);
            let reason = reason.unwrap_or_else(|| panic!("{path}: {body}"));
            assert!(reason.contains("missing on the server"), "{reason}");
            assert!(reason.contains(line), "{reason}");
        }
    }

    #[test]
    fn other_bodies_are_not_error_pages() {
        let page = MissingPage::for_path("/none.bin");
        for body in [
            "",
            "Error",
            "Error opening 'none.bi",
            "Error opening 'other.bin' mode='r'\r\n",
            " Error opening 'none.bin'",
            "hello",
        ] {
            assert_eq!(page.error_page_reason(body.as_bytes()), None, "{body}");
        }
    }
}
