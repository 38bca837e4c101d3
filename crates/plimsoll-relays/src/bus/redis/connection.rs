//! One connection of the `redis` crate (the library): command batches, their replies, and the library's errors.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::transport::address::LocalResourceError;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerError, ServerErrorKind, Value,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::open::{ClusterNode, NodeCertificates};

/// How long a server may take to answer a batch before the connection is dropped.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// Commands that are sent together.
#[derive(Default)]
pub(super) struct CommandBatch {
    commands: Pipeline,
    /// The route of each command; unused outside a cluster.
    routes: Vec<Route>,
    pub(super) bytes: usize,
}

impl CommandBatch {
    /// Appends a command; in a cluster, `key` selects the node.
    pub(super) fn put(&mut self, key: Option<&str>, command: Cmd) {
        let arguments = command.args_iter().map(|argument| match argument {
            Arg::Simple(argument) => argument.len(),
            _ => 0,
        });
        self.bytes += arguments.sum::<usize>();
        self.commands.add_command(command);
        self.routes
            .extend(key.map(|key| Route::with_key(key, SlotAddr::Master)));
    }

    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }
}

/// A connection to one server or to a cluster.
pub(super) enum RedisConnection {
    Single(MultiplexedConnection),
    Cluster {
        connection: ClusterConnection<ClusterNode>,
        /// Kept alive because the library needs the certificates to reconnect to nodes.
        _certificates: NodeCertificates,
    },
}

impl RedisConnection {
    /// Sends a batch and returns the replies in the order of the commands. Commands on the same key
    /// are executed in order.
    pub(super) async fn run(&mut self, batch: CommandBatch) -> Result<Vec<Value>, RedisFailure> {
        let sent = async {
            match self {
                RedisConnection::Single(connection) => {
                    let count = batch.len();
                    connection
                        .send_packed_commands(&batch.commands, 0, count)
                        .await
                }
                RedisConnection::Cluster { connection, .. } => {
                    run_in_cluster(connection, batch).await
                }
            }
        };
        match timeout(RESPONSE_TIMEOUT, sent).await {
            Ok(replies) => replies.map_err(RedisFailure::from),
            Err(_) => Err(RedisFailure::new_transient("silent")),
        }
    }
}

/// Sends the commands of each slot together to the node that holds it.
async fn run_in_cluster(
    connection: &ClusterConnection<ClusterNode>,
    batch: CommandBatch,
) -> RedisResult<Vec<Value>> {
    let mut replies = vec![Value::Nil; batch.len()];
    let mut of_slots: HashMap<Route, (Pipeline, Vec<usize>)> = HashMap::new();
    for (i, (command, route)) in batch.commands.cmd_iter().zip(batch.routes).enumerate() {
        let (commands, places) = of_slots.entry(route).or_default();
        commands.add_command(command.clone());
        places.push(i);
    }
    let mut running = JoinSet::new();
    for (route, (commands, places)) in of_slots {
        let mut connection = connection.clone();
        running.spawn(async move {
            let node = SingleNodeRoutingInfo::SpecificNode(route);
            let replies = connection.route_pipeline(commands, 0, places.len(), node);
            replies.await.map(|replies| (places, replies))
        });
    }
    while let Some(done) = running.join_next().await {
        let (places, of_slot) = done.map_err(|e| RedisError::from(std::io::Error::other(e)))??;
        for (place, reply) in places.into_iter().zip(of_slot) {
            replies[place] = reply;
        }
    }
    Ok(replies)
}

/// Why a connection or a command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct RedisFailure {
    pub(super) why: String,
    /// Whether a retry would fail as well, as with a wrong password or a certificate of an unknown CA.
    pub(super) is_permanent: bool,
    /// Whether this process lacked a resource, which says nothing about Redis.
    pub(super) is_local: bool,
}

impl RedisFailure {
    pub(super) fn new_transient(why: &str) -> RedisFailure {
        RedisFailure {
            why: why.to_owned(),
            is_permanent: false,
            is_local: false,
        }
    }
}

impl From<RedisError> for RedisFailure {
    fn from(error: RedisError) -> RedisFailure {
        let lasting = match error.kind() {
            ErrorKind::Io => io_cause(&error).is_some_and(is_tls_error),
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported => true,
            ErrorKind::Server(ServerErrorKind::ResponseError) => {
                !error.to_string().contains("max number of clients")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) | ErrorKind::Extension => true,
            _ => false,
        };
        let lack = io_cause(&error).and_then(LocalResourceError::from_library_error);
        RedisFailure {
            is_local: lack.is_some(),
            why: match error.kind() {
                _ if let Some(lack) = lack => lack.to_string(),
                ErrorKind::RESP3NotSupported => "it has no RESP3: use Redis 6 or newer".to_owned(),
                _ => join_error_text(error.code(), error.detail())
                    .unwrap_or_else(|| error.to_string()),
            },
            is_permanent: lasting,
        }
    }
}

/// Joins the code and detail into which the library has split a server's error.
fn join_error_text(code: Option<&str>, detail: Option<&str>) -> Option<String> {
    Some(format!("{} {}", code?, detail.unwrap_or_default()))
}

pub(super) fn server_error_text(error: &ServerError) -> String {
    join_error_text(Some(error.code()), error.details()).unwrap_or_default()
}

/// Returns the I/O error that caused the library's error.
fn io_cause(error: &RedisError) -> Option<&io::Error> {
    type SharedError = Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<SharedError>()?.downcast_ref()
}

/// Returns whether the TLS handshake caused the error, not the network below it.
fn is_tls_error(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Returns the error of a server that is temporarily unusable: it became a replica or is still
/// loading its data.
pub(super) fn unavailable_error(reply: &Value) -> Option<RedisFailure> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    match error.kind() {
        Some(
            ServerErrorKind::ReadOnly
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask,
        ) => Some(RedisFailure::new_transient(&server_error_text(error))),
        _ => None,
    }
}

/// Returns the first error among the replies.
pub(super) fn first_error(replies: &[Value]) -> Option<RedisFailure> {
    replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(RedisFailure::from(RedisError::from(error.clone()))),
        _ => None,
    })
}
