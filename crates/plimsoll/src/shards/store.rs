//! Accesses the rendezvous: a folder or an object store.
//!
//! Requests run on the store's own thread, so callers need not block. Retries by the object-store library are disabled,
//! because callers decide when and how long to retry (`StoreRequestSlot`). If the shards share no store, shard 0 serves a
//! folder ([`host`]) to the others over TCP ([`link`]).

mod direct;
mod host;
mod tcp_rendezvous;

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use plimsoll_engine::StopFlag;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::objects::to_json;
use crate::failure::{Failure, message_with_causes};
use direct::NoRedirectConnector;
pub(super) use host::SHUTDOWN_GRACE;
use host::StoreHost;
pub(crate) use tcp_rendezvous::RendezvousAccess;
use tcp_rendezvous::{RendezvousAddress, StoreClient};

/// Maximum size of an object, bytes; the largest are compressed log parts.
const MAX_OBJECT_BYTES: u64 = 256 << 20;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

const RENDEZVOUS_HELP: &str = "give a folder that all shards share (file:///shared/rendezvous), a bucket (s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX), or where shard 0 listens: tcp://HOST:PORT";

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoreRequest {
    /// Writes an object; with `create` only if no object has that name.
    Put {
        name: String,
        #[serde(skip)]
        bytes: Vec<u8>,
        create: bool,
    },
    Get(String),
    /// Lists the names in a folder.
    List(String),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoreResponse {
    Done,
    /// The object that was to be created already exists.
    Exists,
    Bytes {
        #[serde(skip)]
        bytes: Vec<u8>,
        /// Time of the object's last write on the store's clock, ns since 1970.
        modified_unix_ns: u64,
    },
    Missing,
    Names(Vec<String>),
    Failed {
        problem: String,
        /// Whether the error is permanent, so that retries can't succeed.
        for_good: bool,
    },
}

/// The rendezvous, or a folder in it.
#[derive(Clone)]
pub(super) struct RendezvousStore {
    backend: StoreBackend,
    base: Path,
    runtime: Arc<Runtime>,
    /// The TCP server of the store; `None` if this process does not run it.
    host: Option<Arc<StoreHost>>,
}

/// The role of a shard in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardRole {
    /// Shard 0, the coordinator.
    Leader,
    Member,
}

/// How the store is accessed.
#[derive(Clone)]
enum StoreBackend {
    Folder(Arc<LocalFileSystem>),
    Objects(Arc<dyn ObjectStore>),
    Link(Arc<StoreClient>),
}

