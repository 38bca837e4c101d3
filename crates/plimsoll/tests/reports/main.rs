//! What is reported of a load, while it runs and afterwards, and whether it is true.

mod blame;
#[path = "../../../plimsoll-report/tests/browser/mod.rs"]
mod browser;
mod changes;
mod documents;
mod known;
mod live_view;
mod profile;
mod spans;
#[path = "../support/mod.rs"]
mod support;
mod telemetry;
#[path = "../support/terminal.rs"]
mod terminal;
mod truth;
mod view;
