//! Follows redirects before a load (RFC 9110 §15.4): the call's URL is requested once, and the load goes to the URL in
//! the response. `plimsoll http --redirects` uses this module for each hop.
//!
//! A load that followed redirects itself would measure two servers at once. Credentials are sent only to the origin
//! that they were given for.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::transport::tunnel::Tunnel;
use plimsoll_engine::{ConnectFailure, EngineError};
use plimsoll_model::Plan;
use plimsoll_model::formats::redaction::{is_secret_field_name, is_secret_field_value, mask_urls};
use plimsoll_model::plan::{RequestFields, TlsPlan};
use plimsoll_model::rows::template::VaryingMetadata;
use plimsoll_model::spec::{CallSpec, MetadataSpec, Spec, call_path, parse_target, split_scheme};
use tokio::io::{AsyncRead, AsyncWrite};

use super::call::{HttpCall, HttpVersion};
use super::section::HttpSpec;
use crate::interface::protocol_module::{PrepareError, RedirectHop};
use crate::shared::dial::connect_to_target;

/// The deadline of the request if the call has none.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// The redirect in a server's response.
struct RedirectAnswer {
    status: u16,
    location: String,
}

/// Sends one request of `plan`, which was resolved from `spec`. If the response is a redirect, changes `spec` to call
/// its location, without the credentials if the location has another origin. Returns `None` if the response is not a
/// redirect.
///
/// # Errors
/// Returns an error if the server can't be reached, or if the redirect can't be followed: the message says what to type
/// instead.
pub(super) fn follow_redirect(
    plan: &Plan,
    spec: &mut Spec,
) -> Result<Option<RedirectHop>, PrepareError> {
    let Some(call) = plan.call.downcast_ref::<HttpCall>() else {
        return Ok(None);
    };
    if call.varying.as_ref().is_some_and(|all| all.path.is_some()) {
        return Err(PrepareError::Call(
            "--redirects: the path has fields, so there is no single URL to follow: leave it out"
                .to_owned(),
        ));
    }
    let Some(answer) = probe_for_redirect(plan, call)? else {
        return Ok(None);
    };
    let from = &plan.target.url;
    let to = resolve_location(from, &call.path, &answer.location).map_err(|why| {
        format!(
            "--redirects: {} answers {} with `{}`, {why}",
            mask_urls(from),
            answer.status,
            mask_urls(&answer.location)
        )
    })?;
    // A 302 or 303 is followed with GET, whatever the method was.
    let is_safe = ["GET", "HEAD"].contains(&&*call.method);
    if !is_safe && matches!(answer.status, 302 | 303) {
        return Err(PrepareError::Call(format!(
            "--redirects: {} answers {} to GET, which says nothing of {}: leave --redirects out, or write {} as the URL",
            mask_urls(from),
            answer.status,
            call.method,
            mask_urls(&to)
        )));
    }
    let dropped = apply_redirect(spec, from, &to)?;
    Ok(Some(RedirectHop { url: to, dropped }))
}

/// Changes `spec` to call `to`. Returns the names of the credentials that are dropped because the origin changes.
fn apply_redirect(spec: &mut Spec, from: &str, to: &str) -> Result<Vec<String>, PrepareError> {
    let (old, was_secured) = parse_target(from)?;
    let (new, is_secured) = parse_target(to)
        .map_err(|why| format!("--redirects: `{}` can't be followed: {why}", mask_urls(to)))?;
    if was_secured && !is_secured {
        return Err(PrepareError::Call(format!(
            "--redirects: {} leads from TLS to plaintext: if that is meant, write {} as the URL",
            mask_urls(from),
            mask_urls(to)
        )));
    }
    let mut dropped = Vec::new();
    let is_same = was_secured == is_secured
        && old.host.eq_ignore_ascii_case(&new.host)
        && old.port == new.port;
    let mut section: HttpSpec = spec.call.get().unwrap_or_default();
    section.path = None;
    if !is_same {
        section.headers.retain(|name, value| {
            let is_kept = !may_be_credential(name, value);
            if !is_kept {
                dropped.push(name.clone());
            }
            is_kept
        });
        section.host = None;
        if let Some(tls) = &mut spec.tls {
            if tls.cert.take().is_some() {
                dropped.push("the client certificate".to_owned());
            }
            (tls.key, tls.server_name) = (None, None);
        }
    }
    spec.call = CallSpec::from_section(&section).map_err(|problem| problem.to_string())?;
    spec.target = Some(to.to_owned());
    Ok(dropped)
}

