//! Maps unexpected statuses to outcomes.

use std::sync::LazyLock;

use plimsoll_model::Outcome;

/// The range of final statuses, classes 2xx to 5xx (RFC 9110 §15).
const MIN_STATUS: u16 = 200;
const MAX_STATUS: u16 = 599;

/// Returns whether a number is a status of HTTP: three digits, of which the first is 1 to 5 (RFC 9110 §15).
pub(super) fn is_valid_status(status: u16) -> bool {
    (100..=MAX_STATUS).contains(&status)
}

/// Returns the outcome of an unexpected status; a status without an outcome of its own has the outcome of its class. A
/// number that is not a final status makes the answer malformed.
/// `retry_after`: the value of the `retry-after` field (RFC 9110 §10.2.3).
pub(super) fn outcome_from_status(status: u16, retry_after: Option<&[u8]>) -> Outcome {
    static STATUS_OUTCOMES: LazyLock<Vec<[Outcome; 2]>> = LazyLock::new(|| {
        (MIN_STATUS..=MAX_STATUS)
            .map(|status| [false, true].map(|after| compute_status_outcome(status, after)))
            .collect()
    });
    if !(MIN_STATUS..=MAX_STATUS).contains(&status) {
        return Outcome::BadAnswer;
    }
    STATUS_OUTCOMES[usize::from(status - MIN_STATUS)][usize::from(retry_after.is_some())]
}

fn compute_status_outcome(status: u16, retry_after: bool) -> Outcome {
    let own = format!("HTTP_{status}");
    let after = retry_after.then(|| Outcome::from_code(&format!("{own}_RETRY_AFTER")));
    let found = after.flatten().or_else(|| Outcome::from_code(&own));
    let of_class = || Outcome::from_code(&format!("HTTP_{}XX", status / 100));
    found
        .or_else(of_class)
        .unwrap_or(const { Outcome::coded("HTTP_STATUS") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_to_own_or_class_code() {
        for status in MIN_STATUS..=MAX_STATUS {
            let code = outcome_from_status(status, None).code();
            let own = format!("HTTP_{status}");
            assert!(
                code == own || code == format!("HTTP_{}XX", status / 100),
                "{code}"
            );
            let known = Outcome::from_code(&own).is_some();
            assert_eq!(known, code == own, "{status}");
            let apart = matches!(status, 429 | 503);
            assert_eq!(
                outcome_from_status(status, Some(b"1")).code() != code,
                apart,
                "{status}"
            );
        }
        assert_eq!(outcome_from_status(404, None), Outcome::coded("HTTP_404"));
        assert_eq!(
            outcome_from_status(503, Some(b"1")),
            Outcome::coded("HTTP_503_RETRY_AFTER")
        );
        for status in [0, 99, 100, 600, 999] {
            assert_eq!(outcome_from_status(status, None), Outcome::BadAnswer);
        }
        let valid = [0, 99, 100, 599, 600, 999].map(is_valid_status);
        assert_eq!(valid, [false, false, true, true, false, false]);
    }
}
