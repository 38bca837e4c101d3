//! Connects to Redis again whenever the connection is lost: one connection for commands, a few for
//! subscriptions. The client library speaks to the servers; here is what happens when it fails.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisError, RedisResult, ServerError,
    ServerErrorKind, Value,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::address::RedisAddress;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A server that answers nothing for so long is given up.
pub(super) const SILENT_LIMIT: Duration = Duration::from_secs(15);

/// Commands that leave together.
#[derive(Default)]
pub(super) struct Batch {
    commands: Pipeline,
    /// Where each belongs, in a cluster.
    routes: Vec<Route>,
    pub(super) bytes: usize,
}

impl Batch {
    /// Appends a command on the data of `key`.
    pub(super) fn put(&mut self, key: &str, clustered: bool, arguments: &[&[u8]]) {
        let bytes = arguments.iter().map(|argument| argument.len()).sum();
        let mut command = Cmd::with_capacity(arguments.len(), bytes);
        for argument in arguments {
            command.arg(*argument);
        }
        self.commands.add_command(command);
        self.bytes += bytes;
        if clustered {
            self.routes.push(Route::with_key(key, SlotAddr::Master));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }
}

/// What the library has connected to.
pub(super) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// The replies in the order of the commands. Those on one key are carried out in theirs.
    pub(super) async fn run(&mut self, batch: Batch) -> Result<Vec<Value>, Failure> {
        let sent = async {
            match self {
                Connection::One(connection) => {
                    let count = batch.len();
                    connection
                        .send_packed_commands(&batch.commands, 0, count)
                        .await
                }
                Connection::Cluster(connection) => run_in_cluster(connection, batch).await,
            }
        };
        match timeout(SILENT_LIMIT, sent).await {
            Ok(replies) => replies.map_err(Failure::from),
            Err(_) => Err(Failure::passing("silent")),
        }
    }
}

/// Each slot's commands go together to the node that has it.
async fn run_in_cluster(connection: &ClusterConnection, batch: Batch) -> RedisResult<Vec<Value>> {
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

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    /// Trying again would not help: a wrong password, a certificate of an unknown authority.
    pub(super) lasting: bool,
}

impl Failure {
    pub(super) fn passing(why: &str) -> Failure {
        Failure {
            why: why.to_owned(),
            lasting: false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        let lasting = match error.kind() {
            ErrorKind::Io => is_of_tls(&error),
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported => true,
            ErrorKind::Server(ServerErrorKind::ResponseError) => {
                !error.to_string().contains("max number of clients")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) | ErrorKind::Extension => true,
            _ => false,
        };
        Failure {
            why: match error.kind() {
                ErrorKind::RESP3NotSupported => "it has no RESP3: use Redis 6 or newer".to_owned(),
                _ => {
                    in_its_words(error.code(), error.detail()).unwrap_or_else(|| error.to_string())
                }
            },
            lasting,
        }
    }
}

/// An error as the server sent it, which the library has taken apart.
fn in_its_words(code: Option<&str>, detail: Option<&str>) -> Option<String> {
    Some(format!("{} {}", code?, detail.unwrap_or_default()))
}

pub(super) fn words_of(error: &ServerError) -> String {
    in_its_words(Some(error.code()), error.details()).unwrap_or_default()
}

/// Whether the handshake failed, and not the network below it.
fn is_of_tls(error: &RedisError) -> bool {
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error);
    source
        .and_then(|shared| shared.downcast_ref::<Shared>())
        .and_then(|error| error.downcast_ref::<std::io::Error>())
        .and_then(std::io::Error::get_ref)
        .is_some_and(|inner| inner.is::<rustls::Error>())
}

/// The error of a server that can't be used for now: it is a replica of another by now, or still
/// loads its data.
pub(super) fn moved_away(reply: &Value) -> Option<Failure> {
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
        ) => Some(Failure::passing(&words_of(error))),
        _ => None,
    }
}

