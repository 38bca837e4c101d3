//! The relay codec of gRPC: reads the header fields of calls, and writes the header fields that reject a call.

use std::time::Duration;

use plimsoll_model::Outcome;

use super::timeout::parse_timeout;
use crate::interface::relayed::StreamFields;

const CONTENT_TYPE: &[u8] = b"application/grpc";

/// The gRPC fields of a header list.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcRelayFields {
    /// Whether `content-type` is gRPC's.
    is_grpc: bool,
    timeout: Option<Duration>,
    status: Option<u8>,
}

impl StreamFields for GrpcRelayFields {
    const VARYING_FIELDS: &'static [&'static [u8]] =
        &[b"grpc-message", b"grpc-status-details-bin", b"grpc-timeout"];

    #[inline]
    fn read_field(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"content-type" => self.is_grpc = value.starts_with(CONTENT_TYPE),
            b"grpc-timeout" => self.timeout = parse_timeout(value),
            b"grpc-status" => {
                let text = std::str::from_utf8(value).ok();
                self.status = text.and_then(|text| text.parse().ok());
            }
            _ => {}
        }
    }

    fn is_protocol_call(&self) -> bool {
        self.is_grpc
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn status(&self) -> Option<u32> {
        self.status.map(u32::from)
    }

    fn status_name(status: u32) -> String {
        match status {
            0..=16 => Outcome::from_grpc_status(status).code().to_owned(),
            _ => status.to_string(),
        }
    }

    fn push_initial_fields(mut push: impl FnMut(&[u8], &[u8])) {
        push(b":status", b"200");
        push(b"content-type", CONTENT_TYPE);
    }

    fn push_final_fields(outcome: Outcome, why: &str, mut push: impl FnMut(&[u8], &[u8])) {
        push(b"grpc-status", outcome.index().to_string().as_bytes());
        push(b"grpc-message", why.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_header_fields_are_parsed() {
        let noted = |list: &[(&str, &str)]| {
            let mut fields = GrpcRelayFields::default();
            for (name, value) in list {
                fields.read_field(name.as_bytes(), value.as_bytes());
            }
            fields
        };
        let request = noted(&[
            (":method", "POST"),
            ("content-type", "application/grpc+proto"),
            ("grpc-timeout", "250m"),
        ]);
        assert!(request.is_protocol_call());
        assert_eq!(request.timeout(), Some(Duration::from_millis(250)));
        assert_eq!(noted(&[("grpc-status", "14")]).status(), Some(14));
        assert_eq!(GrpcRelayFields::status_name(14), "UNAVAILABLE");
        assert_eq!(GrpcRelayFields::status_name(17), "17");
    }
}
