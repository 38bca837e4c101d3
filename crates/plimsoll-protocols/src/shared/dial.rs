//! Connects to the first of several addresses that responds (RFC 8305 §5), and opens a tunnel through a
//! proxy.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_engine::transport::tunnel::{
    ProxyHandshake, Tunnel, describe_proxy_failure, is_failure_of_proxy, proxy_error,
};
use plimsoll_engine::worker::classify_connect_error;
use plimsoll_engine::{Address, ConnectFailure};
use plimsoll_model::plan::UnixSocket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

/// The recommended Connection Attempt Delay of RFC 8305 §8.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to the first of several addresses that responds; with a tunnel, they are those of a proxy, which connects to
/// the target.
///
/// # Errors
/// Returns why the last address, or the proxy, could not connect.
pub(crate) async fn connect_to_target(
    addresses: &[Address],
    tunnel: Option<&Arc<Tunnel>>,
) -> Result<TcpStream, ConnectFailure> {
    let Some(tunnel) = tunnel else {
        let connected = connect_to_first(addresses).await;
        return connected.map_err(|(address, e)| {
            ConnectFailure::new(classify_connect_error(&e), address.describe_failure(&e))
        });
    };
    let failure = |e: &io::Error, detail: String| ConnectFailure {
        is_at_proxy: is_failure_of_proxy(e),
        ..ConnectFailure::new(classify_connect_error(e), detail)
    };
    let connected = connect_to_first(addresses).await;
    let mut proxy =
        connected.map_err(|(address, e)| failure(&e, describe_proxy_failure(&address, &e)))?;
    let opened = open_tunnel(&mut proxy, tunnel).await;
    opened.map_err(|e| failure(&e, e.to_string()))?;
    Ok(proxy)
}

/// Tries the addresses in order: the next one when an attempt fails, or in parallel after [`ATTEMPT_DELAY`].
///
/// # Errors
/// Returns the last address and its error if no address can be connected to.
async fn connect_to_first(addresses: &[Address]) -> Result<TcpStream, (Address, io::Error)> {
    let mut left = addresses.iter().cloned();
    let mut attempts = JoinSet::new();
    let mut last = None;
    loop {
        if let Some(address) = left.next() {
            attempts.spawn(async move {
                let connected = connect(&address).await;
                connected.map_err(|e| (address, e))
            });
        }
        tokio::select! {
            Some(attempt) = attempts.join_next() => match attempt {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(failed)) => last = Some(failed),
                // Can't happen: an attempt neither panics nor is cancelled.
                Err(_) => {}
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if left.len() > 0 => {}
            else => break,
        }
    }
    Err(last.unwrap_or_else(|| {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        (nowhere.into(), io::ErrorKind::AddrNotAvailable.into())
    }))
}

/// Asks the proxy to connect to the target.
///
/// # Errors
/// Returns an error if the proxy refuses, could not connect, or is not a proxy.
async fn open_tunnel(proxy: &mut TcpStream, tunnel: &Arc<Tunnel>) -> io::Result<()> {
    let mut asked = Vec::new();
    let mut opening = ProxyHandshake::begin(Arc::clone(tunnel), &mut asked);
    let mut answer = Vec::new();
    loop {
        proxy.write_all(&asked).await.map_err(|e| proxy_error(&e))?;
        asked.clear();
        // Reads byte by byte, so that no bytes of the target are consumed.
        answer.push(proxy.read_u8().await.map_err(|e| proxy_error(&e))?);
        let (taken, is_open) = opening.advance(&answer, &mut asked)?;
        answer.drain(..taken);
        if is_open {
            return Ok(());
        }
    }
}

async fn connect(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Tcp(address) => {
            let connected = TcpStream::connect(address).await;
            connected.map_err(|e| LocalResourceError::refine_connect_error(e, *address))
        }
        Address::Unix(socket) => {
            let stream = match socket {
                UnixSocket::Path(path) => UnixStream::connect(path).await?,
                UnixSocket::Abstract(name) => UnixStream::connect(format!("\0{name}")).await?,
            };
            // A Unix stream socket reads and writes like a TCP socket, so tokio's TCP type can wrap it.
            TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
        }
    }
}