/// The first error among replies.
pub(super) fn error_in(replies: &[Value]) -> Option<Failure> {
    replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(Failure::from(RedisError::from(error.clone()))),
        _ => None,
    })
}

/// Whether a connection, or that to a node of the cluster, was lost.
#[derive(Default)]
pub(super) struct Lost {
    is: AtomicBool,
    wake: Notify,
}

impl Lost {
    fn now(&self) {
        self.is.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(super) fn is(&self) -> bool {
        self.is.load(Ordering::Acquire)
    }

    /// Waits for it; one at a time.
    pub(super) async fn wait(&self) -> Failure {
        while !self.is() {
            self.wake.notified().await;
        }
        Failure::passing("closed by the server")
    }
}

/// What a connection is used for.
pub(super) trait Traffic: Send + Sync + 'static {
    /// What the server sends unasked.
    fn pushed(&self, push: PushInfo);

    /// Uses a connection for as long as it lasts. Calls [`Connector::is_usable`] once commands are accepted.
    fn serve(
        &self,
        connection: Connection,
        connector: &Connector,
        lost: &Lost,
    ) -> impl Future<Output = Failure> + Send;
}

#[derive(Clone, Debug)]
enum State {
    Up,
    Down(Option<Failure>),
}

pub(super) struct Connector {
    pub(super) address: RedisAddress,
    state: watch::Sender<State>,
    been_up: AtomicBool,
}

impl Connector {
    pub(super) fn new(address: RedisAddress) -> Arc<Connector> {
        Arc::new(Connector {
            address,
            state: watch::Sender::new(State::Down(None)),
            been_up: AtomicBool::new(false),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up)
    }

    pub(super) fn is_usable(&self) {
        self.state.send_replace(State::Up);
        if self.been_up.swap(true, Ordering::Relaxed) {
            tracing::warn!(redis = %self.address, "connection to redis is back");
        }
    }

    /// Waits for the connection, unless it is known that waiting does not help.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| match state {
            State::Up => true,
            State::Down(why) => why.as_ref().is_some_and(|why| why.lasting),
        });
        match settled.await.map(|state| state.clone()) {
            Ok(State::Down(Some(why))) => Err(why),
            _ => Ok(()),
        }
    }

    /// Why there is none.
    pub(super) fn why_down(&self) -> Option<Failure> {
        match &*self.state.borrow() {
            State::Up => None,
            State::Down(why) => why.clone(),
        }
    }

    /// Connects and serves `traffic`, again and again.
    pub(super) async fn keep<T: Traffic>(self: Arc<Connector>, traffic: Arc<T>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let lost = Arc::new(Lost::default());
            let why = match self.connect(&traffic, &lost).await {
                Ok(connection) => traffic.serve(connection, &self, &lost).await,
                Err(why) => why,
            };
            if self.is_up() {
                pause = FIRST_PAUSE;
                tracing::warn!(redis = %self.address, %why, "connection to redis lost");
            } else if why.lasting && self.why_down().is_none_or(|before| before.why != why.why) {
                tracing::warn!(redis = %self.address, %why, "redis refuses the connection");
            } else {
                tracing::debug!(redis = %self.address, %why, "no connection to redis");
            }
            self.state.send_replace(State::Down(Some(why)));
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect<T: Traffic>(
        &self,
        traffic: &Arc<T>,
        lost: &Arc<Lost>,
    ) -> Result<Connection, Failure> {
        let (traffic, lost) = (Arc::clone(traffic), Arc::clone(lost));
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => lost.now(),
                _ => traffic.pushed(push),
            }
            Ok::<(), redis::aio::SendError>(())
        };
        match timeout(2 * CONNECT_LIMIT, self.address.connect(push)).await {
            Ok(connected) => connected.map_err(Failure::from),
            Err(_) => Err(Failure::passing("it does not answer")),
        }
    }
}
