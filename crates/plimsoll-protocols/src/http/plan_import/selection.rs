//! Selects the recorded requests that belong to one user of one target.

use std::collections::{BTreeMap, HashMap};

use plimsoll_model::formats::quantity;

use super::exchange::{RecordedExchange, split_url};
use super::omissions::{MAX_STEPS, OmissionReason};
use crate::interface::protocol_module::PlanImportRequest;

/// The rules by which requests of a recording are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSelection<'a> {
    /// The origin whose requests are kept. Default: the origin of most requests.
    pub(super) origin: Option<&'a str>,
    /// Whether images, fonts, style sheets and scripts are kept.
    pub(super) with_assets: bool,
}

impl<'a> RequestSelection<'a> {
    /// Returns the selection for an import.
    pub(super) fn from_request(request: &PlanImportRequest<'a>) -> RequestSelection<'a> {
        RequestSelection {
            origin: request.origin,
            with_assets: request.with_assets,
        }
    }
}

/// The requests of a recording that belong to one user of one target.
#[derive(Debug, Default)]
pub(super) struct RecordedTraffic {
    /// The name of the program that made the recording.
    pub(super) creator: String,
    pub(super) origin: String,
    pub(super) exchanges: Vec<RecordedExchange>,
    /// The number of all requests in the recording.
    pub(super) total: usize,
    /// How many requests were left out, by reason.
    pub(super) left_out: BTreeMap<OmissionReason, usize>,
    /// Notes to the user about single requests.
    pub(super) notes: Vec<String>,
}

/// The file name extensions of assets.
const ASSET_EXTENSIONS: [&str; 24] = [
    ".avif",
    ".bmp",
    ".css",
    ".eot",
    ".gif",
    ".ico",
    ".jpeg",
    ".jpg",
    ".js",
    ".map",
    ".mjs",
    ".mp3",
    ".mp4",
    ".otf",
    ".png",
    ".svg",
    ".ttf",
    ".wasm",
    ".webm",
    ".webmanifest",
    ".webp",
    ".woff",
    ".woff2",
    ".m4a",
];

/// Returns whether the path of a URL ends in the file name extension of an asset.
pub(super) fn has_asset_path(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let path = path.to_ascii_lowercase();
    ASSET_EXTENSIONS.iter().any(|end| path.ends_with(end))
}

impl RecordedTraffic {
    /// Returns how many requests were left out, and why.
    pub(super) fn describe_left_out(&self) -> String {
        let reasons = self.left_out.iter();
        let reasons: Vec<String> = reasons
            .map(|(reason, count)| reason.describe(*count))
            .collect();
        reasons.join("; ")
    }

    /// Keeps the requests to one origin, and counts the others. The flag of each request says whether it loads an
    /// asset.
    ///
    /// # Errors
    /// Returns an error if no request is left, or none goes to the selected origin.
    pub(super) fn keep_selected(
        &mut self,
        kept: Vec<(bool, RecordedExchange)>,
        selection: RequestSelection<'_>,
    ) -> Result<(), String> {
        let counts = count_by_origin(&kept);
        self.origin = choose_origin(&counts, selection.origin)?;
        let others: Vec<&str> = counts.iter().map(|(origin, _)| origin.as_str()).collect();
        let others = list_other_origins(&self.origin, &others);
        for (is_asset, exchange) in kept {
            let reason = if exchange.origin != self.origin {
                OmissionReason::OtherOrigin(others.clone())
            } else if is_asset && !selection.with_assets {
                OmissionReason::Asset
            } else {
                self.exchanges.push(exchange);
                continue;
            };
            *self.left_out.entry(reason).or_default() += 1;
        }
        if self.exchanges.is_empty() {
            return Err(format!(
                "none of its {} can be made: {}",
                quantity::plural(self.total as u64, "request"),
                self.describe_left_out()
            ));
        }
        // Proxies list requests in the order in which their responses ended, so they are sorted by the start of the
        // request.
        self.exchanges
            .sort_by_key(|exchange| exchange.times.map(|(start, _)| start));
        let beyond = self.exchanges.len().saturating_sub(MAX_STEPS);
        if beyond > 0 {
            self.exchanges.truncate(MAX_STEPS);
            self.left_out.insert(OmissionReason::BeyondLimit, beyond);
        }
        Ok(())
    }
}

/// Returns the origins with their numbers of requests, in descending order. Assets often have another origin, so they
/// count only if there are no other requests.
fn count_by_origin(kept: &[(bool, RecordedExchange)]) -> Vec<(String, usize)> {
    let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
    for (is_asset, exchange) in kept {
        let count = counts.entry(&exchange.origin).or_default();
        count.0 += usize::from(!is_asset);
        count.1 += 1;
    }
    let mut counts: Vec<(&str, (usize, usize))> = counts.into_iter().collect();
    counts.sort_by_key(|(origin, count)| (std::cmp::Reverse(*count), *origin));
    let counts = counts.into_iter();
    counts
        .map(|(origin, (_, all))| (origin.to_owned(), all))
        .collect()
}

fn choose_origin(counts: &[(String, usize)], asked: Option<&str>) -> Result<String, String> {
    let Some(asked) = asked else {
        let first = counts.first().map(|(origin, _)| origin.clone());
        return Ok(first.unwrap_or_default());
    };
    let (origin, _) = split_url(asked).map_err(|e| format!("--origin: {e}"))?;
    if counts.iter().any(|(known, _)| *known == origin) {
        return Ok(origin);
    }
    let known = counts.iter().take(5);
    let known: Vec<String> = known
        .map(|(origin, count)| format!("{origin} ({count})"))
        .collect();
    Err(format!(
        "--origin: no request goes to {origin}, only to {}",
        known.join(", ")
    ))
}

/// Returns a list of the first other origins, for a message.
fn list_other_origins(origin: &str, all: &[&str]) -> String {
    let others: Vec<&str> = all
        .iter()
        .copied()
        .filter(|other| *other != origin)
        .collect();
    let first = others[..others.len().min(3)].join(", ");
    match others.len().saturating_sub(3) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
