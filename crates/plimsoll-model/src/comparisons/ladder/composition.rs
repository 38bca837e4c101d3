//! Predicts the cost of a chain of layers (such as TLS or a proxy) from the costs of single layers.
//!
//! A ladder whose first rung (variant) is the bare link without any layer, and whose other rungs add one layer each, is
//! a price list. The work of layers adds up: a call passes each of them once, whatever the others are. Waiting times do
//! not add up, so only medians and CPU time are predicted, no higher percentiles. Chains that were measured differ from
//! the sums of their layers, because layers share wake-ups of cores, fill caches and batch calls: [`COMPOSITION_TOLERANCE`]
//! of a sum is added to its interval.

use super::{AddedCost, LadderMetric, LadderRecord, Rung};
use crate::statistics::paired::{PairedDifference, paired_difference};

/// Share of the sum of its layers by which a chain's measured cost may differ from that sum. `bench/tax.py --closure`
/// measures it.
pub const COMPOSITION_TOLERANCE: f64 = 0.15;

/// The metrics whose values add up over the layers of a chain.
const ADDITIVE_METRICS: [LadderMetric; 5] = [
    LadderMetric::P50,
    LadderMetric::FirstToken,
    LadderMetric::ClientCpu,
    LadderMetric::ServerCpu,
    LadderMetric::SidecarCpu,
];

/// Probability that the confidence interval of a price misses the true value.
const PRICE_ALPHA: f64 = 0.05;

/// A ladder, read as the prices of single layers.
#[derive(Clone, Copy, Debug)]
pub struct PriceList<'a> {
    record: &'a LadderRecord,
}

/// A layer of a price list.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedLayer {
    /// The index of the rung that adds the layer.
    rung: usize,
    /// The names by which chains may call it, the shortest first.
    pub names: Vec<String>,
}

/// The predicted cost of a chain, in one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedCost {
    /// The metric.
    pub metric: LadderMetric,
    /// The sum of the layers, in the metric's unit.
    pub estimate: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The price of each layer, in the order of the chain.
    pub layers: Vec<PairedDifference>,
}

/// Why nothing can be predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// The list has no layer of this name.
    #[error("`{name}` is not a layer of this list: it has {known}")]
    UnknownLayer {
        /// The unknown name.
        name: String,
        /// The names of all layers.
        known: String,
    },
    /// The ladder has too few rounds for intervals.
    #[error("the ladder has too few rounds to state prices with bounds: measure for longer")]
    TooFewRounds,
}

impl<'a> PriceList<'a> {
    /// Reads a ladder as a price list.
    pub fn new(record: &'a LadderRecord) -> PriceList<'a> {
        PriceList { record }
    }

    /// Returns the name of the link to which layers are added.
    pub fn base_name(&self) -> &'a str {
        self.record.rungs.first().map_or("", |rung| &rung.name)
    }

    /// Returns the layers, in the order of the ladder.
    pub fn layers(&self) -> Vec<PricedLayer> {
        let Some((base, rungs)) = self.record.rungs.split_first() else {
            return Vec::new();
        };
        let layer = |(nth, rung): (usize, &Rung)| PricedLayer {
            rung: nth + 1,
            names: layer_names(base, rung),
        };
        rungs.iter().enumerate().map(layer).collect()
    }

    /// Returns a metric of the bare link, in its unit; `None`: not measured.
    pub fn base_value(&self, metric: LadderMetric) -> Option<f64> {
        self.record.rungs.first()?.median(metric)
    }

