//! A connection to whichever of several addresses answers first (RFC 8305 §5).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use plimsoll_engine::Address;
use plimsoll_model::plan::UnixSocket;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

/// RFC 8305 §8: the recommended Connection Attempt Delay.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries the next address where one fails, or beside it when it takes long.
///
/// # Errors
/// When no address can be connected to: the last one, and why.
pub(super) async fn dial(addresses: &[Address]) -> Result<TcpStream, (Address, io::Error)> {
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
                // An attempt neither panics nor is cancelled.
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

async fn connect(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Tcp(address) => TcpStream::connect(address).await,
        Address::Unix(socket) => {
            let stream = match socket {
                UnixSocket::Path(path) => UnixStream::connect(path).await?,
                UnixSocket::Abstract(name) => UnixStream::connect(format!("\0{name}")).await?,
            };
            // Reading and writing, one stream socket is like another.
            TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
        }
    }
}
