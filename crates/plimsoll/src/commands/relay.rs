//! `plimsoll relay`: relays a service's traffic. `gateway` connects WebSocket clients to the bus; `sidecar` relays an
//! application's connections.
//!
//! This file is long because each relay's flags are explained where they are defined.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::{Args, Subcommand};
use plimsoll_engine::tls::files::{self, NamedFile};
use plimsoll_model::formats::input;
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_relays::bus::{Bus, RedisAddress, RedisOptions};
use plimsoll_relays::gateway::{Gateway, GatewayOptions, Metrics};
use plimsoll_relays::sidecar::{Sidecar, SidecarConfig, SidecarError};
use plimsoll_relays::token::TokenKeys;
use plimsoll_serving::{BoundServer, ListenOptions, TrustedProxies};

use super::final_counts::print_with_panics;
use super::secret::{MissingSecretAction, SecretFlags};
use super::sighup_reload;
use super::tls_flags::ServerTlsFlags;
use crate::failure::{self, Exit, Failure};
use crate::load::documents::JsonFlag;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::listening::listening_address;
use crate::system::descriptors;
use crate::system::processor;
use crate::system::stopping::{self, STOPPING_NOTICE, ShutdownMode, run_until_stopped};

/// How long to wait for Redis at startup.
const BUS_START_TIMEOUT: Duration = Duration::from_secs(10);

/// Proxy a service's traffic.
#[derive(Debug, Args)]
#[command(
    before_help = "Examples: an application's calls to another machine, over mutual TLS; a WebSocket\n\
    gateway on a Redis server\n  \
        plimsoll relay sidecar client.toml\n  \
        JWT_SECRET=… plimsoll relay gateway --listen 127.0.0.1:4040 --redis redis://127.0.0.1:6379",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct RelayArguments {
    #[command(subcommand)]
    relay: RelayCommand,
}

#[derive(Debug, Subcommand)]
enum RelayCommand {
    Sidecar(SidecarArguments),
    Gateway(Box<GatewayArguments>),
}

/// Relay an application's plaintext over mutual TLS between sidecars: Bolt, gRPC, codec plugins, any TCP.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: requests to 127.0.0.1:12200 go to the sidecar at 10.0.0.2:12443\n  \
    cat > client.toml <<'END'\n  \
    [[route]]\n  \
    name = \"orders\"\n  \
    protocol = \"bolt\"\n  \
    listen = \"127.0.0.1:12200\"\n  \
    upstream = [\"10.0.0.2:12443\"]\n  \
    upstream_tls = { ca = \"ca.crt\", cert = \"client.crt\", key = \"client.key\", server_name = \"localhost\" }\n  \
    END\n  \
    plimsoll relay sidecar client.toml"
)]
struct SidecarArguments {
    /// The file with the sidecar's routes, described in docs/sidecar.md.
    #[arg(value_name = "FILE", env = "PLIMSOLL_SIDECAR")]
    file: PathBuf,
}

/// Serve WebSocket sessions at /AGENT/ws/SESSION, with tokens that come through Redis.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: on one thread, for at most 20,000 sessions\n  \
        JWT_SECRET=… plimsoll relay gateway --listen 127.0.0.1:4041 --redis redis://127.0.0.1:6379 \\\n      \
        --workers 1 --max-sessions 20000",
    after_help = crate::settings::environment::VARIABLES_HELP
)]
struct GatewayArguments {
    /// Where to listen; port 0: any free port; unix:/PATH: a Unix socket.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4040")]
    listen: String,

    /// Time between two pings.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "15s")]
    ping_interval: Period,

    /// Close a client with 4408 if it sends nothing, not even pongs, for longer than this.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "30s")]
    ping_timeout: Period,

    /// Maximum number of sessions; the gateway answers further ones with 503 and Retry-After.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    max_sessions: usize,

    /// Maximum size of a message from a client.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    max_message: ByteSize,

    /// Maximum size of data that waits for a slow client, pongs included. Beyond it, the gateway reads the session's
    /// log later, and does not read from the client.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    max_queue: ByteSize,

    /// Send every message back to its client, for any client and path: for conformance suites.
    #[arg(long)]
    echo: bool,

    /// Compress messages with clients that offer it (permessage-deflate); each costs CPU.
    #[arg(long)]
    compression: bool,

    #[command(flatten)]
    service: ServiceFlags,

    /// After a stop request, close all sessions with 1012 within this time.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    drain: Period,
}

