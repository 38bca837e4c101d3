//! `plimsoll view`: serves a folder of runs as pages to a browser on this machine.
//!
//! Pages are rendered on request from run directories. IDs in URLs are looked up in the list of directories found, so
//! nothing outside the folder can be read. Only requests from loopback addresses with a loopback Host are answered,
//! which prevents DNS rebinding by other sites.

mod run_index;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use plimsoll_report::history::{document, group_into_series};
use plimsoll_report::terminal;
use plimsoll_serving::pages::{self, Method, Request, Response, StatusCode, header};
use tokio::sync::Mutex;

use crate::failure::{Exit, Failure, message_with_causes};
use crate::load::documents::JsonFlag;
use crate::load::presentation;
use crate::screen::console;
use crate::system::stopping;
use run_index::{PageResult, RunIndex};

/// Show a folder of runs in a browser: histories of plans, reports, and two runs compared.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: what is in runs/, at port 8470 of this machine
  plimsoll view
Example: another folder, at any free port
  plimsoll view results --port 0
Example: where the history of each plan changed, as text
  plimsoll view --changes")]
pub(crate) struct ViewArguments {
    /// A folder with run directories, at any depth.
    #[arg(value_name = "DIR", default_value = "runs")]
    dir: PathBuf,

    /// Print the points at which the history of a plan changed, and serve no pages.
    #[arg(long, conflicts_with = "port")]
    changes: bool,

    #[command(flatten)]
    json: JsonFlag,

    /// The port of 127.0.0.1 to listen on; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 8470)]
    port: u16,
}

pub(crate) fn execute(arguments: &ViewArguments) -> Result<Exit, Failure> {
    if !arguments.dir.is_dir() {
        return Err(Failure::usage(
            format_args!("there is no folder {}", arguments.dir.display()),
            "give the folder that holds run directories; measuring commands make runs/ where they are started",
        ));
    }
    let mut index = RunIndex::new(&arguments.dir);
    if arguments.changes {
        return print_changes(&mut index, &arguments.json);
    }
    if arguments.json.json {
        return Err(Failure::usage(
            "--json prints changes, and --changes is not given",
            "add --changes; pages have no JSON, but `plimsoll report RUN --json` has that of a run",
        ));
    }
    let shelf = Arc::new(Mutex::new(index));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    stopping::run_until_stopped(Some(1), "", async |stopped| {
        let bound = pages::bind(address).map_err(|e| {
            Failure::error_with_help(
                format_args!("can't listen on {address}: {e}"),
                "give another port with --port; 0 takes any free one",
            )
        })?;
        let address = bound.address();
        console::print_result(format_args!(
            "view: listening on {address} (open http://{address}/ in a browser; Ctrl-C ends it)\n"
        ))?;
        let page = move |request| answer_request(Arc::clone(&shelf), request);
        let served = pages::serve(bound, page, stopped).await;
        served.map_err(|e| Failure::error(message_with_causes(&e)))
    })?;
    Ok(Exit::Done)
}

/// Prints the change points in the histories of the folder's plans.
fn print_changes(index: &mut RunIndex, json: &JsonFlag) -> Result<Exit, Failure> {
    let (items, unreadable) = index.items();
    for (dir, why) in unreadable {
        console::print_notice(format_args!("{dir} is left out: {why}"));
    }
    let series = group_into_series(&items);
    let text = terminal::render_changes(&series, &presentation::terminal_options());
    json.print_result(&document(&series), text.trim_end())?;
    Ok(Exit::Done)
}

async fn answer_request(shelf: Arc<Mutex<RunIndex>>, request: Request<()>) -> Response<String> {
    let host = request.headers().get(header::HOST);
    if !host
        .and_then(|h| h.to_str().ok())
        .is_some_and(is_loopback_host)
    {
        let text = "the Host header is not a name of this machine\n".to_owned();
        return response(StatusCode::MISDIRECTED_REQUEST, text, &[]);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return response(StatusCode::METHOD_NOT_ALLOWED, String::new(), &[]);
    }
    // Wait for the lock here and not in the blocking thread: no page is rendered for a request cancelled while waiting.
    let mut shelf = shelf.lock_owned().await;
    let made = tokio::task::spawn_blocking(move || {
        let uri = request.uri();
        shelf.render_page(uri.path(), uri.query().unwrap_or_default())
    });
    let (status, page) = match made.await {
        Ok(PageResult::Page(page)) => (StatusCode::OK, page),
        Ok(PageResult::Unknown(page)) => (StatusCode::NOT_FOUND, page),
        Ok(PageResult::Failed(page)) => (StatusCode::UNPROCESSABLE_ENTITY, page),
        // The panic hook has already reported the panic.
        Err(_) => return response(StatusCode::INTERNAL_SERVER_ERROR, String::new(), &[]),
    };
    let fields = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    response(status, page, &fields)
}

fn response(
    status: StatusCode,
    page: String,
    fields: &[(header::HeaderName, &'static str)],
) -> Response<String> {
    let mut response = Response::new(page);
    *response.status_mut() = status;
    for (name, value) in fields {
        let value = header::HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Returns whether the value of a Host field is a loopback name or address, with or without a port.
fn is_loopback_host(host: &str) -> bool {
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
    fn only_loopback_hosts_are_accepted() {
        for host in ["localhost", "localhost:8470", "127.0.0.1:1", "[::1]:8470"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "127.0.0.1.example.org:80",
            "localhost.",
            "[::1",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
