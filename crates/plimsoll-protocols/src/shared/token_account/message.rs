//! The messages of a service that streams tokens over a socket.

use std::borrow::Cow;

use serde::Deserialize;

/// A message from the service, with the keys that the account reads; others are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct TokenMessage<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(default, borrow)]
    pub(super) content: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) seq: Option<u64>,
    #[serde(default)]
    pub(super) run: Option<u64>,
    #[serde(default)]
    pub(super) epoch: Option<u64>,
    #[serde(default)]
    pub(super) tokens: Option<u64>,
    #[serde(default, borrow)]
    pub(super) finish: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) resumed: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_from_any_backend_parse() {
        let read = |text: &str| serde_json::from_str::<TokenMessage<'_>>(text).is_ok();
        assert!(read(
            r#"{"type":"token","content":"a\u0301\"","seq":1,"run":1,"epoch":3,"ts":1.5}"#
        ));
        assert!(read(
            r#"{"type":"done","content":"","tokens":18,"finish":"stop","more":{"a":[1]}}"#
        ));
        assert!(read(r#"{"content":"x","type":"token"}"#));
        assert!(!read(r#"{"content":"x"}"#));
        assert!(!read("[]"));
    }
}