    /// Predicts the cost of a chain of layers compared with the bare link. Metrics that were not measured are left out.
    ///
    /// # Errors
    /// When a layer is unknown, or no price has a confidence interval.
    pub fn predict(&self, chain: &[String]) -> Result<Vec<PredictedCost>, PriceError> {
        let layers = self.layers();
        let mut rungs = Vec::new();
        for name in chain {
            let found = layers.iter().find(|layer| layer.names.contains(name));
            let found = found.ok_or_else(|| PriceError::UnknownLayer {
                name: name.clone(),
                known: join_layer_names(&layers),
            })?;
            rungs.push(found.rung);
        }
        let predicted: Vec<PredictedCost> = ADDITIVE_METRICS
            .into_iter()
            // CPU time of proxies is not measured where the ladder has no proxy.
            .filter(|metric| {
                let is_measured = |rung: &usize| self.record.rungs[*rung].median(*metric).is_some();
                rungs.iter().any(is_measured)
            })
            .filter_map(|metric| {
                let prices = rungs.iter().map(|rung| self.layer_price(*rung, metric));
                Some(sum_prices(metric, prices.collect::<Option<_>>()?))
            })
            .collect();
        match predicted.as_slice() {
            [] => Err(PriceError::TooFewRounds),
            _ => Ok(predicted),
        }
    }

    /// Returns the cost of a rung compared with the first rung, which is the bare link.
    fn layer_price(&self, rung: usize, metric: LadderMetric) -> Option<PairedDifference> {
        if metric == LadderMetric::SidecarCpu {
            // The first rung has no proxy, so the rung's own values are the difference.
            let slices = &self.record.rungs.get(rung)?.slices;
            let used: Vec<f64> = slices.iter().filter_map(|s| s.value(metric)).collect();
            return if used.is_empty() {
                Some(PairedDifference {
                    shift: 0.0,
                    low: 0.0,
                    high: 0.0,
                })
            } else {
                paired_difference(&used, PRICE_ALPHA)
            };
        }
        match self.record.added_cost(rung, 0, metric) {
            AddedCost::Significant(cost) | AddedCost::NotSignificant(cost) => Some(cost),
            AddedCost::Exact(_) | AddedCost::TooFewRounds => None,
        }
    }
}

/// Adds up prices. Their errors are independent, so the squares of the errors add up. For chains of several layers, the
/// interval is widened by [`COMPOSITION_TOLERANCE`] of the sum.
fn sum_prices(metric: LadderMetric, layers: Vec<PairedDifference>) -> PredictedCost {
    let estimate: f64 = layers.iter().map(|cost| cost.shift).sum();
    let share = if layers.len() > 1 {
        COMPOSITION_TOLERANCE
    } else {
        0.0
    };
    let missed = share * layers.iter().map(|cost| cost.shift.abs()).sum::<f64>();
    let error = |side: fn(&PairedDifference) -> f64| {
        layers
            .iter()
            .map(|cost| side(cost).powi(2))
            .sum::<f64>()
            .sqrt()
            + missed
    };
    PredictedCost {
        metric,
        estimate,
        low: estimate - error(|cost| cost.shift - cost.low),
        high: estimate + error(|cost| cost.high - cost.shift),
        layers,
    }
}

/// Returns the names of the layer that `rung` adds: the one setting in which it differs from the first rung, and the
/// rung's own name.
fn layer_names(base: &Rung, rung: &Rung) -> Vec<String> {
    let settings = rung.settings.iter();
    let own: Vec<(&String, &String)> = settings
        .filter(|(axis, value)| base.settings.get(*axis) != Some(value))
        .collect();
    let mut names = Vec::new();
    if let [(axis, value)] = own[..] {
        match (axis.as_str(), value.as_str()) {
            ("tls", "server") => names.push("tls".to_owned()),
            ("tls", "mutual") => names.push("mtls".to_owned()),
            _ => {}
        }
        names.push(value.clone());
    }
    if !names.contains(&rung.name) {
        names.push(rung.name.clone());
    }
    names
}

