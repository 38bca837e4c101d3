//! The address of Redis: one server over TCP, TLS or a Unix socket; the server that Sentinels name as master; or a
//! cluster. The `redis` crate, called the library below, makes the connections.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use plimsoll_model::formats::input::strip_byte_order_mark;
use redis::aio::AsyncPushSender;
use redis::cluster::ClusterClientBuilder;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisResult, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::connection::{RESPONSE_TIMEOUT, RedisConnection};
use super::open::{CONNECT_TIMEOUT, NodeCertificates, open_connection};
use super::sentinel::find_master;

/// Maximum attempts at a cluster command that is redirected or whose node is failing over.
const MAX_CLUSTER_RETRIES: u32 = 5;
const MAX_CLUSTER_RETRY_DELAY_MS: u64 = 200;
/// Help for a URL whose password contains an unescaped slash. The slash ends the URL's authority, so the rest of the
/// password and the host would be parsed as the path.
const UNESCAPED_SLASH_HELP: &str =
    "an @ after the first slash: write a slash in a user or password as %2F";
const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// A parsed Redis URL. `Display` and `Debug` omit the password.
#[derive(Clone)]
pub struct RedisAddress {
    topology: RedisTopology,
    /// Credentials, database and protocol for the servers; not sent to Sentinels.
    settings: RedisConnectionInfo,
    tls: bool,
    certificates: Option<TlsCertificates>,
}

#[derive(Clone)]
enum RedisTopology {
    Server(ConnectionAddr),
    Sentinel {
        nodes: Vec<ConnectionAddr>,
        master: String,
    },
    Cluster(Vec<ConnectionAddr>),
}

impl RedisAddress {
    /// Adds PEM certificates: the CAs of the servers (default: the system's), and this client's
    /// certificate with its key.
    ///
    /// # Errors
    /// When the certificates are unusable, or the URL's scheme does not use TLS.
    pub fn with_certificates(
        mut self,
        authorities: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<RedisAddress, String> {
        if !self.tls {
            return Err("certificates are for TLS: write rediss://".to_owned());
        }
        let authorities = authorities.map(strip_byte_order_mark);
        let client =
            client.map(|(cert, key)| (strip_byte_order_mark(cert), strip_byte_order_mark(key)));
        if let Some(pem) = &authorities
            && CertificateDer::pem_slice_iter(pem).next().is_none()
        {
            return Err("no CA certificate in PEM".to_owned());
        }
        let certificates = TlsCertificates {
            root_cert: authorities,
            client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            }),
        };
        // The client is not used: it is built because only then does the library parse the certificates.
        Client::build_with_tls(
            connection_address("localhost", DEFAULT_PORT, true),
            certificates.clone(),
        )
        // The library's error is replaced, because it may quote the private key.
        .map_err(|_| "not a matching certificate and private key in PEM".to_owned())?;
        self.certificates = Some(certificates);
        Ok(self)
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, RedisTopology::Cluster(_))
    }

    /// Connects; `push` receives the messages that the server sends unprompted.
    pub(super) async fn connect(&self, push: impl AsyncPushSender) -> RedisResult<RedisConnection> {
        let push = Arc::new(push);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_push_sender(Arc::clone(&push));
        match &self.topology {
            RedisTopology::Server(address) => {
                let info = self.connection_info(address)?;
                let certificates = self.certificates.as_ref();
                let opened = open_connection(&info, certificates, config, CONNECT_TIMEOUT).await;
                opened.map(RedisConnection::Single)
            }
            RedisTopology::Sentinel { nodes, master } => {
                let certificates = self.certificates.as_ref();
                let (settings, tls) = (self.settings.clone(), self.tls);
                let to_master = move |host: &str, port| {
                    let info = connection_address(host, port, tls).into_connection_info()?;
                    Ok(info.set_redis_settings(settings.clone()))
                };
                // The master is looked up for each connection, because it may have changed.
                let info = find_master(nodes, master, certificates, to_master).await?;
                let opened = open_connection(&info, certificates, config, CONNECT_TIMEOUT).await;
                opened.map(RedisConnection::Single)
            }
            RedisTopology::Cluster(nodes) => {
                let nodes: RedisResult<Vec<_>> = nodes
                    .iter()
                    .map(|node| self.connection_info(node))
                    .collect();
                let certificates = NodeCertificates::register(self.certificates.clone());
                let client = ClusterClientBuilder::new(nodes?)
                    .push_sender(push)
                    .connection_timeout(CONNECT_TIMEOUT)
                    .response_timeout(RESPONSE_TIMEOUT)
                    .retries(MAX_CLUSTER_RETRIES)
                    .max_retry_wait(MAX_CLUSTER_RETRY_DELAY_MS)
                    .database_id(certificates.cluster_number());
                let client = client.build()?;
                let connection = client.get_async_generic_connection().await?;
                Ok(RedisConnection::Cluster {
                    connection,
                    _certificates: certificates,
                })
            }
        }
    }

    fn connection_info(&self, address: &ConnectionAddr) -> RedisResult<ConnectionInfo> {
        let info = address.clone().into_connection_info()?;
        Ok(info.set_redis_settings(self.settings.clone()))
    }
}

