//! Describes the cost of certificate rotation in a sentence.

use plimsoll_model::runs::run::{RotationPart, RotationSummary};

use crate::quantity::{count, time};

type RotationFigure = fn(&RotationPart) -> Option<f64>;

/// Compares the seconds around rotations with the other seconds.
pub(crate) fn sentence(rotation: &RotationSummary) -> String {
    let RotationSummary {
        intervals,
        around,
        rest,
    } = rotation;
    let seconds = match intervals {
        1 => "one interval".to_owned(),
        n => format!("{} intervals", count(*n)),
    };
    let figures: [(&str, RotationFigure); 3] = [
        ("handshake p50", |part| {
            part.handshake.and_then(|times| times.p50_us)
        }),
        ("client CPU a call", |part| part.client_cpu_us_per_call),
        ("server CPU a call", |part| part.server_cpu_us_per_call),
    ];
    let mut parts = vec![format!("certificates were replaced in {seconds}")];
    for (what, figure) in figures {
        if let (Some(here), Some(there)) = (figure(around), figure(rest)) {
            parts.push(format!(
                "{what} {} around them, {} otherwise",
                time(here),
                time(there)
            ));
        }
    }
    let failed = |part: &RotationPart| {
        let failed = count(part.errors + part.connect_failures);
        format!("{failed} failed of {}", count(part.calls))
    };
    parts.push(format!(
        "{} around them, {} otherwise",
        failed(around),
        failed(rest)
    ));
    parts.join("; ")
}
