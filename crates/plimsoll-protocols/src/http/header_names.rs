//! Checks the names of header fields in plans.

use plimsoll_model::spec::FieldNameRules;

/// The rules for names in `[call.http.headers]`.
pub(super) const HEADER_NAMES: FieldNameRules = FieldNameRules {
    key: "call.http.headers",
    binary: false,
    check: |name| match name {
        "host" => Err("has a key of its own: write call.http.host"),
        name => check_name(name),
    },
};

/// Checks a field name (RFC 9110 §5.1). Names of fields that control framing are rejected, because a plan can't set
/// them.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err("not a field name: use letters, digits, `-` and `_`");
    }
    match name {
        "connection" | "content-length" | "transfer-encoding" | "te" | "trailer" | "upgrade"
        | "keep-alive" | "proxy-connection" | "expect" => {
            Err("message framing is set by Plimsoll itself: remove it")
        }
        _ => Ok(()),
    }
}
