//! `plimsoll serve llm`: simulates a language model that streams tokens, over sessions and the APIs of OpenAI and
//! Anthropic.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_relays::gateway::{Gateway, GatewayOptions, Metrics};
use plimsoll_relays::llm::{DEFAULT_RESPONSE_TEXT, LlmOptions, LlmService, LlmStats};
use tokio::time::Instant;

use crate::commands::final_counts::print_with_panics;
use crate::commands::relay::{ServiceFlags, gateway_counts};
use crate::commands::secret::MissingSecretAction;
use crate::commands::sighup_reload;
use crate::failure::{Exit, Failure};
use crate::settings::environment::Environment;
use crate::system::descriptors;
use crate::system::stopping::{STOPPING_NOTICE, run_until_stopped};

/// Minimum drain time of WebSocket connections, even if the answers in progress have used up the whole drain time.
const MIN_SOCKET_DRAIN: Duration = Duration::from_secs(1);

/// A simulated language model: the APIs of OpenAI and Anthropic (POST /v1/chat/completions, /v1/completions,
/// /v1/responses, /v1/messages, /v1/embeddings, /v1/rerank), and sessions whose tokens go through a gateway (POST
/// /session/create, /session/ID/run, /session/ID/close).
#[derive(Debug, Args)]
#[command(
    before_help = "Example: OpenAI's API, eight answers at once, a token every 20 ms\n  \
        plimsoll serve llm --listen 127.0.0.1:8000 --token-delay 20ms --slots 8\n\
        Example: backend and gateway in one process, without Redis\n  \
        plimsoll serve llm --listen 127.0.0.1:8000 --with-gateway 127.0.0.1:4040\n\
        Example: one of several backends on a Redis server\n  \
        JWT_SECRET=… plimsoll serve llm --listen 127.0.0.1:8001 --redis redis://127.0.0.1:6379",
    after_help = crate::settings::environment::VARIABLES_HELP
)]
pub(crate) struct LlmArguments {
    /// Where to listen; port 0: any free port; unix:/PATH: a Unix socket.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    listen: String,

    /// Also serve the gateway in this process; without --redis, no Redis server is needed. With neither flag, only
    /// these APIs are served.
    #[arg(long, value_name = "HOST:PORT")]
    with_gateway: Option<String>,

    /// Let that gateway compress messages with clients that offer it (permessage-deflate).
    #[arg(long, requires = "with_gateway")]
    compression: bool,

    /// Delay before each token.
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    token_delay: Period,

    /// Maximum deviation of each delay, uniformly distributed.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    jitter: Period,

    /// The text of answers; each word is a token.
    #[arg(long, default_value = DEFAULT_RESPONSE_TEXT, hide_default_value = true)]
    text: String,

    /// Tokens per answer; the text is repeated or cut to that length [default: the number of words of the text, 18].
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    tokens: Option<u32>,

    /// Maximum number of concurrent answers over these APIs, like a model's batch; further requests wait [default: no
    /// limit].
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    slots: Option<u32>,

    #[command(flatten)]
    service: ServiceFlags,

    /// How long answers in progress may continue after a stop request; then another backend continues them.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    drain: Period,
}

impl LlmArguments {
    fn llm_options(&self) -> LlmOptions {
        LlmOptions {
            token_delay: self.token_delay.0,
            jitter: self.jitter.0,
            text: self.text.clone(),
            tokens: self.tokens.map(|n| n as usize),
            slots: self.slots.map(|n| n as usize),
            has_sessions: self.with_gateway.is_some() || self.service.bus.redis.is_some(),
            request_timeout: self.service.request_timeout.0,
            trusted_proxies: self.service.trusted_proxies(),
            lame_duck: self.service.lame_duck.0,
        }
    }

    fn gateway_options(&self) -> GatewayOptions {
        GatewayOptions {
            request_timeout: self.service.request_timeout.0,
            trusted_proxies: self.service.trusted_proxies(),
            compression: self.compression,
            ..GatewayOptions::default()
        }
    }
}