fn connection_address(host: &str, port: u16, tls: bool) -> ConnectionAddr {
    let host = host.to_owned();
    if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, master) = match &self.topology {
            RedisTopology::Server(address) => (std::slice::from_ref(address), None),
            RedisTopology::Sentinel { nodes, master } => (&nodes[..], Some(master)),
            RedisTopology::Cluster(nodes) => (&nodes[..], None),
        };
        for (i, node) in nodes.iter().enumerate() {
            write!(f, "{}{node}", if i == 0 { "" } else { "," })?;
        }
        match master {
            Some(master) => write!(f, "/{master}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({self})")
    }
}

impl FromStr for RedisAddress {
    type Err = String;

    /// The error does not repeat the URL, which may hold a password.
    fn from_str(url: &str) -> Result<RedisAddress, String> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or("no scheme: write redis://HOST:PORT")?;
        let (link, kind) = match scheme.split_once('-') {
            Some((link, kind)) => (link, Some(kind)),
            None => (scheme, None),
        };
        let tls = match (link, kind) {
            ("redis", None | Some("sentinel" | "cluster")) => false,
            ("rediss", None | Some("sentinel" | "cluster")) => true,
            ("unix" | "redis+unix", None) => return parse_socket_url(url),
            _ => {
                return Err(format!(
                    "`{scheme}` is not a scheme: use redis, rediss, unix, redis-sentinel, \
                     rediss-sentinel, redis-cluster or rediss-cluster"
                ));
            }
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(UNESCAPED_SLASH_HELP.to_owned());
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            None => (None, authority),
            Some((credentials, hosts)) => (Some(credentials), hosts),
        };
        let default_port = match kind {
            Some("sentinel") => DEFAULT_SENTINEL_PORT,
            _ => DEFAULT_PORT,
        };
        let mut nodes = hosts
            .split(',')
            .map(|node| {
                host_and_port(node, default_port)
                    .map(|(host, port)| connection_address(host, port, tls))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (master, database) = match kind {
            Some("sentinel") => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        let database = match database {
            "" => 0,
            number => number
                .parse::<u32>()
                .map_err(|_| format!("`{number}` is not a database number"))?,
        };
        let place = match kind {
            Some("sentinel") if master.is_empty() => {
                return Err("no master name: write redis-sentinel://HOST:PORT/MASTER".to_owned());
            }
            Some("sentinel") => RedisTopology::Sentinel {
                nodes,
                master: master.to_owned(),
            },
            Some(_) if database != 0 => {
                return Err(format!("a cluster has no database {database}, only 0"));
            }
            Some(_) => RedisTopology::Cluster(nodes),
            _ if nodes.len() > 1 => {
                return Err("several hosts: write redis-cluster:// or redis-sentinel://".to_owned());
            }
            _ => RedisTopology::Server(nodes.remove(0)),
        };
        Ok(RedisAddress {
            topology: place,
            settings: parse_credentials(credentials)?.set_db(i64::from(database)),
            tls,
            certificates: None,
        })
    }
}

fn host_and_port(node: &str, default_port: u16) -> Result<(&str, u16), String> {
    let (host, port) = match node.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match node.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (node, None),
        },
    };
    if host.is_empty() {
        return Err("no host: write redis://HOST:PORT".to_owned());
    }
    match port {
        None => Ok((host, default_port)),
        Some(port) => match port.parse() {
            Ok(number) if number != 0 => Ok((host, number)),
            _ => Err(format!("`{port}` is not a port: use 1 to 65535")),
        },
    }
}

