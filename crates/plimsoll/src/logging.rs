//! `-v` and `--trace`: what happens inside, on stderr.

use tracing_subscriber::filter::LevelFilter;

/// Warnings always; connections and decisions with `verbose`; frames and TLS events with `trace`.
pub(crate) fn start(verbose: bool, trace: bool) {
    let level = match (trace, verbose) {
        (true, _) => LevelFilter::TRACE,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::WARN,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| crate::console::Teller)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
}
