//! Selects the recorded requests that belong to one user of a target, and of the others that the user called.

use std::collections::{BTreeMap, HashMap};

use plimsoll_engine::script::MAX_LINKS;
use plimsoll_model::formats::quantity;

use super::exchange::{RecordedExchange, origin_site, split_url};
use super::omissions::{MAX_STEPS, OmissionReason};
use crate::interface::protocol_module::PlanImportRequest;

/// The rules by which requests of a recording are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSelection<'a> {
    /// The only origin whose requests are kept. Default: that of most requests, and others of its site, as many as a
    /// journey can have.
    pub(super) origin: Option<&'a str>,
    /// Whether requests to other sites are kept as well.
    pub(super) all_origins: bool,
    /// Whether images, fonts, style sheets and scripts are kept.
    pub(super) with_assets: bool,
}

impl<'a> RequestSelection<'a> {
    /// Returns the selection for an import.
    pub(super) fn from_request(request: &PlanImportRequest<'a>) -> RequestSelection<'a> {
        RequestSelection {
            origin: request.origin,
            all_origins: request.all_origins,
            with_assets: request.with_assets,
        }
    }
}

/// The requests of a recording that belong to one user.
#[derive(Debug, Default)]
pub(super) struct RecordedTraffic {
    /// The name of the program that made the recording.
    pub(super) creator: String,
    /// The origin of the plan's own target.
    pub(super) origin: String,
    /// The other origins whose requests are kept.
    pub(super) other_origins: Vec<String>,
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

    /// Returns whether most requests to this origin used HTTP/2 over TLS.
    pub(super) fn is_mostly_http2(&self, origin: &str) -> bool {
        let exchanges = self.exchanges.iter();
        let exchanges = exchanges.filter(|exchange| exchange.origin == origin);
        let multiplexed = exchanges.clone().filter(|exchange| exchange.is_multiplexed);
        origin.starts_with("https:") && multiplexed.count() * 2 > exchanges.count()
    }

    /// Keeps the requests to the selected origins, and counts the others. The flag of each request says whether it loads
    /// an asset.
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
        let others: Vec<&OriginCount> = counts
            .iter()
            .filter(|count| count.origin != self.origin)
            .collect();
        let site = origin_site(&self.origin).to_owned();
        let is_counted = |count: &OriginCount| count.others > 0 || selection.with_assets;
        let is_of_site =
            |count: &OriginCount| selection.all_origins || origin_site(&count.origin) == site;
        let mut of_other_sites = Vec::new();
        if selection.origin.is_none() {
            let (kept, left_out): (Vec<&OriginCount>, Vec<&OriginCount>) = others
                .iter()
                .copied()
                .filter(|count| is_counted(count))
                .partition(|count| is_of_site(count));
            let kept = kept.into_iter().take(MAX_LINKS - 1);
            self.other_origins = kept.map(|count| count.origin.clone()).collect();
            of_other_sites = left_out.iter().map(|count| count.origin.as_str()).collect();
        }
        let left_out = others.iter().map(|count| count.origin.as_str());
        let left_out = left_out.filter(|origin| {
            !self.other_origins.iter().any(|kept| kept == origin)
                && !of_other_sites.contains(origin)
        });
        let left_out = list_origins(&left_out.collect::<Vec<&str>>());
        let left_out_sites = list_origins(&of_other_sites);
        for (is_asset, exchange) in kept {
            let is_selected =
                exchange.origin == self.origin || self.other_origins.contains(&exchange.origin);
            let is_of_other_site = of_other_sites.contains(&exchange.origin.as_str());
            let reason = if is_asset && !selection.with_assets && (is_selected || is_of_other_site)
            {
                OmissionReason::Asset
            } else if is_of_other_site {
                OmissionReason::OtherSite(left_out_sites.clone())
            } else if !is_selected {
                OmissionReason::OtherOrigin(left_out.clone())
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

/// An origin, and how many requests a recording has to it.
struct OriginCount {
    origin: String,
    /// All requests.
    all: usize,
    /// The requests that do not load assets.
    others: usize,
}

/// Returns the origins in the descending order of their numbers of requests. Assets often have another origin, so they
/// count only if there are no other requests.
fn count_by_origin(kept: &[(bool, RecordedExchange)]) -> Vec<OriginCount> {
    let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
    for (is_asset, exchange) in kept {
        let count = counts.entry(&exchange.origin).or_default();
        count.0 += usize::from(!is_asset);
        count.1 += 1;
    }
    let mut counts: Vec<(&str, (usize, usize))> = counts.into_iter().collect();
    counts.sort_by_key(|(origin, count)| (std::cmp::Reverse(*count), *origin));
    let counts = counts.into_iter();
    let counts = counts.map(|(origin, (others, all))| OriginCount {
        origin: origin.to_owned(),
        all,
        others,
    });
    counts.collect()
}

fn choose_origin(counts: &[OriginCount], asked: Option<&str>) -> Result<String, String> {
    let Some(asked) = asked else {
        let first = counts.first().map(|count| count.origin.clone());
        return Ok(first.unwrap_or_default());
    };
    let (origin, _) = split_url(asked).map_err(|e| format!("--origin: {e}"))?;
    if counts.iter().any(|known| known.origin == origin) {
        return Ok(origin);
    }
    let known = counts.iter().take(5);
    let known: Vec<String> = known
        .map(|known| format!("{} ({})", known.origin, known.all))
        .collect();
    Err(format!(
        "--origin: no request goes to {origin}, only to {}",
        known.join(", ")
    ))
}

/// Returns a list of the first origins, for a message.
fn list_origins(others: &[&str]) -> String {
    let first = others[..others.len().min(3)].join(", ");
    match others.len().saturating_sub(3) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
