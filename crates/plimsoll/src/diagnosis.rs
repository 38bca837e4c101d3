//! Determines how well this machine can measure, from its settings and from two short loads.

mod calibration;
mod settings;

use serde::Serialize;

pub(crate) use calibration::{CalibrationFigures, FIXED_RATE_PER_S, measure};
pub(crate) use settings::check_settings;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// The property needs no change.
    Good,
    /// The property limits what can be measured.
    Limit,
    /// The property distorts figures.
    Distortion,
}

/// The result of checking one property of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MachineFinding {
    /// The property's name, one or two words.
    pub(crate) name: &'static str,
    pub(crate) kind: FindingKind,
    /// The property's value, and what it means for measurements.
    pub(crate) text: String,
    /// What to change; `None` if nothing needs to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl MachineFinding {
    pub(crate) fn good(name: &'static str, text: String) -> MachineFinding {
        MachineFinding {
            name,
            kind: FindingKind::Good,
            text,
            remedy: None,
        }
    }

    pub(crate) fn limit(name: &'static str, text: String, remedy: &str) -> MachineFinding {
        MachineFinding {
            kind: FindingKind::Limit,
            remedy: Some(remedy.to_owned()),
            ..MachineFinding::good(name, text)
        }
    }

    pub(crate) fn distortion(name: &'static str, text: String, remedy: &str) -> MachineFinding {
        MachineFinding {
            kind: FindingKind::Distortion,
            ..MachineFinding::limit(name, text, remedy)
        }
    }
}
