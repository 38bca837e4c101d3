//! Finds out what this machine can measure: its settings, and two short loads.

mod calibration;
mod settings;

use serde::Serialize;

pub(crate) use calibration::{CalibrationFigures, PACED_RATE, measure};
pub(crate) use settings::settings;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// It is as it should be.
    Good,
    /// It limits what can be measured.
    Limit,
    /// It distorts figures.
    Distortion,
}

/// What was found about one property of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MachineFinding {
    /// The property in one or two words.
    pub(crate) name: &'static str,
    pub(crate) kind: FindingKind,
    /// What was found, and what it means for figures.
    pub(crate) text: String,
    /// What to change; `None`: nothing.
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
