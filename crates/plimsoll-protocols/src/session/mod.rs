//! Scripted sessions over an HTTP API and a WebSocket: an LLM's tokens as they stream.

pub mod websocket;