impl RendezvousStore {
    /// Opens the store at `url`, without sending a request. For `tcp://`, the coordinator starts serving the store.
    ///
    /// # Errors
    /// When `url` is invalid, the environment lacks credentials for the store, or the coordinator can't serve it.
    pub(super) fn open(
        url: &str,
        access: &RendezvousAccess,
        role: ShardRole,
    ) -> Result<RendezvousStore, Failure> {
        let wrong = |problem: String| {
            Failure::usage(
                format_args!("rendezvous `{url}`: {problem}"),
                RENDEZVOUS_HELP,
            )
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("rendezvous")
            .enable_all()
            .build()
            .map_err(|e| Failure::error(format_args!("can't start a thread: {e}")))?;
        let mut host = None;
        let (way, path) = match url.strip_prefix("tcp://") {
            Some(address) => {
                let address = RendezvousAddress::parse(address).map_err(wrong)?;
                let way = match role {
                    ShardRole::Member => StoreBackend::Link(Arc::new(
                        StoreClient::new(&address, access).map_err(wrong)?,
                    )),
                    ShardRole::Leader => {
                        let folder = tempfile::Builder::new()
                            .prefix("plimsoll-rendezvous-")
                            .tempdir()
                            .map_err(|e| {
                                Failure::error(format_args!("can't make a folder for the run: {e}"))
                            })?;
                        let store = LocalFileSystem::new_with_prefix(folder.path())
                            .map_err(|e| wrong(message_with_causes(&e)))?;
                        let store = Arc::new(store);
                        let (held, handle) = (Arc::clone(&store), runtime.handle());
                        let started = StoreHost::start(&address, access, folder, held, handle);
                        host = Some(Arc::new(started.map_err(wrong)?));
                        StoreBackend::Folder(store)
                    }
                };
                (way, String::new())
            }
            None => open_backend(url)?,
        };
        Ok(RendezvousStore {
            backend: way,
            base: Path::from(path),
            runtime: Arc::new(runtime),
            host,
        })
    }

    /// Returns the store of a subfolder.
    pub(super) fn subfolder(&self, name: &str) -> RendezvousStore {
        RendezvousStore {
            base: join_path(&self.base, name),
            ..self.clone()
        }
    }

    /// Returns whether this process serves the store to other shards over TCP.
    pub(super) fn is_served_here(&self) -> bool {
        self.host.is_some()
    }

    /// Keeps serving after the end of the run. Returns once `others` peers have connected and disconnected, after the
    /// time `patience`, or on an immediate stop request. Returns immediately if this process does not serve the store.
    pub(super) fn wait_for_peers_to_finish(
        &self,
        others: u32,
        patience: Duration,
        stop: &StopFlag,
    ) {
        if let Some(host) = &self.host {
            host.wait_for_peers_to_finish(others.into(), patience, stop);
        }
    }

    /// Removes the folder that this process has served if its data is saved in a run directory (`is_kept`); otherwise
    /// prints how to recover the data. Does nothing if this process does not serve the store.
    pub(super) fn close(&self, is_kept: bool) {
        if let Some(host) = &self.host {
            host.remove_or_report_folder(is_kept);
        }
    }

    /// Sends a request; `then` is called with the answer on another thread.
    pub(super) fn send(
        &self,
        ask: StoreRequest,
        then: impl FnOnce(StoreResponse) + Send + 'static,
    ) {
        let (way, base) = (self.backend.clone(), self.base.clone());
        self.runtime
            .spawn(async move { then(way.send(&base, ask).await) });
    }

    /// Sends a request and waits for the answer, with a few retries.
    ///
    /// # Errors
    /// When the store refuses the request or can't be reached.
    pub(super) fn send_and_wait(&self, ask: &StoreRequest) -> Result<StoreResponse, Failure> {
        const MAX_ATTEMPTS: u32 = 5;
        let mut pause = Duration::from_millis(250);
        let mut tried = 1;
        loop {
            let asked = self.backend.send(&self.base, ask.clone());
            let (problem, for_good) = match self.runtime.block_on(asked) {
                StoreResponse::Failed { problem, for_good } => (problem, for_good),
                answer => return Ok(answer),
            };
            if for_good || tried == MAX_ATTEMPTS {
                return Err(Failure::error(format_args!("rendezvous: {problem}")));
            }
            tried += 1;
            std::thread::sleep(pause);
            pause *= 2;
        }
    }
}

impl StoreBackend {
    async fn send(&self, base: &Path, ask: StoreRequest) -> StoreResponse {
        let asked = async {
            match self {
                StoreBackend::Folder(store) => match &ask {
                    StoreRequest::Get(name) => {
                        match check_is_regular_file(store, &join_path(base, name)) {
                            Ok(()) => perform_request(&**store, base, ask).await,
                            Err(refused) => refused,
                        }
                    }
                    _ => perform_request(&**store, base, ask).await,
                },
                StoreBackend::Objects(store) => perform_request(&**store, base, ask).await,
                StoreBackend::Link(link) => link.send(ask.with_base_folder(base)).await,
            }
        };
        let answered = tokio::time::timeout(REQUEST_TIMEOUT, asked).await;
        answered.unwrap_or_else(|_| StoreResponse::Failed {
            problem: format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
            for_good: false,
        })
    }
}

impl StoreRequest {
    /// Returns a request that writes `value` as JSON, replacing an existing object.
    pub(super) fn put_json_request(
        name: impl Into<String>,
        value: &impl Serialize,
    ) -> StoreRequest {
        StoreRequest::Put {
            name: name.into(),
            bytes: to_json(value),
            create: false,
        }
    }

