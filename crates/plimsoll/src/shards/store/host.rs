//! Serves a folder of shard 0 over TCP ([`super::link`]) as the rendezvous of all shards.
//!
//! The folder is on disk, so that shard data survives a crash of shard 0 and can be recovered with `plimsoll merge
//! file://FOLDER`. The folder is removed once the run directory is written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use plimsoll_engine::StopFlag;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_serving::accepting::{ConnectionHandler, accept_and_serve};
use plimsoll_serving::{ServerStream, UnprovenGuard};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::tcp_rendezvous::{
    FIRST_FRAME_LIMITS, FRAME_LIMITS, RendezvousAccess, RendezvousAddress, RendezvousRequest,
    check_hello, read_frame, write_frame,
};
use super::{REQUEST_TIMEOUT, StoreResponse, perform_request};
use crate::screen::console;

/// How long shard 0 keeps serving after the run, so that the other shards can read the result.
pub(in crate::shards) const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);

/// Time within which a peer must send the token; after that it is disconnected.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The TCP server of a rendezvous folder.
pub(super) struct StoreHost {
    folder: PathBuf,
    serving: HostService,
}

/// State shared by all connections.
#[derive(Clone)]
struct HostService {
    store: Arc<dyn ObjectStore>,
    token: String,
    /// Number of authenticated connections that are open.
    open: Arc<AtomicU64>,
    /// Total number of authenticated connections so far.
    accepted_connections: Arc<AtomicU64>,
    /// Guard that marks the peer as unauthenticated; dropped once the peer has sent the token.
    unproven: Option<Arc<UnprovenGuard>>,
}

impl StoreHost {
    /// Starts serving `store`, whose files are in `folder`. Other users can't read the folder.
    ///
    /// # Errors
    /// When the token is missing, certificates can't be used, or the port is taken.
    pub(super) fn start(
        address: &RendezvousAddress,
        access: &RendezvousAccess,
        folder: TempDir,
        store: Arc<dyn ObjectStore>,
        runtime: &Handle,
    ) -> Result<StoreHost, String> {
        let serving = HostService {
            store,
            token: access.token()?,
            open: Arc::default(),
            accepted_connections: Arc::default(),
            unproven: None,
        };
        let bound = address.listen(access).map_err(|e| e.to_string())?;
        let (server, never) = (serving.clone(), std::future::pending());
        runtime.spawn(async move { accept_and_serve(bound, server, never).await });
        let folder = folder.keep();
        console::print_confirmation(format_args!(
            "shard 0: storing shard data in {} until the run is complete",
            folder.display()
        ));
        Ok(StoreHost { folder, serving })
    }

    /// Waits until `others` peers have connected to read the run's result and have disconnected, until `patience` has
    /// passed, or until an immediate stop request.
    pub(super) fn wait_for_peers_to_finish(
        &self,
        others: u64,
        patience: Duration,
        stop: &StopFlag,
    ) {
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        let mut waited = Duration::ZERO;
        let HostService {
            open,
            accepted_connections: came,
            ..
        } = &self.serving;
        let is_awaited =
            || open.load(Ordering::Relaxed) > 0 || came.load(Ordering::Relaxed) < others;
        while is_awaited() && waited < patience && stop.level() != StopUrgency::Now {
            thread::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
    }

    /// Removes the folder if its data is saved in a run directory (`is_kept`); otherwise prints how to recover the
    /// data.
    pub(super) fn remove_or_report_folder(&self, is_kept: bool) {
        if is_kept {
            // Ignore errors, because files that remain in a temporary folder do no harm.
            let _ = std::fs::remove_dir_all(&self.folder);
        } else {
            console::print_notice(format_args!(
                "shard data kept in {}; recover it with `plimsoll merge file://…`",
                self.folder.display()
            ));
        }
    }
}

impl ConnectionHandler for HostService {
    fn with_unproven_guard(self, mark: UnprovenGuard) -> HostService {
        HostService {
            unproven: Some(Arc::new(mark)),
            ..self
        }
    }

    async fn serve<S: ServerStream>(
        mut self,
        mut stream: S,
        _: watch::Receiver<()>,
    ) -> io::Result<()> {
        if !tokio::time::timeout(HELLO_TIMEOUT, self.authenticate(&mut stream)).await?? {
            return Ok(());
        }
        self.unproven = None;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.accepted_connections.fetch_add(1, Ordering::Relaxed);
        let ended = self.answer_requests(&mut stream).await;
        self.open.fetch_sub(1, Ordering::Relaxed);
        ended
    }
}

impl HostService {
    /// Reads the first frame; returns whether the peer has the token.
    async fn authenticate(&self, stream: &mut impl ServerStream) -> io::Result<bool> {
        let Some(first) = read_frame(stream, FIRST_FRAME_LIMITS).await? else {
            return Ok(false);
        };
        let admitted = check_hello(&first, &self.token);
        let is_admitted = admitted.is_ok();
        let refused = |problem| StoreResponse::Failed {
            problem,
            for_good: true,
        };
        write_frame(
            stream,
            admitted.map_or_else(refused, |()| StoreResponse::Done),
        )
        .await?;
        Ok(is_admitted)
    }

    async fn answer_requests(&self, stream: &mut impl ServerStream) -> io::Result<()> {
        while let Some(request) = read_frame(stream, FRAME_LIMITS).await? {
            let RendezvousRequest::Ask(ask) = request else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let root = Path::default();
            let answered = perform_request(&*self.store, &root, ask);
            let answered = tokio::time::timeout(REQUEST_TIMEOUT, answered).await?;
            write_frame(stream, answered).await?;
        }
        Ok(())
    }
}
