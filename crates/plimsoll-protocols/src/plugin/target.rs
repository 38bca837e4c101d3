//! The reference server of a plugin's protocol: an echo server.
//!
//! Each request is answered at once with its own payload, and each heartbeat with its acknowledgement. If the
//! plugin fails, or a client violates the protocol, that client's connection is closed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use plimsoll_plugin::{
    Codec, CodecFault, DEFAULT_MAX_FRAME_BYTES, DecodeResult, Frame, FrameKind, Match,
    NewFrameKind, SenderRole,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use plimsoll_serving::ServeError;
use plimsoll_serving::accepting::{self, ConnectionHandler};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::tls_server::early_data::ServerStream;

const READ_CHUNK_BYTES: usize = 64 << 10;
/// Capacity in bytes to which empty buffers are shrunk.
const MAX_KEPT_BUFFER_BYTES: usize = 256 << 10;

/// The protocol of a codec plugin: each request is answered with its own payload.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: the plugin that docs/plugin.md builds\n  \
    plimsoll serve plugin x_example.so --listen 127.0.0.1:7000")]
pub struct PluginOptions {
    /// The shared object that implements the protocol (docs/plugin.md).
    #[arg(value_name = "FILE")]
    codec: PathBuf,
}

#[derive(Default)]
struct PluginCounters {
    /// Requests answered with their own payload.
    answered: AtomicU64,
    oneway: AtomicU64,
    heartbeats: AtomicU64,
    /// Connections closed because their bytes are not frames of the protocol.
    malformed: AtomicU64,
    /// Connections closed because the plugin failed.
    plugin_faults: AtomicU64,
}

/// The state that all connections share.
struct PluginServer {
    codec: Codec,
    counters: PluginCounters,
}

impl ReferenceServer for PluginOptions {
    const COMMAND_NAME: &str = "plugin";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        let codec = Codec::load(&self.codec).map_err(|e| ServeError::Codec {
            problem: e.to_string(),
            help: "docs/plugin.md explains how to build a plugin",
        })?;
        check_codec(&codec)?;
        let server = Arc::new(PluginServer {
            codec,
            counters: PluginCounters::default(),
        });
        Ok(Box::pin(async move {
            let handler = PluginHandler(Arc::clone(&server));
            let accepted = accepting::accept_and_serve(context.bound, handler, context.stopped);
            let connections = accepted.await?;
            let counters = &server.counters;
            let counted = [
                ("answered", &counters.answered),
                ("oneway", &counters.oneway),
                ("heartbeats", &counters.heartbeats),
                ("malformed", &counters.malformed),
                ("plugin faults", &counters.plugin_faults),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

/// Checks that the plugin can build the responses that a server needs.
///
/// # Errors
/// Returns an error if it can't build them, or fails.
fn check_codec(codec: &Codec) -> Result<(), ServeError> {
    let wrong = |problem: String| {
        ServeError::invalid_option("codec", format!("{}: {problem}", codec.name()))
    };
    match codec.make_frame(NewFrameKind::Response, 1, 0, b"echo", &mut Vec::new()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(wrong(
            "the plugin can't build responses (PLIMSOLL_MAKE_RESPONSE), so it can't be served"
                .to_owned(),
        )),
        Err(fault) => Err(wrong(fault.to_string())),
    }
}

/// The connection handler. Its clones, one for each connection, share the server.
#[derive(Clone)]
struct PluginHandler(Arc<PluginServer>);

impl ConnectionHandler for PluginHandler {
    async fn serve<S: ServerStream>(
        self,
        mut stream: S,
        mut stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        let (mut input, mut out) = (Vec::new(), Vec::new());
        let mut recognised = false;
        loop {
            input.reserve(READ_CHUNK_BYTES);
            tokio::select! {
                biased;
                read = stream.read_buf(&mut input) => {
                    if read? == 0 {
                        break;
                    }
                }
                _ = stopped.changed() => break,
            }
            let taken = self.0.handle_frames(&input, &mut recognised, &mut out);
            // Responses to requests before a fault are still sent.
            if !out.is_empty() {
                stream.write_all(&out).await?;
                out.clear();
                out.shrink_to(MAX_KEPT_BUFFER_BYTES);
            }
            match taken {
                Ok(taken) => {
                    input.drain(..taken);
                    if input.is_empty() {
                        input.shrink_to(MAX_KEPT_BUFFER_BYTES);
                    }
                }
                Err(fault) => {
                    self.0.count_fault(fault);
                    break;
                }
            }
        }
        stream.shutdown().await
    }
}

impl PluginServer {
    /// Handles the complete frames at the front of `input` and appends the responses. Returns the number of
    /// bytes handled.
    fn handle_frames(
        &self,
        input: &[u8],
        recognised: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, CodecFault> {
        if !*recognised {
            match self.codec.matches(input, SenderRole::Client)? {
                Match::Yes => *recognised = true,
                Match::More if input.len() < DEFAULT_MAX_FRAME_BYTES => return Ok(0),
                Match::More | Match::No => return Err(CodecFault::Malformed),
            }
        }
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            match self
                .codec
                .decode(rest, SenderRole::Client, DEFAULT_MAX_FRAME_BYTES)?
            {
                DecodeResult::Frame(frame) => {
                    self.write_answer(&frame, &rest[frame.payload.clone()], out)?;
                    taken += frame.length;
                }
                DecodeResult::More(_) => return Ok(taken),
            }
        }
    }

    fn write_answer(
        &self,
        frame: &Frame,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodecFault> {
        let (counter, what) = match frame.kind {
            FrameKind::Request { .. } => (&self.counters.answered, Some(NewFrameKind::Response)),
            FrameKind::Heartbeat => (&self.counters.heartbeats, Some(NewFrameKind::HeartbeatAck)),
            FrameKind::Oneway => (&self.counters.oneway, None),
            // These frames need no response.
            FrameKind::Response { .. } | FrameKind::HeartbeatAck | FrameKind::GoAway => {
                return Ok(());
            }
        };
        if let Some(what) = what {
            let payload = if what == NewFrameKind::Response {
                payload
            } else {
                &[]
            };
            self.codec
                .make_frame(what, frame.id, frame.note, payload, out)?;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn count_fault(&self, fault: CodecFault) {
        let name = self.codec.name();
        let counter = if fault.is_plugin_fault() {
            tracing::warn!("closing a connection: {name}: {fault}");
            &self.counters.plugin_faults
        } else {
            tracing::debug!("closing a connection: {name}: {fault}");
            &self.counters.malformed
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
