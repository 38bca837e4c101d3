//! Reports and exports of synthetic runs, as golden files, as simulations, and in a browser.

#[path = "../browser/mod.rs"]
mod browser;
mod comment;
mod compare;
mod counted_facts;
mod data;
mod exports;
mod html;
mod made;
mod ongoing;
mod pages;
mod records;
mod reports;
#[allow(clippy::unwrap_used, reason = "tests")]
mod runs;
mod s_time;
mod sentences;
mod spans;
mod sweep_noise;