/// Returns whether a header field may be a credential: by its name, by its value, or because the plan does not contain
/// the value.
fn may_be_credential(name: &str, value: &MetadataSpec) -> bool {
    is_secret_field_name(name)
        || value.values().iter().any(|value| match value {
            MetadataSpec::Text(text) => is_secret_field_value(text),
            _ => true,
        })
}

/// Resolves a `Location` against the target and the path that were requested (RFC 3986 §5.2).
fn resolve_location(target: &str, path: &str, location: &str) -> Result<String, &'static str> {
    let location = location.split('#').next().unwrap_or_default();
    let base = call_path(target).map_or(target, |path| &target[..target.len() - path.len()]);
    let is_socket = plimsoll_model::spec::is_unix_socket(target);
    let begin = location.find(['/', '?']).unwrap_or(location.len());
    if let Some((scheme, _)) = location[..begin].split_once(':') {
        let is_http = ["http", "https"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known));
        return match (is_http && location[begin..].starts_with("//"), is_socket) {
            (true, false) => Ok(format!(
                "{}{}",
                scheme.to_ascii_lowercase(),
                &location[scheme.len()..]
            )),
            (true, true) => Err("which leads from a socket to a host: write that as the URL"),
            (false, _) => Err("which is no URL of HTTP"),
        };
    }
    if location.starts_with("//") {
        let scheme = split_scheme(target).map_or("http", |(scheme, _)| scheme);
        return if is_socket {
            Err("which leads from a socket to a host: write that as the URL")
        } else {
            Ok(format!("{scheme}:{location}"))
        };
    }
    let path = path.split('?').next().unwrap_or_default();
    let whole = match location.chars().next() {
        None => path.to_owned(),
        Some('/') => location.to_owned(),
        Some('?') => format!("{path}{location}"),
        Some(_) => {
            let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
            format!("{folder}{location}")
        }
    };
    let colon = if is_socket && !base.ends_with(':') {
        ":"
    } else {
        ""
    };
    Ok(format!("{base}{colon}{}", remove_dot_segments(&whole)))
}

/// Removes the segments `.` and `..` of a path (RFC 3986 §5.2.4).
fn remove_dot_segments(whole: &str) -> String {
    let (path, query) = whole.split_at(whole.find('?').unwrap_or(whole.len()));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}{query}", kept.join("/"))
}

/// The response to a request that is sent before the load.
pub(super) struct ProbeAnswer {
    pub(super) status: u16,
    location: Option<String>,
    /// The beginning of the body, up to the request's limit.
    pub(super) body: Vec<u8>,
}

/// Sends one request. Returns the redirect, or `None` if the response is not a redirect.
fn probe_for_redirect(
    plan: &Plan,
    call: &HttpCall,
) -> Result<Option<RedirectAnswer>, PrepareError> {
    let answer = request_once(plan, call, 0)?;
    let is_redirect = [301, 302, 303, 307, 308].contains(&answer.status);
    let location = answer.location.filter(|_| is_redirect);
    Ok(location.map(|location| RedirectAnswer {
        status: answer.status,
        location,
    }))
}

