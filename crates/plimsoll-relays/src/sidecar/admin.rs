//! Serves metrics (OpenMetrics text) and health checks on a loopback address, on a thread of its
//! own so that requests every few seconds do not delay the data path.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_engine::Address;
use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_serving::build_runtime;
use plimsoll_serving::pages::{self, Request, Response, StatusCode, header};
use tokio::task::spawn_blocking;

use super::metrics::SidecarMetrics;
use super::upstream_names::NameResolver;
use super::{FailureCallback, SidecarError, start_serving_thread};
use crate::metrics::CONTENT_TYPE;

/// How long connecting to an upstream may take; a request for `/ready` waits for it.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Serves until the process ends; returns the address with the actual port.
pub(super) fn start(
    address: SocketAddr,
    metrics: Arc<SidecarMetrics>,
    names: Arc<NameResolver>,
    stop: Arc<AtomicBool>,
    on_failure: &FailureCallback,
) -> Result<SocketAddr, SidecarError> {
    let failed = |e| SidecarError::new(format!("admin: listening on {address}"), e);
    let bound = pages::bind(address).map_err(failed)?;
    let listening = bound.address().tcp_address().unwrap_or(address);
    let runtime = build_runtime(Some(1)).map_err(|e| failed(io::Error::other(e)))?;
    start_serving_thread("admin", on_failure, move || {
        let page = move |request: Request<()>| {
            let (metrics, names) = (Arc::clone(&metrics), Arc::clone(&names));
            let stopping = stop.load(Ordering::Relaxed);
            // Runs on a blocking thread, because probing upstreams blocks.
            let made = spawn_blocking(move || {
                handle_request(request.uri().path(), &metrics, &names, stopping)
            });
            async {
                // The panic has already been reported.
                made.await
                    .unwrap_or_else(|_| text_response(StatusCode::INTERNAL_SERVER_ERROR, ""))
            }
        };
        let served = runtime.block_on(pages::serve(bound, page, std::future::pending()));
        served.map(drop).map_err(|e| SidecarError::new("admin", e))
    })?;
    Ok(listening)
}

fn handle_request(
    path: &str,
    metrics: &SidecarMetrics,
    names: &NameResolver,
    stopping: bool,
) -> Response<String> {
    match path {
        "/metrics" => build_response(StatusCode::OK, CONTENT_TYPE, metrics.encode_text()),
        "/ready" if stopping => text_response(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        "/ready" => match find_unreachable_route(metrics, names) {
            None => text_response(StatusCode::OK, "ready\n"),
            Some((route, why)) => {
                let text = format!("route {route}: {why}\n");
                text_response(StatusCode::SERVICE_UNAVAILABLE, &text)
            }
        },
        _ => text_response(StatusCode::NOT_FOUND, "use /metrics or /ready\n"),
    }
}

fn text_response(status: StatusCode, text: &str) -> Response<String> {
    build_response(status, "text/plain; charset=utf-8", text.to_owned())
}

fn build_response(status: StatusCode, kind: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns a route without any upstream that would accept a call, and the reason. An upstream counts as alive if a
/// connection to it is open or can be opened now.
fn find_unreachable_route(
    metrics: &SidecarMetrics,
    names: &NameResolver,
) -> Option<(String, String)> {
    names.routes().into_iter().find_map(|route| {
        let places = route.addresses();
        let is_open = |address: &Address| {
            let counters = metrics.upstream_counters(route.route(), &address.to_string());
            counters.open.get() > 0
        };
        let mut addresses = places.iter().map(|place| &place.address);
        if addresses.clone().any(is_open) {
            return None;
        }
        let mut lack = route.exhausted_resource();
        let is_alive = addresses.any(|address| {
            let connected = connect_to_upstream(address);
            lack = lack.or_else(|| {
                connected
                    .as_ref()
                    .err()
                    .and_then(LocalResourceError::from_io_error)
            });
            connected.is_ok()
        });
        let why = match lack {
            Some(lack) => lack.to_string(),
            None => "no upstream can be reached".to_owned(),
        };
        (!is_alive).then(|| (route.route().to_owned(), why))
    })
}

fn connect_to_upstream(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Tcp(address) => {
            let connected = TcpStream::connect_timeout(address, PROBE_TIMEOUT);
            connected.map_err(|e| LocalResourceError::refine_connect_error(e, *address))
        }
        Address::Unix(_) => address.start_connect(None),
    }
}
