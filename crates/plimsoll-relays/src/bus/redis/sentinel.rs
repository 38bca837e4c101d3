//! Asks Sentinels for the address of the master. The `redis` crate could do this, but it buffers whatever a Sentinel
//! sends. Connections made by [`open_connection`] limit the size of replies.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, RedisResult, TlsCertificates, Value, cmd,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::open::{CONNECT_TIMEOUT, open_connection};

/// How long one Sentinel may take to name a master, including the time in which that master confirms its role. Other
/// Sentinels are asked in the meantime.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Sentinels that are asked concurrently.
const MAX_CONCURRENT_LOOKUPS: usize = 8;

/// Finds the master called `name`. If Sentinels disagree, the first one in the list that knows a master decides.
/// `to_master` builds the connection settings.
///
/// # Errors
/// When no Sentinel names a reachable master. If a server that a Sentinel named has failed, its error is returned.
pub(super) async fn find_master(
    sentinels: &[ConnectionAddr],
    name: &str,
    certificates: Option<&TlsCertificates>,
    to_master: impl Fn(&str, u16) -> RedisResult<ConnectionInfo> + Clone + Send + 'static,
) -> RedisResult<ConnectionInfo> {
    let mut lookups = JoinSet::new();
    let mut left = sentinels.iter().cloned().enumerate();
    let mut spawn = |lookups: &mut JoinSet<_>| {
        if let Some((place, sentinel)) = left.next() {
            let (name, to_master) = (name.to_owned(), to_master.clone());
            let certificates = certificates.cloned();
            lookups.spawn(async move {
                let looked_up = ask_sentinel(sentinel, &name, certificates.as_ref(), to_master);
                let found = timeout(LOOKUP_TIMEOUT, looked_up).await;
                (place, found.unwrap_or_else(|_| Err(timeout_error().into())))
            });
        }
    };
    (0..MAX_CONCURRENT_LOOKUPS).for_each(|_| spawn(&mut lookups));
    let mut ended: Vec<Option<_>> = sentinels.iter().map(|_| None).collect();
    let mut failure = not_found_error();
    let mut next = 0;
    while let Some(lookup) = lookups.join_next().await {
        let (place, lookup) = lookup.map_err(std::io::Error::other)?;
        ended[place] = Some(lookup);
        spawn(&mut lookups);
        while let Some(lookup) = ended.get_mut(next).and_then(Option::take) {
            next += 1;
            match lookup {
                Ok(Ok(master)) => return Ok(master),
                Ok(Err(of_master)) => failure = (true, of_master),
                Err(of_sentinel) if !failure.0 => failure = (false, of_sentinel),
                Err(_) => {}
            }
        }
    }
    Err(failure.1)
}

fn timeout_error() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

/// Returns the error for a master that no Sentinel knows. The flag `false` marks it as an error of the lookup, not of a
/// server that a Sentinel named.
fn not_found_error() -> (bool, RedisError) {
    let kind = ErrorKind::MasterNameNotFoundBySentinel;
    (false, (kind, "no Sentinel knows this master").into())
}

/// Asks one Sentinel for the master. The inner error is an error of the server that the Sentinel named.
async fn ask_sentinel(
    sentinel: ConnectionAddr,
    name: &str,
    certificates: Option<&TlsCertificates>,
    to_master: impl Fn(&str, u16) -> RedisResult<ConnectionInfo>,
) -> RedisResult<RedisResult<ConnectionInfo>> {
    let info = sentinel.into_connection_info()?;
    let mut connection =
        open_connection(&info, certificates, sentinel_config(), CONNECT_TIMEOUT).await?;
    let masters: Vec<HashMap<String, String>> = cmd("SENTINEL")
        .arg("MASTERS")
        .query_async(&mut connection)
        .await?;
    let mut failure = None;
    for (host, port) in masters.iter().filter_map(|of| master_address(of, name)) {
        let info = to_master(host, port)?;
        match is_master(&info, certificates).await {
            Ok(true) => return Ok(Ok(info)),
            Ok(false) => {}
            Err(e) => failure = Some(e),
        }
    }
    match failure {
        Some(of_master) => Ok(Err(of_master)),
        None => Err(not_found_error().1),
    }
}

/// Returns the host and port of a master that has this name and is not marked down.
fn master_address<'a>(master: &'a HashMap<String, String>, name: &str) -> Option<(&'a str, u16)> {
    let field = |key: &str| master.get(key).map(String::as_str);
    let mut flags = field("flags")?.split(',');
    let is_down = |flag: &str| matches!(flag, "s_down" | "o_down");
    if field("name")? != name || !flags.clone().any(|flag| flag == "master") || flags.any(is_down) {
        return None;
    }
    Some((field("ip")?, field("port")?.parse().ok()?))
}

/// Returns whether a server reports itself as master; a Sentinel may not have noticed a failover
/// yet.
async fn is_master(
    info: &ConnectionInfo,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<bool> {
    let mut connection =
        open_connection(info, certificates, sentinel_config(), CONNECT_TIMEOUT).await?;
    match cmd("ROLE").query_async(&mut connection).await {
        Ok(Value::Array(role)) => Ok(match role.first() {
            Some(Value::BulkString(role)) => role == b"master",
            Some(Value::SimpleString(role)) => role == "master",
            _ => false,
        }),
        Ok(_) => Ok(false),
        // The user may lack permission for `ROLE`, so `INFO` is tried instead.
        Err(e) if e.is_io_error() => Err(e),
        Err(e) => info_reports_master(&mut connection).await.map_err(|_| e),
    }
}

async fn info_reports_master(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let info: String = cmd("INFO")
        .arg("REPLICATION")
        .query_async(connection)
        .await?;
    Ok(info.lines().any(|line| line.trim_end() == "role:master"))
}

fn sentinel_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(LOOKUP_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_masters_are_ignored() {
        let master = |name: &str, flags: &str, port: &str| {
            let fields = [
                ("name", name),
                ("ip", "10.0.0.1"),
                ("port", port),
                ("flags", flags),
            ];
            HashMap::from(fields.map(|(key, value)| (key.to_owned(), value.to_owned())))
        };
        for (flags, port, is_used) in [
            ("master", "6379", true),
            ("master,disconnected", "6379", true),
            ("s_down,master", "6379", false),
            ("master,o_down", "6379", false),
            ("slave", "6379", false),
            ("master", "70000", false),
        ] {
            let found = master_address(&master("main", flags, port), "main").is_some();
            assert_eq!(found, is_used, "{flags} {port}");
        }
        assert!(master_address(&master("other", "master", "6379"), "main").is_none());
        assert!(master_address(&HashMap::new(), "main").is_none());
    }
}
