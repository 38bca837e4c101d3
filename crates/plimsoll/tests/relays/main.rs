//! Relays and what is behind them: sidecars, the gateway, its sessions, and whole stacks.

mod proxied;
mod sessions;
mod sidecar;
mod stack;
#[path = "../support/mod.rs"]
mod support;
