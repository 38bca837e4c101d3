//! The rendezvous: a folder or an object store.
//!
//! Requests are answered on a thread of the store's own; whoever asks never waits. The library
//! tries nothing again: when a request is worth trying again, and for how long, is decided where
//! its meaning is known ([`super::lane`]).

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
use tokio::runtime::Runtime;

use crate::failure::{Failure, chain};

/// No request may take longer.
const LONGEST: Duration = Duration::from_secs(15);

const HELP: &str = "give a folder that all shards share (file:///shared/rendezvous), or a bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// `create`: only if there is none of that name.
    Put {
        name: String,
        bytes: Vec<u8>,
        create: bool,
    },
    Get(String),
    /// The names in a folder.
    List(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// What was to be created is there.
    Exists,
    Bytes {
        bytes: Vec<u8>,
        /// When it was written, on the store's clock: nanoseconds since 1970.
        modified_unix_ns: u64,
    },
    Missing,
    Names(Vec<String>),
    Failed {
        problem: String,
        /// Trying again can't help.
        for_good: bool,
    },
}

pub(super) struct Store {
    inner: Arc<dyn ObjectStore>,
    base: Path,
    runtime: Runtime,
}

impl Store {
    /// Opens `folder` in the store at `url`. Nothing is asked of it yet.
    ///
    /// # Errors
    /// Where `url` names no store, or the environment lacks what it needs.
    pub(super) fn open(url: &str, folder: &str) -> Result<Store, Failure> {
        let wrong =
            |problem: String| Failure::usage(format_args!("rendezvous `{url}`: {problem}"), HELP);
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("no URL".to_owned()))?;
        let failed = |e: object_store::Error| wrong(chain(&e));
        // The bucket is the builder's to find.
        let within = |rest: &str| rest.split_once('/').map_or("", |(_, path)| path).to_owned();
        let retry = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        let (inner, path): (Arc<dyn ObjectStore>, String) = match scheme {
            "file" => {
                let Some(path) = rest.strip_prefix('/').map(|_| rest) else {
                    return Err(wrong(
                        "a folder is named from the root: file:///PATH".to_owned(),
                    ));
                };
                std::fs::create_dir_all(path)
                    .map_err(|e| wrong(format!("can't make the folder {path}: {e}")))?;
                let store = LocalFileSystem::new_with_prefix(path).map_err(failed)?;
                (Arc::new(store), String::new())
            }
            "s3" | "s3a" => {
                let store = AmazonS3Builder::from_env()
                    .with_url(url)
                    .with_retry(retry)
                    .build()
                    .map_err(failed)?;
                (Arc::new(store), within(rest))
            }
            "gs" => {
                let store = GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retry)
                    .build()
                    .map_err(failed)?;
                (Arc::new(store), within(rest))
            }
            "az" | "abfs" | "abfss" => {
                let store = MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_retry(retry)
                    .build()
                    .map_err(failed)?;
                (Arc::new(store), within(rest))
            }
            other => {
                return Err(wrong(format!(
                    "{other}:// is no kind of rendezvous that is known"
                )));
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("rendezvous")
            .enable_all()
            .build()
            .map_err(|e| Failure::error(format_args!("can't start a thread: {e}")))?;
        let base = Path::from(format!("{path}/{folder}"));
        Ok(Store {
            inner,
            base,
            runtime,
        })
    }

    /// Makes a request; `then` has the answer, on another thread.
    pub(super) fn ask(&self, ask: Ask, then: impl FnOnce(Answer) + Send + 'static) {
        let (store, base) = (Arc::clone(&self.inner), self.base.clone());
        self.runtime.spawn(async move {
            let answer = tokio::time::timeout(LONGEST, answer(&*store, &base, ask)).await;
            then(answer.unwrap_or_else(|_| Answer::Failed {
                problem: format!("no answer within {} s", LONGEST.as_secs()),
                for_good: false,
            }));
        });
    }

    /// The same, waiting for it; tried again a few times.
    ///
    /// # Errors
    /// Where the store does not do it.
    pub(super) fn ask_now(&self, ask: &Ask) -> Result<Answer, Failure> {
        const TRIES: u32 = 5;
        let mut pause = Duration::from_millis(250);
        let mut tried = 1;
        loop {
            let asked = self.runtime.block_on(async {
                tokio::time::timeout(LONGEST, answer(&*self.inner, &self.base, ask.clone())).await
            });
            let (problem, for_good) = match asked {
                Ok(Answer::Failed { problem, for_good }) => (problem, for_good),
                Ok(answer) => return Ok(answer),
                Err(_) => (format!("no answer within {} s", LONGEST.as_secs()), false),
            };
            if for_good || tried == TRIES {
                return Err(Failure::error(format_args!("rendezvous: {problem}")));
            }
            tried += 1;
            std::thread::sleep(pause);
            pause *= 2;
        }
    }
}

async fn answer(store: &dyn ObjectStore, base: &Path, ask: Ask) -> Answer {
    let at = |name: &str| {
        let name = Path::from(name);
        base.parts().chain(name.parts()).collect::<Path>()
    };
    let result = match ask {
        Ask::Put {
            name,
            bytes,
            create,
        } => {
            let mode = match create {
                true => PutMode::Create,
                false => PutMode::Overwrite,
            };
            let (name, payload) = (at(&name), PutPayload::from(bytes));
            let put = store.put_opts(&name, payload.clone(), PutOptions::from(mode));
            match put.await {
                // Who asks looks beforehand, which is nearly as good.
                Err(object_store::Error::NotImplemented { .. }) => {
                    store.put(&name, payload).await.map(|_| Answer::Done)
                }
                put => put.map(|_| Answer::Done),
            }
        }
        Ask::Get(name) => get(store, &at(&name)).await,
        Ask::List(folder) => store
            .list_with_delimiter(Some(&at(&folder)))
            .await
            .map(|found| {
                let objects = found.objects.iter().map(|o| &o.location);
                let all = objects.chain(&found.common_prefixes);
                Answer::Names(all.map(ToString::to_string).collect())
            }),
    };
    result.unwrap_or_else(|e| match e {
        object_store::Error::NotFound { .. } => Answer::Missing,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Answer::Exists
        }
        e => Answer::Failed {
            for_good: matches!(
                e,
                object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::InvalidPath { .. }
                    | object_store::Error::NotSupported { .. }
            ),
            problem: chain(&e),
        },
    })
}

async fn get(store: &dyn ObjectStore, name: &Path) -> object_store::Result<Answer> {
    let found = store.get(name).await?;
    let modified = found.meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
    Ok(Answer::Bytes {
        modified_unix_ns: u64::try_from(modified).unwrap_or(0),
        bytes: found.bytes().await?.to_vec(),
    })
}
