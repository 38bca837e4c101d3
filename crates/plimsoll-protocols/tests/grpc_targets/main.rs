//! The gRPC reference servers as an independent client (tonic's) sees them: answers,
//! secure links, delays, stalls, bounds and stopping.
#![cfg(feature = "targets")]

mod calls;
mod fast;
mod links;
mod peer;
