//! `plimsoll view`: a folder of runs as pages for a browser on this machine.
//!
//! Pages are made when they are asked for, from run directories alone. What an address names is looked up in
//! the list of what the folder holds, so that nothing outside of it can be read. Only this machine is answered,
//! and only by names of this machine: a page of another site that has its own name lead here gets nothing.

mod shelf;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use clap::Args;
use reqwest::{Method, StatusCode, header};
use tokio::net::TcpListener;

use crate::console;
use crate::failure::{Exit, Failure};
use crate::stopping;
use shelf::{Answer, Shelf};

/// Show a folder of runs in a browser: the history of each plan, any report, and two runs compared.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: what is in runs/, at port 8470 of this machine
  plimsoll view
Example: another folder, at any free port
  plimsoll view results --port 0")]
pub(crate) struct Arguments {
    /// A folder with run directories, at any depth.
    #[arg(value_name = "DIR", default_value = "runs")]
    dir: PathBuf,

    /// The port of this machine (127.0.0.1) to listen on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8470)]
    port: u16,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    if !arguments.dir.is_dir() {
        return Err(Failure::usage(
            format_args!("there is no folder {}", arguments.dir.display()),
            "give the folder that holds run directories; measuring commands make runs/ where they are started",
        ));
    }
    let shelf = Arc::new(Mutex::new(Shelf::new(&arguments.dir)));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    stopping::until_stopped(Some(1), "", async |stopped| {
        let listener = TcpListener::bind(address).await.map_err(|e| {
            Failure::error_with_help(
                format_args!("can't listen on {address}: {e}"),
                "give another port with --port; 0 takes any free one",
            )
        })?;
        let address = listener.local_addr().map_err(Failure::error)?;
        console::result(format_args!(
            "view: listening on {address} (open http://{address}/ in a browser; Ctrl-C ends it)\n"
        ))?;
        let router = Router::new().fallback(answer).with_state(shelf);
        axum::serve(listener, router)
            .with_graceful_shutdown(stopped)
            .await
            .map_err(Failure::error)
    })?;
    Ok(Exit::Done)
}

async fn answer(State(shelf): State<Arc<Mutex<Shelf>>>, request: Request) -> Response {
    let host = request.headers().get(header::HOST);
    if !host.and_then(|h| h.to_str().ok()).is_some_and(is_here) {
        return (
            StatusCode::MISDIRECTED_REQUEST,
            "not a name of this machine\n",
        )
            .into_response();
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let uri = request.uri().clone();
    let made = tokio::task::spawn_blocking(move || {
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.answer(uri.path(), uri.query().unwrap_or_default())
    });
    let (status, page) = match made.await {
        Ok(Answer::Page(page)) => (StatusCode::OK, page),
        Ok(Answer::Unknown(page)) => (StatusCode::NOT_FOUND, page),
        Ok(Answer::Failed(page)) => (StatusCode::UNPROCESSABLE_ENTITY, page),
        // The panic was reported when it happened.
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let fields = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (status, fields, page).into_response()
}

/// Whether a Host field names this machine, with or without a port.
fn is_here(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in ["localhost", "localhost:8470", "127.0.0.1:1", "[::1]:8470"] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "127.0.0.1.example.org:80",
            "localhost.",
            "[::1",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }
}
