//! Shard 0 as the rendezvous of all: it serves a folder of its own over TCP ([`super::link`]).
//!
//! The folder is on a disk, so that what shards have handed over survives shard 0: `plimsoll merge
//! file://FOLDER` puts it together. It is removed once the run is written.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use plimsoll_stack::certificates::CertificateSet;
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;

use super::link::{
    Access, Address, FIRST_FRAME, FRAME, Request, Stream, admit, read, server, write,
};
use super::{Answer, LONGEST, answer};
use crate::console;

/// How long shard 0 stays for the others to learn of the end.
const FAREWELL: Duration = Duration::from_secs(20);

/// A peer that shows no token within this time is left alone.
const HELLO: Duration = Duration::from_secs(10);

pub(super) struct Host {
    folder: PathBuf,
    serving: Arc<Serving>,
}

struct Serving {
    store: Arc<dyn ObjectStore>,
    token: String,
    tls: Option<TlsAcceptor>,
    /// Connections that were let in and are open.
    open: AtomicU64,
}

impl Host {
    /// A folder for the objects of a run, which nobody else can read.
    ///
    /// # Errors
    /// When it can't be made.
    pub(super) fn folder() -> std::io::Result<PathBuf> {
        Ok(tempfile::Builder::new()
            .prefix("plimsoll-rendezvous-")
            .tempdir()?
            .keep())
    }

    /// Serves `store`, which is in `folder`, from now on.
    ///
    /// # Errors
    /// Where the token is missing, certificates can't be used, or the port can't be had.
    pub(super) fn start(
        address: &Address,
        access: &Access,
        folder: PathBuf,
        store: Arc<dyn ObjectStore>,
        runtime: &Handle,
    ) -> Result<Host, String> {
        let tls = match &access.certs {
            None => None,
            Some(dir) => {
                let config = server(&CertificateSet::in_dir(dir)).map_err(|e| e.to_string())?;
                Some(TlsAcceptor::from(config))
            }
        };
        let serving = Arc::new(Serving {
            store,
            token: access.token()?,
            tls,
            open: AtomicU64::new(0),
        });
        let unbound = |e: std::io::Error| format!("can't listen at port {}: {e}", address.port);
        let listener = address.listen().map_err(unbound)?;
        listener.set_nonblocking(true).map_err(unbound)?;
        runtime.spawn(accept(listener, Arc::clone(&serving)));
        console::confirmation(format_args!(
            "shard 0 keeps what shards hand over in {} until the run is written",
            folder.display()
        ));
        Ok(Host { folder, serving })
    }

    /// Returns once the others have gone, or had the time to: they learn of the run's end here.
    pub(super) fn see_off(&self) {
        const TURN: Duration = Duration::from_millis(50);
        let mut waited = Duration::ZERO;
        while self.serving.open.load(Ordering::Relaxed) > 0 && waited < FAREWELL {
            thread::sleep(TURN);
            waited += TURN;
        }
    }

    /// `is_kept`: what was handed over is in a run directory, and no longer needed here.
    pub(super) fn clear(&self, is_kept: bool) {
        if is_kept {
            // What is left in a temporary folder does no harm.
            let _ = std::fs::remove_dir_all(&self.folder);
        } else {
            console::notice(format_args!(
                "what shards handed over is in {}: plimsoll merge file://… puts it together",
                self.folder.display()
            ));
        }
    }
}

async fn accept(listener: TcpListener, serving: Arc<Serving>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = Arc::clone(&serving);
                tokio::spawn(async move {
                    // A peer that fails is one that has gone, and it tries again by itself.
                    let _ = serve(stream, &serving).await;
                });
            }
            // Descriptors have run out: some come back.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: tokio::net::TcpStream, serving: &Serving) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let admitted = tokio::time::timeout(HELLO, enter(stream, serving)).await??;
    let Some(mut stream) = admitted else {
        return Ok(());
    };
    serving.open.fetch_add(1, Ordering::Relaxed);
    let ended = converse(&mut *stream, serving).await;
    serving.open.fetch_sub(1, Ordering::Relaxed);
    ended
}

/// The connection, where its peer has the token.
async fn enter(
    stream: tokio::net::TcpStream,
    serving: &Serving,
) -> std::io::Result<Option<Box<dyn Stream>>> {
    let mut stream: Box<dyn Stream> = match &serving.tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    };
    let Some(first) = read(&mut *stream, FIRST_FRAME).await? else {
        return Ok(None);
    };
    if let Err(problem) = admit(&first, &serving.token) {
        let refused = Answer::Failed {
            problem,
            for_good: true,
        };
        write(&mut *stream, refused).await?;
        return Ok(None);
    }
    write(&mut *stream, Answer::Done).await?;
    Ok(Some(stream))
}

async fn converse(stream: &mut dyn Stream, serving: &Serving) -> std::io::Result<()> {
    while let Some(request) = read(stream, FRAME).await? {
        let Request::Ask(ask) = request else {
            return Err(std::io::ErrorKind::InvalidData.into());
        };
        let root = Path::default();
        let answered = answer(&*serving.store, &root, ask);
        let Ok(answered) = tokio::time::timeout(LONGEST, answered).await else {
            return Err(std::io::ErrorKind::TimedOut.into());
        };
        write(stream, answered).await?;
    }
    Ok(())
}