    /// Puts the folder `base` in front of the name in the request, so that the name is relative to the store's root.
    fn with_base_folder(mut self, base: &Path) -> StoreRequest {
        let (StoreRequest::Put { name, .. } | StoreRequest::Get(name) | StoreRequest::List(name)) =
            &mut self;
        *name = join_path(base, name).to_string();
        self
    }
}

/// Returns the path of the object `name` in the folder `base`.
fn join_path(base: &Path, name: &str) -> Path {
    let name = Path::from(name);
    base.parts().chain(name.parts()).collect()
}

/// Opens the folder or bucket at `url`; returns the opened store and the path of the rendezvous in it.
fn open_backend(url: &str) -> Result<(StoreBackend, String), Failure> {
    let wrong = |problem: String| {
        Failure::usage(
            format_args!("rendezvous `{url}`: {problem}"),
            RENDEZVOUS_HELP,
        )
    };
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| wrong("not a URL".to_owned()))?;
    let failed = |e: object_store::Error| wrong(message_with_causes(&e));
    // Only the path is needed here, because the builder extracts the bucket from the URL.
    let path = rest.split_once('/').map_or("", |(_, path)| path).to_owned();
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    // Use a macro, because the library's builders share no trait.
    macro_rules! bucket {
        ($builder:ident) => {{
            let builder = $builder::from_env().with_url(url).with_retry(retry);
            let builder = builder.with_http_connector(NoRedirectConnector);
            StoreBackend::Objects(Arc::new(builder.build().map_err(failed)?))
        }};
    }
    Ok(match scheme {
        "file" => {
            let Some(path) = rest.strip_prefix('/').map(|_| rest) else {
                return Err(wrong("the path must be absolute: file:///PATH".to_owned()));
            };
            std::fs::create_dir_all(path)
                .map_err(|e| wrong(format!("can't make the folder {path}: {e}")))?;
            let store = LocalFileSystem::new_with_prefix(path).map_err(failed)?;
            (StoreBackend::Folder(Arc::new(store)), String::new())
        }
        "s3" | "s3a" => (bucket!(AmazonS3Builder), path),
        "gs" => (bucket!(GoogleCloudStorageBuilder), path),
        "az" | "abfs" | "abfss" => (bucket!(MicrosoftAzureBuilder), path),
        other => {
            return Err(wrong(format!(
                "{other}:// is not a known kind of rendezvous"
            )));
        }
    })
}

async fn perform_request(store: &dyn ObjectStore, base: &Path, ask: StoreRequest) -> StoreResponse {
    let at = |name: &str| join_path(base, name);
    let result = match ask {
        StoreRequest::Put {
            name,
            bytes,
            create,
        } => {
            let mode = if create {
                PutMode::Create
            } else {
                PutMode::Overwrite
            };
            let (name, payload) = (at(&name), PutPayload::from(bytes));
            let put = store.put_opts(&name, payload.clone(), PutOptions::from(mode));
            match put.await {
                // This store does not support creating without overwriting, so overwrite. Callers check beforehand that
                // the object does not exist, which leaves a small race.
                Err(object_store::Error::NotImplemented { .. }) => {
                    store.put(&name, payload).await.map(|_| StoreResponse::Done)
                }
                put => put.map(|_| StoreResponse::Done),
            }
        }
        StoreRequest::Get(name) => get_object(store, &at(&name)).await,
        StoreRequest::List(folder) => {
            store
                .list_with_delimiter(Some(&at(&folder)))
                .await
                .map(|found| {
                    let objects = found.objects.iter().map(|o| &o.location);
                    let all = objects.chain(&found.common_prefixes);
                    StoreResponse::Names(all.map(ToString::to_string).collect())
                })
        }
    };
    result.unwrap_or_else(|e| match e {
        object_store::Error::NotFound { .. } => StoreResponse::Missing,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            StoreResponse::Exists
        }
        e => StoreResponse::Failed {
            for_good: matches!(
                e,
                object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::InvalidPath { .. }
                    | object_store::Error::NotSupported { .. }
            ),
            problem: message_with_causes(&e),
        },
    })
}

/// Checks that the object is a regular file in the store's folder. Other users may be able to write to the folder;
/// opening a FIFO would block forever, and a symbolic link could lead to any file on this machine.
fn check_is_regular_file(store: &LocalFileSystem, name: &Path) -> Result<(), StoreResponse> {
    let refused = |problem: String| StoreResponse::Failed {
        problem,
        for_good: true,
    };
    let parts: Vec<_> = name.parts().collect();
    for length in 1..=parts.len() {
        let path = store
            .path_to_filesystem(&parts[..length].iter().cloned().collect())
            .map_err(|e| refused(message_with_causes(&e)))?;
        // Accept a missing file: the store reports it.
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            return Ok(());
        };
        let is_right = if length == parts.len() {
            found.is_file()
        } else {
            found.is_dir()
        };
        if !is_right {
            let path = path.display();
            return Err(refused(format!("{path} is a link, or not a regular file")));
        }
    }
    Ok(())
}

async fn get_object(store: &dyn ObjectStore, name: &Path) -> object_store::Result<StoreResponse> {
    let found = store.get(name).await?;
    if found.meta.size > MAX_OBJECT_BYTES {
        return Ok(StoreResponse::Failed {
            problem: format!(
                "{name} has {} bytes, more than an object of a run can have",
                found.meta.size
            ),
            for_good: true,
        });
    }
    let modified = found.meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
    Ok(StoreResponse::Bytes {
        modified_unix_ns: u64::try_from(modified).unwrap_or(0),
        bytes: found.bytes().await?.to_vec(),
    })
}
