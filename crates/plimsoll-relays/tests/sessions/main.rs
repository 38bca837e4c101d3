//! The LLM simulator, the bus and the gateway together, over real sockets on loopback.

mod client;
mod flow;
mod refusals;
mod resuming;
mod stack;
