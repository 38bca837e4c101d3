//! The reasons why requests of a recording are left out of a plan.

use plimsoll_model::formats::quantity;

/// The maximum number of steps of a journey.
pub(super) const MAX_STEPS: usize = 200;

/// The reason why a request of a recording is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OmissionReason {
    /// The request loads an asset such as an image or a font.
    Asset,
    /// The request goes to another origin; the text lists a few of the other origins.
    OtherOrigin(String),
    /// The request goes to another site; the text lists a few of the other sites' origins.
    OtherSite(String),
    /// The request comes after the maximum number of steps.
    BeyondLimit,
    /// The URL is a data URL, or internal to the browser.
    DataUrl,
    WebSocket,
    /// The request had no response.
    Failed,
    /// The status of the response was 5xx.
    ServerError,
    /// The request asked a proxy for a tunnel (CONNECT).
    ProxyTunnel,
    /// The request is a CORS preflight.
    Preflight,
    /// The response is a stream of events.
    EventStream,
}

impl OmissionReason {
    /// Describes, for a message, how many requests were left out for this reason.
    pub(super) fn describe(&self, count: usize) -> String {
        let (one, several) = match self {
            OmissionReason::Asset => (
                "asset (--with-assets keeps it)".to_owned(),
                "assets (--with-assets keeps them)".to_owned(),
            ),
            OmissionReason::OtherOrigin(origins) => (
                format!("of another origin ({origins})"),
                format!("of other origins ({origins})"),
            ),
            OmissionReason::OtherSite(origins) => (
                format!("of another site ({origins}): --all-origins keeps it"),
                format!("of other sites ({origins}): --all-origins keeps them"),
            ),
            OmissionReason::BeyondLimit => {
                let reason = format!("behind the first {MAX_STEPS}, the most steps of a journey");
                (reason.clone(), reason)
            }
            OmissionReason::DataUrl => (
                "data: URL or its like".to_owned(),
                "data: URLs and their like".to_owned(),
            ),
            OmissionReason::WebSocket => ("WebSocket".to_owned(), "WebSockets".to_owned()),
            OmissionReason::Failed => {
                let reason = "failed, blocked or aborted".to_owned();
                (reason.clone(), reason)
            }
            OmissionReason::ServerError => {
                let reason = "answered by an error of the server (5xx)".to_owned();
                (reason.clone(), reason)
            }
            OmissionReason::ProxyTunnel => (
                "tunnel of a proxy".to_owned(),
                "tunnels of a proxy".to_owned(),
            ),
            OmissionReason::Preflight => (
                "preflight of a browser (CORS)".to_owned(),
                "preflights of browsers (CORS)".to_owned(),
            ),
            OmissionReason::EventStream => (
                "stream of events, which a step can't read".to_owned(),
                "streams of events, which a step can't read".to_owned(),
            ),
        };
        let number = quantity::count(count as u64);
        format!("{number} {}", if count == 1 { one } else { several })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omissions_agree_with_their_number() {
        let others = OmissionReason::OtherOrigin("http://b".to_owned());
        for (reason, count, expected) in [
            (
                &OmissionReason::Asset,
                1,
                "1 asset (--with-assets keeps it)",
            ),
            (
                &OmissionReason::Asset,
                2_000,
                "2,000 assets (--with-assets keeps them)",
            ),
            (&others, 1, "1 of another origin (http://b)"),
            (&others, 2, "2 of other origins (http://b)"),
            (
                &OmissionReason::EventStream,
                1,
                "1 stream of events, which a step can't read",
            ),
        ] {
            assert_eq!(reason.describe(count), expected);
        }
    }
}