pub(crate) fn execute(
    arguments: &LlmArguments,
    environment: &Environment,
) -> Result<Exit, Failure> {
    descriptors::raise_limit()?;
    let service = &arguments.service;
    let without = match service.bus.redis {
        Some(_) => MissingSecretAction::Fails,
        None => MissingSecretAction::Random,
    };
    let keys = service.read_token_keys(environment, without)?;
    let bound = service.bind("--listen", &arguments.listen, arguments.drain)?;
    let with_gateway = arguments.with_gateway.as_ref();
    let gateway_bound = with_gateway
        .map(|listen| service.bind("--with-gateway", listen, arguments.drain))
        .transpose()?;
    let options = arguments.llm_options();
    let renewals = [Some(&bound), gateway_bound.as_ref()];
    let renewals = renewals
        .into_iter()
        .flatten()
        .filter_map(|bound| bound.renewal.clone());
    sighup_reload::reload_at_hangup(&service.secret, environment, &keys, renewals.collect())?;

    let stop = tokio::sync::watch::Sender::new(false);
    let (mut stopped, mut gateway_stopped) = (stop.subscribe(), stop.subscribe());
    let (drain, lame_duck) = (arguments.drain.0, service.lame_duck.0);
    let (stats, relayed) = run_until_stopped(service.workers, STOPPING_NOTICE, async |asked| {
        tokio::spawn(async move {
            asked.await;
            stop.send_replace(true);
        });
        let bus = service.bus.connect().await?;
        service.announce("llm", &bound)?;
        let gateway = gateway_bound.map(|bound| {
            let options = arguments.gateway_options();
            let gateway = Gateway::new(bus.clone(), keys.clone(), options);
            (gateway, bound)
        });
        if let Some((_, bound)) = &gateway {
            service.announce("gateway", bound)?;
        }
        // Stop the gateway after the model's runs, so that their last tokens still reach the clients.
        let ended = tokio::sync::watch::Sender::new(false);
        let (mut told_end, mut service_ended) = (ended.subscribe(), ended.subscribe());
        let stop_began = Arc::new(OnceLock::new());
        let stopping = Arc::clone(&stop_began);
        let relaying = async {
            match gateway {
                None => Ok(None),
                Some((gateway, bound)) => gateway
                    .serve_until(
                        bound,
                        async move {
                            // The gateway also stops if the service has failed.
                            tokio::select! {
                                _ = gateway_stopped.wait_for(|stopped| *stopped) => {}
                                _ = service_ended.wait_for(|ended| *ended) => {}
                            }
                        },
                        async move {
                            let _ = told_end.wait_for(|ended| *ended).await;
                            let all = lame_duck + drain;
                            let spent = stop_began.get().map_or(all, Instant::elapsed);
                            let shortest = MIN_SOCKET_DRAIN.min(drain);
                            all.saturating_sub(spent).max(shortest)
                        },
                    )
                    .await
                    .map(Some),
            }
        };
        let serving = async {
            let llm = LlmService::new(bus, keys, options);
            let served = llm.serve(bound, async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
                let _ = stopping.set(Instant::now());
            });
            let served = served.await;
            ended.send_replace(true);
            served
        };
        let (served, relayed) = tokio::join!(serving, relaying);
        Ok::<_, Failure>((
            served.map_err(Failure::error)?,
            relayed.map_err(Failure::error)?,
        ))
    })?;
    print_with_panics(&service.json, &final_counts(&stats, relayed.as_ref()))?;
    Ok(Exit::Done)
}

fn final_counts(stats: &LlmStats, relayed: Option<&Metrics>) -> Vec<(&'static str, u64)> {
    let mut counts = vec![
        ("sessions", stats.sessions.get()),
        ("runs", stats.runs.get()),
        ("tokens", stats.tokens.get()),
        ("handed over", stats.handed_over.get()),
        ("unfinished", stats.unfinished.get()),
    ];
    if let Some(metrics) = relayed {
        counts.extend(gateway_counts(metrics));
    }
    counts
}
