//! Loads of every protocol, and our servers, against each other and against third-party peers.

mod addresses;
mod bolt_peers;
#[path = "../../../plimsoll-plugin/tests/built/mod.rs"]
mod built;
mod calls;
mod data;
mod fetch;
mod hold;
mod http;
mod lanes;
mod llm;
#[path = "../support/path_counts.rs"]
mod path_counts;
mod peers;
mod plugins;
mod proxies;
mod reflection;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod unix;
