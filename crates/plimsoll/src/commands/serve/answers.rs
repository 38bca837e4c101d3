//! How a reference server behaves: delays, a stall, where random choices begin.

use std::str::FromStr;

use clap::Args;
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::target::{Delay, Stall};

#[derive(Debug, Args)]
pub(super) struct AnswerFlags {
    /// Freeze all answers for FOR, once, AFTER the first request: "500ms@5s".
    #[arg(long, value_name = "FOR@AFTER")]
    pub(super) stall: Option<StallText>,

    /// Busy-wait this long before an answer is due, for precision; "0s" saves CPU.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub(super) spin: Period,

    /// The seed of random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
}

/// A [`Delay`] as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DelayText(pub(super) Delay);

impl FromStr for DelayText {
    type Err = plimsoll_model::units::UnitError;

    fn from_str(text: &str) -> Result<DelayText, Self::Err> {
        let period = |text: &str| text.parse::<Period>().map(|p| p.0);
        Ok(DelayText(if let Some(mean) = text.strip_prefix("exp:") {
            Delay::Exponential {
                mean: period(mean)?,
            }
        } else if let Some((from, to)) = text.split_once("..") {
            Delay::Uniform {
                from: period(from)?,
                to: period(to)?,
            }
        } else {
            Delay::Constant(period(text)?)
        }))
    }
}

/// A [`Stall`] as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StallText(pub(super) Stall);

impl FromStr for StallText {
    type Err = String;

    fn from_str(text: &str) -> Result<StallText, String> {
        let (length, after) = text.split_once('@').ok_or_else(|| {
            format!(
                "`{text}` lacks an @: write \"500ms@5s\" for 500 ms, 5 s after the first request"
            )
        })?;
        let period = |text: &str| {
            text.parse::<Period>()
                .map(|p| p.0)
                .map_err(|e| e.to_string())
        };
        Ok(StallText(Stall {
            after: period(after)?,
            duration: period(length)?,
        }))
    }
}
