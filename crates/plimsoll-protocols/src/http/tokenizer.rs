//! Counts tokens with a tokenizer file (`tokenizer.json`), read by the crate `tokenizers`; nothing is downloaded.
//! Builds without the feature `tokenizers` reject the file.
//!
//! The counter is created when a plan is resolved, and is called during the run by a thread that is not a worker.

use std::path::Path;

use plimsoll_model::plan::TokenCounter;
use plimsoll_model::spec::ResolveContext;

/// Creates the counter from the file at `path`. The counter adds no special tokens for the beginning and end of a text,
/// and neither truncates nor pads.
///
/// # Errors
/// When the file can't be read, or is not a tokenizer.
#[cfg(feature = "tokenizers")]
pub(super) fn counter(
    path: &Path,
    surroundings: &dyn ResolveContext,
) -> Result<TokenCounter, String> {
    let bytes = surroundings.read_bytes(path);
    let bytes = bytes.map_err(|e| format!("can't read {}: {e}", path.display()))?;
    let wrong = |e: tokenizers::Error| {
        format!(
            "{} is not a tokenizer file of Hugging Face's tokenizers (tokenizer.json): {e}",
            path.display()
        )
    };
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(wrong)?;
    tokenizer.with_truncation(None).map_err(wrong)?;
    tokenizer.with_padding(None);
    Ok(TokenCounter::new(path, move |text| {
        let tokens = tokenizer.encode_fast(text, false).ok()?;
        Some(tokens.len() as u64)
    }))
}

/// Rejects the file at `path`.
///
/// # Errors
/// Always returns an error, because this build has no tokenizers.
#[cfg(not(feature = "tokenizers"))]
pub(super) fn counter(path: &Path, _: &dyn ResolveContext) -> Result<TokenCounter, String> {
    Err(refusal(path))
}

/// Returns the error message of a build without tokenizers.
#[cfg(any(test, not(feature = "tokenizers")))]
fn refusal(path: &Path) -> String {
    format!(
        "{} can't be used: this build has no tokenizers; build with cargo's feature `tokenizers` (docs/llm.md)",
        path.display()
    )
}

#[cfg(test)]
#[test]
fn refusal_names_file_and_feature() {
    let printed = refusal(Path::new("words.json"));
    assert!(printed.starts_with("words.json can't be used"), "{printed}");
    assert!(printed.contains("feature `tokenizers`"), "{printed}");
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use std::fs;

    use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
    use tokenizers::normalizers::NFC;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{
        DecoderWrapper, NormalizerWrapper, PaddingParams, PostProcessorWrapper,
        PreTokenizerWrapper, TokenizerBuilder, TruncationParams,
    };

    use super::*;

    /// An environment that reads files from disk.
    struct Files;

    impl ResolveContext for Files {
        fn env_variable(&self, _: &str) -> Option<String> {
            None
        }
        fn read(&self, path: &Path) -> std::io::Result<String> {
            fs::read_to_string(path)
        }
        fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>> {
            fs::read(path)
        }
    }

    const TEXT: &str = "Load is what a link carries, and the load line shows how much it carries";

    /// Writes a byte-pair tokenizer, trained on one sentence, to a file.
    fn trained(folder: &Path, vocabulary: usize) -> std::path::PathBuf {
        let mut trainer = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocabulary)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut tokenizer = TokenizerBuilder::<
            BPE,
            NormalizerWrapper,
            PreTokenizerWrapper,
            PostProcessorWrapper,
            DecoderWrapper,
        >::default()
        .with_model(BPE::default())
        .with_normalizer(Some(NFC.into()))
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true).into()))
        .build()
        .expect("a complete tokenizer");
        let sentences = std::iter::repeat_n(TEXT, 10);
        tokenizer.train(&mut trainer, sentences).expect("trained");
        let cut = TruncationParams {
            max_length: 2,
            ..TruncationParams::default()
        };
        tokenizer
            .with_truncation(Some(cut))
            .expect("a valid truncation");
        tokenizer.with_padding(Some(PaddingParams::default()));
        let path = folder.join(format!("{vocabulary}.json"));
        tokenizer.save(&path, false).expect("written");
        path
    }

    #[test]
    fn trained_tokenizer_counts_merged_tokens() {
        let folder = tempfile::tempdir().unwrap();
        // A vocabulary of bytes only, and one with merges, which has a token for each word of the training sentence.
        let bytes = counter(&trained(folder.path(), 256), &Files).unwrap();
        let words = counter(&trained(folder.path(), 1_000), &Files).unwrap();
        assert_eq!(bytes.count(TEXT), Some(TEXT.len() as u64));
        // The comma is a token of its own.
        let expected = TEXT.split(' ').count() as u64 + 1;
        assert_eq!(words.count(TEXT), Some(expected));
        assert_eq!(words.count(""), Some(0));
        assert_eq!(bytes.count("\u{1f6a2}"), Some(4));
    }

    #[test]
    fn invalid_tokenizer_file_error_names_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let wrong = counter(&path, &Files).unwrap_err();
        assert!(wrong.contains("a.json"), "{wrong}");
        fs::write(&path, "{\"model\": {}}").unwrap();
        let wrong = counter(&path, &Files).unwrap_err();
        assert!(wrong.contains("is not a tokenizer"), "{wrong}");
    }
}
