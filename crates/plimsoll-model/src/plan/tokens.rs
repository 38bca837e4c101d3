//! Tokens of answers: the tokenizer that counts them, and the metrics that concern them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Metric, TimeMetric};

/// A function that returns the number of tokens of a text; `None`: it can't be tokenized.
type TokenCountFn = dyn Fn(&str) -> Option<u64> + Send + Sync;

/// A loaded tokenizer file. Protocols whose calls have tokens load the file, because this crate contains no tokenizer.
#[derive(Clone)]
pub struct TokenCounter {
    path: PathBuf,
    count: Arc<TokenCountFn>,
}

impl TokenCounter {
    /// Creates the counter of the tokenizer file at `path`. `count` returns the number of tokens of a text, or `None`
    /// if it can't be tokenized.
    pub fn new(
        path: &Path,
        count: impl Fn(&str) -> Option<u64> + Send + Sync + 'static,
    ) -> TokenCounter {
        TokenCounter {
            path: path.to_owned(),
            count: Arc::new(count),
        }
    }

    /// Returns the number of tokens of `text`; `None`: it can't be tokenized.
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
    /// Two counters are equal if they were loaded from the same file.
    fn eq(&self, other: &TokenCounter) -> bool {
        self.path == other.path
    }
}

impl Eq for TokenCounter {}

impl Metric {
    /// Returns whether the metric exists only for answers of language models.
    pub fn is_about_tokens(self) -> bool {
        match self {
            Metric::Finish(_) => true,
            Metric::Time(TimeMetric::Measure(measure), _) => measure.is_about_tokens(),
            _ => false,
        }
    }
}