/// Flags common to a gateway and the service behind it: session tokens, the bus, listening and health checks.
#[derive(Debug, Args)]
pub(super) struct ServiceFlags {
    #[command(flatten)]
    pub(super) secret: SecretFlags,

    #[command(flatten)]
    pub(super) bus: BusFlags,

    #[command(flatten)]
    tls: ServerTlsFlags,

    /// Number of threads [default: one per core].
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<usize>,

    /// Share the port with other processes (SO_REUSEPORT).
    #[arg(long)]
    reuse_port: bool,

    /// How long a client may take to send its request.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    pub(super) request_timeout: Period,

    /// After a stop request, answer /ready and /health with 503 and continue to serve for this time, so that balancers
    /// notice before clients do.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "0s")]
    pub(super) lame_duck: Period,

    /// A proxy whose X-Forwarded-For is trusted to name the client in the log; repeatable.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(super) trusted_proxy: Vec<IpAddr>,

    /// Connections of trusted proxies begin with a PROXY header, version 1 or 2, that names the client.
    #[arg(long, requires = "trusted_proxy")]
    proxy_protocol: bool,

    #[command(flatten)]
    pub(super) json: JsonFlag,
}

impl ServiceFlags {
    pub(super) fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies::new(&self.trusted_proxy)
    }

    /// Returns the keys that sign and verify session tokens.
    ///
    /// # Errors
    /// When a secret can't be read or is unusable.
    pub(super) fn read_token_keys(
        &self,
        environment: &Environment,
        without: MissingSecretAction,
    ) -> Result<TokenKeys, Failure> {
        let secrets = self.secret.read_secrets(environment, without)?;
        TokenKeys::new(&secrets).map_err(Failure::error)
    }

    /// Binds the address `listen`, the value of `flag`.
    ///
    /// # Errors
    /// When `listen` is not an address, or the address is in use.
    pub(super) fn bind(
        &self,
        flag: &str,
        listen: &str,
        drain: Period,
    ) -> Result<BoundServer, Failure> {
        ListenOptions {
            address: listening_address(flag, listen)?,
            reuse_port: self.reuse_port,
            tls: self.tls.server_options(),
            drain: drain.0,
            proxies: if self.proxy_protocol {
                self.trusted_proxies()
            } else {
                TrustedProxies::default()
            },
            ..ListenOptions::default()
        }
        .bind()
        .map_err(Failure::error)
    }

    /// Prints the address that the server called `name` listens on.
    ///
    /// # Errors
    /// When stdout can't be written to.
    pub(super) fn announce(&self, name: &str, bound: &BoundServer) -> Result<(), Failure> {
        let address = bound.address();
        self.json.print_result(
            &serde_json::json!({ "server": name, "address": address.to_string() }),
            format_args!("{name}: listening on {address}"),
        )
    }
}

/// Maximum number of subscriber connections to the bus; each can carry the subscriptions of thousands of sessions.
const MAX_SUBSCRIBERS: u16 = 64;

/// Flags of the bus, which carries messages between backends and gateways.
#[derive(Debug, Args)]
pub(super) struct BusFlags {
    /// Redis: redis://[USER:PASSWORD@]HOST:PORT[/DATABASE], rediss:// over TLS, unix:///PATH,
    /// redis-sentinel://HOST:PORT,…/MASTER, redis-cluster://HOST:PORT,…
    #[arg(long, value_name = "URL")]
    pub(super) redis: Option<String>,

    /// The CA of Redis's certificate (PEM), instead of the system's CAs.
    #[arg(long, value_name = "FILE", requires = "redis")]
    redis_ca: Option<PathBuf>,

    /// The certificate chain to present to Redis (PEM): mutual TLS.
    #[arg(long, value_name = "FILE", requires = "redis_key")]
    redis_cert: Option<PathBuf>,

    /// The private key of --redis-cert (PEM).
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["redis", "redis_cert"]
    )]
    redis_key: Option<PathBuf>,

    /// Number of connections for the subscriptions of all sessions; 64 are enough for any number of sessions.
    #[arg(
        long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    subscribers: u16,

    /// Use sharded channels (Redis 7), which use less of Redis's CPU. Backends and gateways must use the same setting.
    #[arg(long, requires = "redis")]
    sharded: bool,

    /// Delete a session and its log this long after its last run.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10800s")]
    pub(super) session_ttl: Period,
}

