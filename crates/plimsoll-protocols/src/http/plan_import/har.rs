//! Reads HTTP archives (HAR 1.2, <http://www.softwareishard.com/blog/har-12-spec/>), as browsers and proxies write
//! them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::exchange::{
    RecordedAnswer, RecordedExchange, RecordedPart, RequestBody, find_header, split_url,
};
use super::invalid_file_message;
use super::omissions::OmissionReason;
use super::selection::{RecordedTraffic, RequestSelection, has_asset_path};

#[derive(Deserialize)]
struct HarArchive<'a> {
    #[serde(borrow)]
    log: HarLog<'a>,
}

#[derive(Deserialize)]
struct HarLog<'a> {
    #[serde(default)]
    creator: HarCreator,
    #[serde(borrow)]
    entries: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HarCreator {
    name: String,
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntry {
    #[serde(default)]
    started_date_time: String,
    /// The duration in milliseconds; negative if unknown.
    #[serde(default)]
    time: Option<f64>,
    request: HarRequest,
    #[serde(default)]
    response: HarResponse,
    /// The kind of resource, as Chromium writes it.
    #[serde(default, rename = "_resourceType")]
    resource_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarRequest {
    method: String,
    url: String,
    #[serde(default)]
    http_version: String,
    #[serde(default)]
    headers: Vec<HarField>,
    #[serde(default)]
    cookies: Vec<HarField>,
    #[serde(default)]
    post_data: Option<PostData>,
}

#[derive(Deserialize)]
struct HarField {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PostData {
    #[serde(default)]
    mime_type: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    params: Option<Vec<HarParam>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarParam {
    name: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    file_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HarResponse {
    status: i64,
    headers: Vec<HarField>,
    content: HarContent,
    #[serde(rename = "_error")]
    error: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HarContent {
    mime_type: Option<String>,
    text: Option<String>,
    encoding: Option<String>,
}

/// Reads a HAR file.
///
/// # Errors
/// Returns an error if the text is not a HAR file, or if no usable request is left. The message names the entry and the
/// key.
pub(super) fn read(text: &str, selection: RequestSelection<'_>) -> Result<RecordedTraffic, String> {
    let archive: HarArchive<'_> =
        serde_json::from_str(text).map_err(invalid_file_message("HAR 1.2", text))?;
    let creator = &archive.log.creator;
    let mut recording = RecordedTraffic {
        creator: format!("{} {}", creator.name, creator.version)
            .trim()
            .chars()
            .take(60)
            .collect(),
        total: archive.log.entries.len(),
        ..RecordedTraffic::default()
    };
    let mut kept: Vec<(bool, RecordedExchange)> = Vec::new();
    for (number, entry) in (1..).zip(&archive.log.entries) {
        let entry: HarEntry =
            parse_entry(entry.get()).map_err(|e| format!("entry {number}, {e}"))?;
        if let Some(reason) = omission_reason(&entry) {
            *recording.left_out.entry(reason).or_default() += 1;
            continue;
        }
        let is_asset = is_asset(&entry);
        let exchange = recording.convert_entry(number, entry);
        let exchange = exchange.map_err(|e| format!("entry {number}, {e}"))?;
        kept.push((is_asset, exchange));
    }
    recording.keep_selected(kept, selection)?;
    Ok(recording)
}

fn parse_entry(text: &str) -> Result<HarEntry, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let problem = e.inner().to_string();
        let problem = problem.split(" at line ").next().unwrap_or_default();
        match e.path().to_string().as_str() {
            "." => format!("itself: {problem}"),
            path => format!("{path}: {problem}"),
        }
    })
}

/// Returns why a request is left out for a reason other than its origin; `None` if it is kept.
fn omission_reason(entry: &HarEntry) -> Option<OmissionReason> {
    let url = entry.request.url.trim_start();
    let scheme = url
        .split(':')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is_event_stream = |mime: &String| mime.starts_with("text/event-stream");
    let preflight = "access-control-request-method";
    let mut fields = entry.request.headers.iter();
    if matches!(&*scheme, "ws" | "wss")
        || entry.response.status == 101
        || entry.resource_type.as_deref() == Some("websocket")
    {
        Some(OmissionReason::WebSocket)
    } else if matches!(&*scheme, "data" | "blob" | "about" | "file" | "javascript")
        || scheme.ends_with("-extension")
    {
        Some(OmissionReason::DataUrl)
    } else if entry.response.error.as_ref().is_some_and(|e| !e.is_null())
        || entry.response.status <= 0
    {
        Some(OmissionReason::Failed)
    } else if (500..600).contains(&entry.response.status) {
        Some(OmissionReason::ServerError)
    } else if entry.request.method == "CONNECT" {
        Some(OmissionReason::ProxyTunnel)
    } else if entry.request.method == "OPTIONS"
        && fields.any(|field| field.name.eq_ignore_ascii_case(preflight))
    {
        Some(OmissionReason::Preflight)
    } else if entry
        .response
        .content
        .mime_type
        .as_ref()
        .is_some_and(is_event_stream)
    {
        Some(OmissionReason::EventStream)
    } else {
        None
    }
}

/// Returns whether a request loads an asset such as an image, font, style sheet or script.
fn is_asset(entry: &HarEntry) -> bool {
    if entry.request.method != "GET" {
        return false;
    }
    match entry.resource_type.as_deref() {
        Some("image" | "font" | "stylesheet" | "script" | "media" | "manifest") => return true,
        None | Some("other") => {}
        Some(_) => return false,
    }
    let mime = entry
        .response
        .content
        .mime_type
        .as_deref()
        .unwrap_or_default();
    let by_mime = [
        "image/",
        "font/",
        "audio/",
        "video/",
        "text/css",
        "application/wasm",
    ]
    .iter()
    .any(|kind| mime.starts_with(kind))
        || mime.contains("javascript");
    by_mime || has_asset_path(&entry.request.url)
}

impl RecordedTraffic {
    /// Converts an entry.
    fn convert_entry(
        &mut self,
        number: usize,
        entry: HarEntry,
    ) -> Result<RecordedExchange, String> {
        let request = entry.request;
        let (origin, path) = split_url(&request.url).map_err(|e| format!("request.url: {e}"))?;
        let mut headers = convert_fields(request.headers);
        if find_header(&headers, "cookie").is_none() && !request.cookies.is_empty() {
            let pairs = request.cookies.iter();
            let pairs = pairs.map(|cookie| format!("{}={}", cookie.name, cookie.value));
            headers.push(("cookie".to_owned(), pairs.collect::<Vec<_>>().join("; ")));
        }
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let method = request.method.to_ascii_uppercase();
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(format!(
                "request.method: `{method}` is not a method such as GET"
            ));
        }
        let body = request.post_data.map_or(RequestBody::Empty, |data| {
            if find_header(&headers, "content-type").is_none() && !data.mime_type.is_empty() {
                headers.push(("content-type".to_owned(), data.mime_type.clone()));
            }
            convert_body(data)
        });
        let start = entry.started_date_time.parse::<Timestamp>().ok();
        let lasts = entry
            .time
            .filter(|ms| ms.is_finite() && (0.0..1e9).contains(ms));
        let times = start.and_then(|start| {
            let lasts = SignedDuration::from_micros((lasts.unwrap_or(0.0) * 1_000.0) as i64);
            Some((start, start.checked_add(lasts).ok()?))
        });
        let version = request.http_version.to_ascii_lowercase();
        Ok(RecordedExchange {
            method,
            origin,
            path,
            headers,
            body,
            answer: Some(self.convert_response(number, entry.response)),
            times,
            is_multiplexed: ["h2", "h3", "http/2", "http/3"]
                .iter()
                .any(|known| version.starts_with(known)),
        })
    }

    fn convert_response(&mut self, number: usize, response: HarResponse) -> RecordedAnswer {
        let content = response.content;
        let body = match content.encoding.as_deref() {
            Some("base64") => {
                let text = content.text.unwrap_or_default();
                match STANDARD.decode(text.trim()) {
                    Ok(bytes) => String::from_utf8(bytes).ok(),
                    Err(e) => {
                        self.notes.push(format!(
                            "entry {number}, response.content.text: not base64 ({e}): nothing is taken from this answer's body"
                        ));
                        None
                    }
                }
            }
            _ => content.text,
        };
        RecordedAnswer {
            status: u16::try_from(response.status).unwrap_or_default(),
            headers: convert_fields(response.headers),
            body,
        }
    }
}

/// Returns header fields with names in lower case, without pseudo-header fields. Values that some tools join by line
/// breaks are split.
fn convert_fields(fields: Vec<HarField>) -> Vec<(String, String)> {
    let ordinary = fields
        .into_iter()
        .filter(|field| !field.name.starts_with(':'));
    ordinary
        .flat_map(|field| {
            let name = field.name.trim().to_ascii_lowercase();
            let values = field.value.lines().map(|value| value.trim().to_owned());
            values
                .map(|value| (name.clone(), value))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn convert_body(data: PostData) -> RequestBody {
    let params = data.params.unwrap_or_default();
    if let Some(text) = data.text.filter(|text| !text.is_empty()) {
        return RequestBody::Text(text);
    }
    if params.is_empty() {
        return RequestBody::Empty;
    }
    if data.mime_type.starts_with("multipart/") {
        let parts = params.into_iter().map(|param| RecordedPart {
            name: param.name,
            value: param.value.unwrap_or_default(),
            // A path in someone else's recording must not choose which local file is sent.
            file: param.file_name.map(|path| {
                let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
                name.to_owned()
            }),
        });
        return RequestBody::Parts(parts.collect());
    }
    let pairs = params.into_iter();
    let pairs = pairs.map(|param| {
        let value = param.value.unwrap_or_default();
        format!(
            "{}={}",
            encode_form_text(&param.name),
            encode_form_text(&value)
        )
    });
    RequestBody::Text(pairs.collect::<Vec<_>>().join("&"))
}

/// Returns a form's name or value in encoded form. Some tools write them encoded, others decoded.
fn encode_form_text(text: &str) -> String {
    let is_encoded = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~*+%".contains(&byte);
    if text.bytes().all(is_encoded) {
        return text.to_owned();
    }
    let encoded = text.bytes().map(|byte| match byte {
        b' ' => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() || b"-._~*".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}
