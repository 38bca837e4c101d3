//! Draws each request's delay from one of several laws (delay distributions), chosen at random by weight.

use serde::Deserialize;
use toml::Table;

use super::request_rng::RequestRng;
use super::{DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_number};

/// Maximum number of laws in a mixture.
const MAX_COMPONENTS: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct MixtureSettings {
    parts: Vec<MixtureComponent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MixtureComponent {
    share: f64,
    of: Table,
}

impl LawSettings for MixtureSettings {
    const NAME: &'static str = "mixture";
    const KEYS: &'static [&'static str] = &["parts"];

    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        if !(1..=MAX_COMPONENTS).contains(&self.parts.len()) {
            let problem = format!(
                "parts: {} laws, expected 1 to {MAX_COMPONENTS}",
                self.parts.len()
            );
            return Err(LawError::new(problem));
        }
        let mut parts = Vec::with_capacity(self.parts.len());
        let mut sum = 0.0;
        for (i, part) in self.parts.into_iter().enumerate() {
            let key = format!("parts[{i}]");
            sum += checked_number("share", part.share, 0.0, 1.0)
                .map_err(|e| e.with_outer_key(&key))?;
            let law = within
                .build_nested("of", part.of)
                .map_err(|e| e.with_outer_key(&key))?;
            parts.push((sum, law));
        }
        if (sum - 1.0).abs() > 1e-9 {
            return Err(LawError::new(format!(
                "parts: shares sum to {sum}, not to 1"
            )));
        }
        Ok(Box::new(MixtureLaw(parts)))
    }
}

/// Laws with their cumulative shares.
#[derive(Debug)]
struct MixtureLaw(Vec<(f64, Box<dyn DelayLaw>)>);

impl DelayLaw for MixtureLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let drawn = draws.fraction();
        let last = self.0.len() - 1;
        let place = self.0.partition_point(|(sum, _)| *sum <= drawn).min(last);
        self.0[place].1.answer_time(request, draws)
    }
}