/// Sends one request. Returns the response with at most `max_body` bytes of its body.
///
/// # Errors
/// Returns an error if the server can't be reached, or does not respond in time.
pub(super) fn request_once(
    plan: &Plan,
    call: &HttpCall,
    max_body: usize,
) -> Result<ProbeAnswer, PrepareError> {
    let version = match call.resolved_version(plan.tls.as_ref()) {
        HttpVersion::V2 => HttpVersion::V2,
        HttpVersion::V1 | HttpVersion::Auto => HttpVersion::V1,
    };
    let protocol: &[u8] = match version {
        HttpVersion::V2 => b"h2",
        _ => b"http/1.1",
    };
    let tls = match &plan.tls {
        None => None,
        Some(tls) => {
            let full_handshake = TlsPlan {
                resume: false,
                early_data: false,
                full_share: None,
                ..tls.clone()
            };
            Some(TlsClient::new(&full_handshake, &plan.target, &[protocol])?)
        }
    };
    let addresses = plimsoll_engine::resolve(&plan.target)?;
    let tunnel = Tunnel::for_target(&plan.target);
    let request = build_request(plan, call, version)?;
    let runtime = plimsoll_serving::build_runtime(Some(1)).map_err(|e| e.to_string())?;
    let deadline = plan.load.deadline.unwrap_or(DEFAULT_DEADLINE);
    let limit = plan.load.connect_timeout + deadline;
    let lost = |failure: ConnectFailure| {
        PrepareError::Engine(EngineError::NoConnection {
            url: mask_urls(&plan.target.url).into_owned(),
            failure,
        })
    };
    let asked = async {
        let tcp = connect_to_target(&addresses, tunnel.as_ref()).await;
        let tcp = tcp.map_err(lost)?;
        let answer = match &tls {
            None => send_request(tcp, version, request).await,
            Some(tls) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls.config()));
                let secured = connector.connect(tls.server_name().clone(), tcp).await;
                let secured = secured.map_err(|e| {
                    let (outcome, detail) = tls.classify_connection_error(&e);
                    lost(ConnectFailure::new(outcome, detail))
                })?;
                send_request(secured, version, request).await
            }
        };
        let no_answer = |e| PrepareError::Call(format!("--redirects: no answer: {e}"));
        let answer = answer.map_err(no_answer)?;
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        Ok(ProbeAnswer {
            status: answer.status().as_u16(),
            location: location.map(str::to_owned),
            body: read_body(answer.into_body(), max_body)
                .await
                .map_err(no_answer)?,
        })
    };
    runtime.block_on(with_timeout(limit, asked))
}

/// Reads the beginning of a body.
async fn read_body(mut body: Incoming, max_bytes: usize) -> hyper::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < max_bytes {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(frame) = frame.transpose()? else {
            break;
        };
        if let Some(data) = frame.data_ref() {
            let room = (max_bytes - bytes.len()).min(data.len());
            bytes.extend_from_slice(&data[..room]);
        }
    }
    Ok(bytes)
}

async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, PrepareError>>,
) -> Result<T, PrepareError> {
    let ended = tokio::time::timeout(limit, work).await;
    ended.unwrap_or_else(|_| {
        Err(PrepareError::Call(format!(
            "--redirects: no answer within {limit:?} to the request before the load"
        )))
    })
}

/// Builds the request: GET or HEAD without a body, so that it changes nothing, with the header fields of the first
/// call.
fn build_request(
    plan: &Plan,
    call: &HttpCall,
    version: HttpVersion,
) -> Result<Request<String>, PrepareError> {
    let method = if call.method == "HEAD" {
        Method::HEAD
    } else {
        Method::GET
    };
    let authority = call.host.clone().unwrap_or_else(|| plan.target.authority());
    let uri = match version {
        HttpVersion::V2 => {
            let scheme = plan.tls.as_ref().map_or("http", |_| "https");
            format!("{scheme}://{authority}{}", call.path)
        }
        _ => call.path.clone(),
    };
    let unfit = |why: &dyn std::fmt::Display| format!("--redirects: {why}");
    let uri = Uri::try_from(uri).map_err(|e| unfit(&e))?;
    let mut request = Request::new(String::new());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    let fields = RequestFields {
        constant: call.headers.clone(),
        varying: call.varying.as_ref().map(|all| VaryingMetadata {
            variation: all.variation.clone(),
            fields: all.headers.clone(),
        }),
    };
    let headers = request.headers_mut();
    if version == HttpVersion::V1 {
        let host = HeaderValue::try_from(authority).map_err(|e| unfit(&e))?;
        headers.insert(HOST, host);
    }
    for (name, value) in fields.for_call(0, 0) {
        if ["content-type", "content-encoding"].contains(&&*name) {
            continue;
        }
        let name = HeaderName::try_from(name).map_err(|e| unfit(&e))?;
        let value = HeaderValue::try_from(value).map_err(|e| unfit(&e))?;
        headers.append(name, value);
    }
    Ok(request)
}

