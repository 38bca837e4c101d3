//! Text in base64, with or without padding, as binary metadata of gRPC are written.

use base64::Engine as _;

/// Returns the bytes of a text in base64 with or without padding, or `None` if it is not base64.
pub fn decode_base64(text: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    let standard = base64::engine::GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        base64::engine::GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    );
    standard.decode(text).ok()
}