impl BusFlags {
    /// Returns the bus: over Redis if a URL is given, otherwise within this process.
    pub(super) async fn connect(&self) -> Result<Bus, Failure> {
        let Some(url) = &self.redis else {
            return Ok(Bus::embedded(self.session_ttl.0));
        };
        // Parse the URL here and not in clap, whose errors would print the password.
        let address = url.parse().map_err(|e: String| {
            Failure::usage(
                format_args!("--redis: {e}"),
                "for example: --redis redis://127.0.0.1:6379",
            )
        })?;
        let subscribers = self.subscribers.min(MAX_SUBSCRIBERS);
        if subscribers < self.subscribers {
            console::print_confirmation(format_args!(
                "--subscribers {}: {subscribers} connections suffice for any load, so no more are opened",
                self.subscribers
            ));
        }
        let options = RedisOptions {
            subscribers: usize::from(subscribers),
            ttl: self.session_ttl.0,
            sharded: self.sharded,
        };
        let bus = Bus::redis(self.with_certificates(address)?, options);
        bus.wait_until_ready(BUS_START_TIMEOUT)
            .await
            .map_err(Failure::error)?;
        Ok(bus)
    }

    /// Adds the CA and the client certificate to the address.
    fn with_certificates(&self, address: RedisAddress) -> Result<RedisAddress, Failure> {
        let read = |flag: &str, path: &Option<PathBuf>| {
            let content = path
                .as_ref()
                .map(|path| failure::read_named_file(flag, path));
            content.transpose()
        };
        if let Some((cert, key)) = self.redis_cert.as_ref().zip(self.redis_key.as_ref()) {
            // Check the files here, because an error of the client library might quote the key.
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            let (cert, key) = (
                NamedFile("--redis-cert", cert),
                NamedFile("--redis-key", key),
            );
            files::read_identity(cert, key, &provider).map_err(Failure::error)?;
        }
        let authorities = read("--redis-ca", &self.redis_ca)?;
        let certificate = read("--redis-cert", &self.redis_cert)?;
        let client = certificate.zip(read("--redis-key", &self.redis_key)?);
        if authorities.is_none() && client.is_none() {
            return Ok(address);
        }
        address
            .with_certificates(authorities, client)
            .map_err(|e| Failure::error(format_args!("--redis-ca, --redis-cert, --redis-key: {e}")))
    }
}

pub(crate) fn execute(
    arguments: &RelayArguments,
    environment: &Environment,
) -> Result<Exit, Failure> {
    match &arguments.relay {
        RelayCommand::Sidecar(arguments) => run_sidecar(arguments),
        RelayCommand::Gateway(arguments) => run_gateway(arguments, environment),
    }
}

/// An event for a running sidecar.
enum SidecarEvent {
    Reload,
    Stop,
    /// The sidecar has failed and must be stopped.
    GiveUp(SidecarError),
}