/// Sends the request over a connection, and returns the head of the response.
async fn send_request<S>(
    stream: S,
    version: HttpVersion,
    request: Request<String>,
) -> hyper::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(stream);
    if version == HttpVersion::V2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        // Errors of the connection are reported by its only request, so the task's result is ignored.
        tokio::spawn(connection);
        return sender.send_request(request).await;
    }
    let (mut sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::register_protocols;

    #[test]
    fn locations_are_resolved_against_the_request() {
        register_protocols();
        for (target, path, location, whole) in [
            ("http://a:1/b/c?d", "/b/c?d", "https://E/f#g", "https://E/f"),
            ("http://a:1/b/c?d", "/b/c?d", "//e:2/f", "http://e:2/f"),
            ("https://a/b/c?d", "/b/c?d", "/x?y", "https://a/x?y"),
            ("http://a:1", "/", "x", "http://a:1/x"),
            ("http://a:1/b/c", "/b/c", "../x/./y", "http://a:1/x/y"),
            ("http://a:1/b/c", "/b/c", "?q=/../", "http://a:1/b/c?q=/../"),
            ("http://a:1/b/c", "/b/c", "", "http://a:1/b/c"),
            ("http://a:1/b/", "/b/", "..", "http://a:1/"),
            ("unix:/s", "/", "/x", "unix:/s:/x"),
            ("unix:/s:/b", "/b", "/x", "unix:/s:/x"),
        ] {
            let found = resolve_location(target, path, location);
            assert_eq!(found.as_deref(), Ok(whole), "{target} {location}");
        }
        assert!(resolve_location("http://a", "/", "ftp://b/").is_err());
        assert!(resolve_location("http://a", "/", "mailto:b").is_err());
        assert!(resolve_location("unix:/s", "/", "http://b/").is_err());
    }

    fn spec() -> Spec {
        register_protocols();
        let text = "target = \"https://a.test/x\"\n[tls]\ncert = \"c\"\nkey = \"k\"\n[load]\nclients = 1\ncalls = 1\n\
                    [call.http]\nhost = \"b\"\nheaders = { Authorization = \"s\", x-api-key = \"s\", x-a = \"b\", \
                    x-tenant = { env = \"TENANT\" }, x-user = [\"c\", { file = \"user.txt\" }] }\n";
        plimsoll_model::spec::read(text).expect("a plan")
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        for (from, to, is_same) in [
            ("https://a.test/x", "https://A.test:443/y", true),
            ("https://a.test/x", "https://a.test:444/y", false),
            ("https://a.test/x", "https://b.test/y", false),
            ("http://a.test/x", "https://a.test/x", false),
            ("http://a.test:443/x", "https://a.test:443/x", false),
        ] {
            let mut spec = spec();
            let dropped = apply_redirect(&mut spec, from, to).expect("followed");
            let section: HttpSpec = spec.call.get().expect("a call");
            assert_eq!(spec.target.as_deref(), Some(to));
            assert_eq!(dropped.is_empty(), is_same, "{to}: {dropped:?}");
            assert_eq!(section.host.is_some(), is_same, "{to}");
            assert_eq!(spec.tls.is_some_and(|tls| tls.cert.is_some()), is_same);
            let names: Vec<&String> = section.headers.keys().collect();
            assert_eq!(names.len(), if is_same { 5 } else { 1 }, "{names:?}");
        }
    }

    #[test]
    fn redirects_to_plaintext_are_refused() {
        let refused = apply_redirect(&mut spec(), "https://a.test/x", "http://a.test/x");
        let Err(PrepareError::Call(why)) = refused else {
            panic!("followed");
        };
        assert!(why.contains("write http://a.test/x as the URL"), "{why}");
    }
}
