//! Why requests of a recording are left out of a plan.

use plimsoll_model::quantity;

/// The most requests of a journey.
pub(super) const MAX_STEPS: usize = 200;

/// Why a request of a recording is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OmissionReason {
    /// It loads an image, a font or the like.
    Asset,
    /// It goes to another origin, of which these are the first.
    OtherOrigin(String),
    /// It is behind the most steps of a journey.
    BeyondLimit,
    /// Its URL has its content, or is one of the browser's own.
    DataUrl,
    WebSocket,
    /// It had no answer.
    Failed,
    /// Its answer's status was 5xx.
    ServerError,
    /// It asked a proxy for a tunnel.
    ProxyTunnel,
    /// It asked whether another request may be sent (CORS).
    Preflight,
    /// Its answer is a stream of events.
    EventStream,
}

impl OmissionReason {
    /// Returns how many requests were left out for the reason.
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
