//! `[call.grpc.metadata]` → names and values.

use base64::Engine as _;

use super::{GrpcSpec, Problem, Problems, Surroundings, is_printable};
use crate::spec::MetadataSpec;
use crate::template;

/// The metadata that `call` asks for: in order, `-bin` values in base64.
///
/// # Errors
/// Every entry that is none, or whose variable or file there is not.
pub fn metadata(
    call: &GrpcSpec,
    surroundings: &dyn Surroundings,
) -> Result<Vec<(String, String)>, Vec<Problem>> {
    let mut problems = Problems(Vec::new());
    let metadata = problems.metadata(call, surroundings);
    match problems.0.is_empty() {
        true => Ok(metadata),
        false => Err(problems.0),
    }
}

impl Problems {
    pub(super) fn metadata(
        &mut self,
        call: &GrpcSpec,
        surroundings: &dyn Surroundings,
    ) -> Vec<(String, String)> {
        let mut metadata = Vec::new();
        for (name, value) in &call.metadata {
            let key = format!("call.grpc.metadata.{name}");
            let lower = name.to_ascii_lowercase();
            if lower.is_empty()
                || !lower
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b))
            {
                self.add(&*key, "not a metadata name: use a-z, 0-9, `_`, `-` and `.`");
                continue;
            }
            if lower == "user-agent" {
                self.add(
                    &*key,
                    "has a key of its own: write user_agent in [call.grpc]",
                );
                continue;
            }
            if lower.starts_with("grpc-")
                || [
                    "te",
                    "content-type",
                    "host",
                    "connection",
                    "content-length",
                    "transfer-encoding",
                ]
                .contains(&lower.as_str())
            {
                self.add(&*key, "set by gRPC itself: take it out");
                continue;
            }
            let value = match value {
                MetadataSpec::Text(text) => Ok(text.clone()),
                MetadataSpec::Env(variable) => surroundings
                    .variable(variable)
                    .ok_or_else(|| format!("the environment variable {variable} is not set")),
                MetadataSpec::File(path) => surroundings
                    .read(path)
                    .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                    .map_err(|e| format!("can't read {}: {e}", path.display())),
            };
            let Some(value) = self.keep(&key, value) else {
                continue;
            };
            if let Some(field) = template::first_field(&value) {
                self.add(
                    &*key,
                    format!("`{field}`: metadata are the same for every call, only messages vary"),
                );
                continue;
            }
            if lower.ends_with("-bin") {
                let standard = base64::engine::GeneralPurpose::new(
                    &base64::alphabet::STANDARD,
                    base64::engine::GeneralPurposeConfig::new()
                        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
                );
                if standard.decode(&value).is_err() {
                    self.add(&*key, "not base64: the value of a name that ends in -bin is binary, typed in base64");
                    continue;
                }
            } else if !is_printable(&value) {
                // The value may be secret: it is not shown.
                self.add(
                    &*key,
                    "not a metadata value: use printable ASCII without blanks at its ends",
                );
                continue;
            }
            metadata.push((lower, value));
        }
        metadata
    }
}
