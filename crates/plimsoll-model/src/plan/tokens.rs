//! Tokens of answers, counted by a tokenizer file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tokens of a text, where there is a count of it.
type Count = dyn Fn(&str) -> Option<u64> + Send + Sync;

/// A tokenizer file, ready to count. The model reads none: the protocol whose calls have
/// tokens does.
#[derive(Clone)]
pub struct TokenCounter {
    path: PathBuf,
    count: Arc<Count>,
}

impl TokenCounter {
    /// `count`: the tokens of a text; `None`: the tokenizer has no count of it.
    pub fn new(
        path: &Path,
        count: impl Fn(&str) -> Option<u64> + Send + Sync + 'static,
    ) -> TokenCounter {
        TokenCounter {
            path: path.to_owned(),
            count: Arc::new(count),
        }
    }

    /// The tokens of `text`; `None`: the tokenizer has no count of it.
    pub fn count(&self, text: &str) -> Option<u64> {
        (self.count)(text)
    }
}

impl fmt::Debug for TokenCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenCounter").field(&self.path).finish()
    }
}

impl PartialEq for TokenCounter {
    /// The same file.
    fn eq(&self, other: &TokenCounter) -> bool {
        self.path == other.path
    }
}

impl Eq for TokenCounter {}