fn run_sidecar(arguments: &SidecarArguments) -> Result<Exit, Failure> {
    let config = read_sidecar_config(&arguments.file)?;
    if config.uses_tls() {
        processor::leave_wide_vectors();
    }
    descriptors::raise_limit()?;
    let (sender, wanted) = mpsc::channel();
    let (reload, failures) = (sender.clone(), sender.clone());
    stopping::on_hangup(move || {
        let _ = reload.send(SidecarEvent::Reload);
    })?;
    let mut pulled = false;
    stopping::on_signal(move |wish| {
        if matches!(wish, ShutdownMode::Graceful) && !pulled {
            pulled = true;
            let _ = sender.send(SidecarEvent::Stop);
        } else {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    })?;
    let sidecar = Sidecar::start(&config, move |error| {
        // Never fails: the receiver is dropped only after the sidecar has stopped.
        let _ = failures.send(SidecarEvent::GiveUp(error));
    });
    let sidecar = sidecar.map_err(Failure::error)?;
    let watching = sidecar.watch_codecs(|stuck| {
        console::print_notice(format_args!("Error: {stuck}"));
        std::process::exit(i32::from(Exit::Defect.code()));
    });
    watching.map_err(Failure::error)?;
    announce_routes(&sidecar, &config)?;
    if let Some(address) = sidecar.admin() {
        console::print_result(format_args!("sidecar: admin: listening on {address}\n"))?;
    }
    let failure = |wanted| match wanted {
        SidecarEvent::GiveUp(error) => Some(error),
        SidecarEvent::Reload | SidecarEvent::Stop => None,
    };
    // The signal handler keeps a sender, so receiving never fails.
    let failed = loop {
        match wanted.recv() {
            Ok(SidecarEvent::Reload) => reload_sidecar(&sidecar, &arguments.file),
            Ok(last) => break failure(last),
            Err(_) => break None,
        }
    };
    sidecar.stop();
    // Also report a failure of a thread that happened while the other threads drained.
    match failed.or_else(|| wanted.try_iter().find_map(failure)) {
        Some(error) => Err(Failure::error(error)),
        None => Ok(Exit::Done),
    }
}

/// Reloads the configuration file; if it is invalid, nothing changes.
fn reload_sidecar(sidecar: &Sidecar, file: &Path) {
    let name = file.display();
    let read = read_sidecar_config(file).and_then(|config| {
        sidecar
            .reload(&config)
            .map_err(|e| Failure::error(format_args!("{name}: {e}")))?;
        Ok(config)
    });
    match read {
        Ok(config) => {
            console::print_notice(format_args!("{name}: reloaded"));
            // If printing fails, report that and continue to relay.
            if let Err(failure) = announce_routes(sidecar, &config) {
                console::print_notice(format_args!("{failure}"));
            }
        }
        Err(failure) => {
            console::print_notice(format_args!("not reloaded, nothing changed: {failure}"))
        }
    }
}

fn read_sidecar_config(file: &Path) -> Result<SidecarConfig, Failure> {
    let name = file.display();
    let text = input::read_to_string(file).map_err(|e| {
        Failure::error_with_help(
            format_args!("can't read {name}: {e}"),
            "give the path of a sidecar's TOML file; docs/sidecar.md has an example",
        )
    })?;
    SidecarConfig::parse(&text).map_err(|e| {
        Failure::usage(
            format_args!("{name}: {e}"),
            "docs/sidecar.md lists the keys",
        )
    })
}

/// Prints where each route listens, and warns about routes that do not verify their upstream.
fn announce_routes(sidecar: &Sidecar, config: &SidecarConfig) -> Result<(), Failure> {
    for route in config.insecure_routes() {
        console::print_notice(format_args!(
            "INSECURE: route {route}: the upstream's certificate is not checked"
        ));
    }
    for route in config.faulty_routes() {
        console::print_notice(format_args!(
            "FAULTS: route {route}: faults are injected into calls"
        ));
    }
    for (route, address) in sidecar.listen_addresses() {
        let insecure = config.insecure_routes().any(|insecure| insecure == route);
        let held = if insecure { " (INSECURE)" } else { "" };
        console::print_result(format_args!(
            "sidecar: {route}: listening on {address}{held}\n"
        ))?;
    }
    Ok(())
}

fn run_gateway(arguments: &GatewayArguments, environment: &Environment) -> Result<Exit, Failure> {
    descriptors::raise_limit()?;
    let service = &arguments.service;
    if service.bus.redis.is_none() && !arguments.echo {
        return Err(Failure::usage(
            "--redis is missing: a standalone gateway receives from its backends over Redis",
            "give --redis redis://HOST:PORT; for one process without Redis: plimsoll serve llm --with-gateway HOST:PORT",
        ));
    }
    let without = if arguments.echo {
        MissingSecretAction::Random
    } else {
        MissingSecretAction::Fails
    };
    let keys = service.read_token_keys(environment, without)?;
    let bound = service.bind("--listen", &arguments.listen, arguments.drain)?;
    let size = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
    let options = GatewayOptions {
        ping_interval: arguments.ping_interval.0.max(Duration::from_millis(10)),
        ping_timeout: arguments.ping_timeout.0,
        max_sessions: arguments.max_sessions,
        max_message: size(arguments.max_message),
        max_queue: size(arguments.max_queue),
        request_timeout: service.request_timeout.0,
        compression: arguments.compression,
        trusted_proxies: service.trusted_proxies(),
        lame_duck: service.lame_duck.0,
        echo: arguments.echo,
    };
    let renewals = bound.renewal.clone().into_iter().collect();
    sighup_reload::reload_at_hangup(&service.secret, environment, &keys, renewals)?;
    let metrics = run_until_stopped(service.workers, STOPPING_NOTICE, async |stopped| {
        let bus = service.bus.connect().await?;
        service.announce("gateway", &bound)?;
        let gateway = Gateway::new(bus, keys, options);
        gateway.serve(bound, stopped).await.map_err(Failure::error)
    })?;
    print_with_panics(&service.json, &gateway_counts(&metrics))?;
    Ok(Exit::Done)
}

pub(super) fn gateway_counts(metrics: &Metrics) -> [(&'static str, u64); 5] {
    [
        ("sockets", metrics.sessions.get()),
        ("frames", metrics.frames.get()),
        ("refused", metrics.refusal_count()),
        ("slow readers", metrics.slow.get()),
        ("gaps reported", metrics.gaps.get()),
    ]
}