fn join_layer_names(layers: &[PricedLayer]) -> String {
    let names: Vec<String> = layers.iter().map(|layer| layer.names[0].clone()).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparisons::ladder::{SliceResult, TokenFigures};

    fn rung(name: &str, settings: &[(&str, &str)], p50: f64, proxy: Option<f64>) -> Rung {
        let slice = |nth: u32| SliceResult {
            p50_us: Some(p50 + f64::from(nth % 3)),
            tokens: Some(TokenFigures {
                first_p50_us: Some(p50 / 2.0),
                ..TokenFigures::default()
            }),
            client_cpu_us_per_call: Some(p50 / 10.0),
            sidecar_cpu_us_per_call: proxy,
            ..SliceResult::default()
        };
        Rung {
            name: name.to_owned(),
            settings: settings
                .iter()
                .map(|(axis, value)| ((*axis).to_owned(), (*value).to_owned()))
                .collect(),
            slices: (0..30).map(slice).collect(),
            ..Rung::default()
        }
    }

    fn list() -> LadderRecord {
        LadderRecord {
            rungs: vec![
                rung("bare", &[("tls", "off"), ("via", "direct")], 100.0, None),
                rung(
                    "tls server",
                    &[("tls", "server"), ("via", "direct")],
                    102.0,
                    None,
                ),
                rung(
                    "mutual TLS",
                    &[("tls", "mutual"), ("via", "direct")],
                    103.0,
                    None,
                ),
                rung(
                    "through Envoy",
                    &[("tls", "off"), ("via", "envoy")],
                    150.0,
                    Some(40.0),
                ),
                rung(
                    "both",
                    &[("tls", "mutual"), ("via", "envoy")],
                    160.0,
                    Some(44.0),
                ),
            ],
            ..LadderRecord::default()
        }
    }

    fn chain(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn layers_are_named_by_what_they_add() {
        let record = list();
        let found = PriceList::new(&record).layers();
        let names: Vec<Vec<&str>> = found
            .iter()
            .map(|layer| layer.names.iter().map(String::as_str).collect())
            .collect();
        let expected: [&[&str]; 4] = [
            &["tls", "server", "tls server"],
            &["mtls", "mutual", "mutual TLS"],
            &["envoy", "through Envoy"],
            &["both"],
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn layers_add_up() {
        let record = list();
        let list = PriceList::new(&record);
        let found = list
            .predict(&chain(&["tls", "envoy", "mtls", "envoy"]))
            .unwrap();
        let of = |metric| found.iter().find(|cost| cost.metric == metric).unwrap();
        let p50 = of(LadderMetric::P50);
        assert!((p50.estimate - 105.0).abs() < 1e-9, "{p50:?}");
        // The prices are exact here: the width is that of the composition.
        assert!(
            (p50.high - 105.0 * (1.0 + COMPOSITION_TOLERANCE)).abs() < 1e-9,
            "{p50:?}"
        );
        assert!(
            (p50.low - 105.0 * (1.0 - COMPOSITION_TOLERANCE)).abs() < 1e-9,
            "{p50:?}"
        );
        assert!((of(LadderMetric::FirstToken).estimate - 52.5).abs() < 1e-9);
        assert!((of(LadderMetric::SidecarCpu).estimate - 80.0).abs() < 1e-9);
        assert!((of(LadderMetric::ClientCpu).estimate - 10.5).abs() < 1e-9);
        // The server was not watched.
        assert!(
            found
                .iter()
                .all(|cost| cost.metric != LadderMetric::ServerCpu)
        );
        // A single layer was measured as it is.
        let single = list.predict(&chain(&["envoy"])).unwrap();
        assert!((single[0].high - 50.0).abs() < 1e-9, "{single:?}");
    }

    #[test]
    fn unknown_layers_and_short_ladders_are_refused() {
        let mut record = list();
        let unknown = PriceList::new(&record).predict(&chain(&["envoi"]));
        let text = unknown.unwrap_err().to_string();
        assert_eq!(
            text,
            "`envoi` is not a layer of this list: it has tls, mtls, envoy, both"
        );
        record
            .rungs
            .iter_mut()
            .for_each(|rung| rung.slices.truncate(2));
        let short = PriceList::new(&record).predict(&chain(&["tls"]));
        assert_eq!(short.unwrap_err(), PriceError::TooFewRounds);
    }
}