/// Parses `USER:PASSWORD`, `:PASSWORD` or `PASSWORD`, percent-encoded as in any URL.
fn parse_credentials(credentials: Option<&str>) -> Result<RedisConnectionInfo, String> {
    let settings = match credentials {
        None => RedisConnectionInfo::default(),
        Some(credentials) => {
            let colon = if credentials.contains(':') { "" } else { ":" };
            let info = format!("redis://{colon}{credentials}@host").into_connection_info();
            let info = info.map_err(|_| "user or password: percent-encode special characters")?;
            info.redis_settings().clone()
        }
    };
    Ok(settings.set_protocol(ProtocolVersion::RESP3))
}

/// Parses the URL of a Unix socket in the client library's form: `unix:///PATH?db=NUMBER&user=USER&pass=PASSWORD`.
fn parse_socket_url(url: &str) -> Result<RedisAddress, String> {
    // The library's error is replaced, because it may quote the password.
    let info = url.into_connection_info();
    let info =
        info.map_err(|_| "not a socket: write unix:///PATH?db=NUMBER&user=USER&pass=PASSWORD")?;
    Ok(RedisAddress {
        topology: RedisTopology::Server(info.addr().clone()),
        settings: (info.redis_settings().clone()).set_protocol(ProtocolVersion::RESP3),
        tls: false,
        certificates: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_and_hide_passwords() {
        let parsed = |url: &str| url.parse::<RedisAddress>().unwrap();
        let full = parsed("redis://me:se@c%2fret@[::1]:6380/2");
        assert_eq!(full.settings.username(), Some("me"));
        assert_eq!(full.settings.password(), Some("se@c/ret"));
        assert_eq!(full.settings.db(), 2);
        for (url, shown) in [
            ("redis://me:secret@[::1]:6380/2", "::1:6380"),
            ("redis://localhost", "localhost:6379"),
            ("rediss://secret@localhost", "localhost:6379"),
            ("unix:///run/redis.sock?pass=secret", "/run/redis.sock"),
            ("redis+unix:///run/redis.sock", "/run/redis.sock"),
            ("redis-sentinel://:secret@a,b:1/main/3", "a:26379,b:1/main"),
            ("rediss-cluster://:secret@a,b:1", "a:6379,b:1"),
        ] {
            let address = parsed(url);
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), format!("RedisAddress({shown})"));
        }
        assert_eq!(
            parsed("redis://secret@a").settings.password(),
            Some("secret")
        );
        assert_eq!(parsed("redis-sentinel://a/main/3").settings.db(), 3);
        for (url, needle) in [
            ("localhost:1", "no scheme"),
            ("http://localhost:1", "`http` is not a scheme"),
            ("redis://", "no host"),
            ("redis://a:0", "`0` is not a port"),
            ("redis://a:1/x", "`x` is not a database"),
            ("redis://a,b", "several hosts"),
            ("redis-cluster://a,b/1", "no database 1"),
            ("redis-sentinel://a,b", "no master name"),
            (
                "redis://me:c4n/ary@a:1/2",
                "write a slash in a user or password as %2F",
            ),
            ("redis://a:1/c4n@ary", "write a slash"),
            ("unix:///s?db=c4nary&pass=c4nary", "not a socket"),
        ] {
            let error = url.parse::<RedisAddress>().unwrap_err();
            assert!(error.contains(needle), "{url}: {error}");
            assert!(!error.contains("c4n"), "{url}: {error}");
        }
        let error = parsed("redis://a")
            .with_certificates(None, None)
            .unwrap_err();
        assert!(error.contains("rediss://"), "{error}");
        let junk = Some((b"junk".to_vec(), b"junk".to_vec()));
        assert!(parsed("rediss://a").with_certificates(None, junk).is_err());
        let none = Some(b"junk".to_vec());
        assert!(parsed("rediss://a").with_certificates(none, None).is_err());
    }
}
