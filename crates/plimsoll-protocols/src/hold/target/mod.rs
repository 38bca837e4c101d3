//! `serve hold`: echoes every byte, and holds as many connections in as little memory as possible.
//!
//! An idle connection keeps a descriptor and, over TLS, its secrets ([`plimsoll_engine::tls::ServerSession`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use plimsoll_engine::tls::NegotiatedParameters;

use plimsoll_serving::ServeError;
use plimsoll_serving::event_loop::{self, LoopService};
use plimsoll_serving::reference::{
    ReferenceServer, ServeContext, ServerCounts, ServerFuture, ServerIdentity,
};

/// Echoes every byte, and holds as many connections in as little memory as it can.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: TLS 1.3, then 18,000 idle connections\n  \
    plimsoll serve hold --listen 127.0.0.1:4434 --tls-cert certs/server.crt --tls-key certs/server.key\n  \
    plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s")]
pub struct HoldOptions {
    #[command(flatten)]
    identity: ServerIdentity,
}

/// The echo service; clones share its counters.
#[derive(Clone, Debug, Default)]
struct EchoService(Arc<EchoCounters>);

#[derive(Debug, Default)]
struct EchoCounters {
    full: AtomicU64,
    resumed: AtomicU64,
    echoed: AtomicU64,
}

impl LoopService for EchoService {
    const SERVICE_NAME: &str = "hold";
    const IS_MOSTLY_IDLE: bool = true;
    type Connection = ();

    fn new_connection(&self) {}

    fn receive(&self, (): &mut (), bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        out.extend_from_slice(bytes);
        self.0
            .echoed
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn on_handshake_done(&self, agreement: NegotiatedParameters) {
        let count = if agreement.resumed {
            &self.0.resumed
        } else {
            &self.0.full
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl ReferenceServer for HoldOptions {
    const COMMAND_NAME: &str = EchoService::SERVICE_NAME;

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        let workers = context.workers.unwrap_or(1);
        let bound = context.bound.with_resumption(&[], &self.identity, None)?;
        Ok(Box::pin(async move {
            let echo = EchoService::default();
            let counters = Arc::clone(&echo.0);
            let connections = event_loop::serve(bound, workers, echo, context.stopped).await?;
            let counted = [
                ("echoed bytes", &counters.echoed),
                ("full handshakes", &counters.full),
                ("resumed handshakes", &counters.resumed),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}
