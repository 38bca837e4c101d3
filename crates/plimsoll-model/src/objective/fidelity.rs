//! Evaluates objectives that limit the fidelity of a load: how closely the sent calls followed the plan. Fidelity says
//! nothing about the target.

use super::{LimitCheck, ObjectiveEvaluation};
use crate::plan::Objective;
use crate::runs::run::DeliverySummary;

/// Evaluates the fidelity of a load, of which a lower and an upper bound are known.
pub(super) fn evaluate(objective: &Objective, delivery: &DeliverySummary) -> ObjectiveEvaluation {
    let [low, high] = delivery.fidelity();
    let (is_met, is_missed) = if objective.is_upper {
        (high <= objective.limit, low > objective.limit)
    } else {
        (low >= objective.limit, high < objective.limit)
    };
    let text = format_fidelity(delivery);
    let (found, text) = if is_met {
        (LimitCheck::Met, text)
    } else if is_missed {
        (LimitCheck::Missed, text)
    } else {
        let why = "the send times are not known precisely enough";
        (LimitCheck::Within, format!("{text}; {why}"))
    };
    ObjectiveEvaluation {
        check: found,
        text,
        interval: None,
    }
}

/// Formats the fidelity of a load with two decimals of a per cent, rounded outward.
pub(super) fn format_fidelity(delivery: &DeliverySummary) -> String {
    let [low, high] = delivery.fidelity();
    // The small constant keeps floating-point errors from rounding a hundredth away.
    let low = format!("{:.2}%", (low * 1e4 + 1e-6).floor() / 1e2);
    let high = format!("{:.2}%", (high * 1e4 - 1e-6).ceil() / 1e2);
    if low == high {
        low
    } else {
        format!("{low} to {high}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{judged_delivery, objectives};
    use super::super::{ObjectiveVerdict, RunValidity};

    fn delivery(distance: [f64; 2]) -> crate::runs::run::DeliverySummary {
        crate::runs::run::DeliverySummary {
            asked: 1_000,
            sent: 1_000,
            sent_share: 1.0,
            distance,
            generator_distance: distance,
            lateness_p99_us: None,
            lateness_max_us: 20.0,
        }
    }

    #[test]
    fn fidelity_is_judged_whatever_the_load() {
        use ObjectiveVerdict::{CannotBeJudged, Met, Missed, NotSupported};
        let objectives = objectives(&[("fidelity", "> 99%")]);
        for (distance, verdict, measured) in [
            ([0.0, 0.002], Met, "99.80% to 100.00%"),
            ([0.02, 0.05], Missed, "95.00% to 98.00%"),
            ([0.03, 0.03], Missed, "97.00%"),
            (
                [0.001, 0.05],
                CannotBeJudged,
                "95.00% to 99.90%; the send times are not known precisely enough",
            ),
        ] {
            for validity in [RunValidity::Sound, RunValidity::OtherLoad] {
                let judged = judged_delivery(&objectives, Some(delivery(distance)), validity);
                assert_eq!(
                    (judged.verdict, judged.measured.as_str()),
                    (verdict, measured)
                );
            }
        }
        let unknown = judged_delivery(&objectives, None, RunValidity::Sound);
        assert_eq!(unknown.verdict, NotSupported);
    }
}
