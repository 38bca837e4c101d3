//! `plimsoll price`: predicts what a chain of layers adds to a call, from a ladder that measured each layer alone.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::comparisons::ladder::composition::{
    COMPOSITION_TOLERANCE, PredictedCost, PriceError, PriceList,
};
use plimsoll_model::comparisons::ladder::{LadderMetric, LadderRecord, Rung};
use plimsoll_model::formats::quantity::signed_time;
use plimsoll_model::formats::units::{Rate, parse_per_second};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::load::documents::JsonFlag;

/// Predict what a chain of layers adds to a call, from the price of each layer.
///
/// The ladder's first rung is the bare link, and each other rung adds one layer to it: TLS, mutual TLS, a proxy. The
/// prices of a chain's layers are added up, for time (p50) and CPU, to a sum with an interval. The interval accounts
/// for the errors of the prices and for known effects that a sum misses. Percentiles above the median do not add up, so
/// none is predicted.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: the prices, measured once
  plimsoll ladder plans/price-list.toml --out prices
Example: what TLS to an Envoy, and mutual TLS from there to another one, adds to each of 2,000 calls/s
  plimsoll price prices --chain tls,envoy,mtls,envoy --rate 2000/s")]
pub(crate) struct PriceArguments {
    /// The directory of the ladder.
    #[arg(value_name = "LADDER")]
    ladder: PathBuf,

    /// The layers from the load to the server, by the names of the ladder's rungs. Without this flag, the layers are
    /// listed.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    chain: Vec<String>,

    /// Calls per second, to predict how many cores client, server and proxies need.
    #[arg(long, value_name = "RATE", value_parser = parse_per_second::<Rate>, requires = "chain")]
    rate: Option<Rate>,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(arguments: &PriceArguments) -> Result<Exit, Failure> {
    let record = LadderRecord::load(&arguments.ladder).map_err(Failure::error)?;
    let list = PriceList::new(&record);
    let names = arguments.chain.iter().map(|name| name.trim().to_owned());
    let chains: Vec<Vec<String>> = if arguments.chain.is_empty() {
        let layers = list.layers().into_iter();
        layers.map(|layer| vec![layer.names[0].clone()]).collect()
    } else {
        vec![names.collect()]
    };
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for chain in &chains {
        let costs = list
            .predict(chain)
            .map_err(|e| price_failure(&e, arguments))?;
        documents.push(prediction_json(&list, chain, &costs, arguments.rate));
        lines.extend(describe_costs(&list, chain, &costs, arguments.rate));
        let unbounded = metrics_without_bounds(&record, &list, chain, &costs);
        lines.extend(unbounded.into_iter().map(|metric| {
            format!(
                "  {:<18} no bounds from so few replicates: measure the ladder for longer",
                metric.name()
            )
        }));
    }
    let whole = json!({ "base": list.base_name(), "predictions": documents });
    arguments.json.print_result(&whole, lines.join("\n"))?;
    Ok(Exit::Done)
}

fn price_failure(error: &PriceError, arguments: &PriceArguments) -> Failure {
    let ladder = arguments.ladder.display();
    match error {
        PriceError::UnknownLayer { .. } => Failure::usage(
            format_args!("--chain: {error}"),
            &format!(
                "measure a ladder with a rung of that layer alone, or see the layers: plimsoll price {ladder}"
            ),
        ),
        PriceError::TooFewRounds => Failure::error_with_help(
            format_args!("{ladder}: {error}"),
            "plimsoll ladder PLAN --resolution 2us measures until differences are resolved",
        ),
    }
}

/// CPU metrics, each with the name of the process that uses the CPU.
const CPU_METRICS: [(LadderMetric, &str); 3] = [
    (LadderMetric::ClientCpu, "client"),
    (LadderMetric::ServerCpu, "server"),
    (LadderMetric::SidecarCpu, "proxies"),
];

/// Returns the metrics that have an estimate but no bounds for a layer of the chain, because there are too few
/// measurements.
fn metrics_without_bounds(
    record: &LadderRecord,
    list: &PriceList,
    chain: &[String],
    costs: &[PredictedCost],
) -> Vec<LadderMetric> {
    let layers = list.layers();
    let used = |rung: &&Rung| {
        let layer = layers.iter().find(|layer| layer.names.contains(&rung.name));
        layer.is_some_and(|layer| chain.iter().any(|name| layer.names.contains(name)))
    };
    let rungs: Vec<&Rung> = record.rungs.iter().skip(1).filter(used).collect();
    let cpu = CPU_METRICS.into_iter().map(|(metric, _)| metric);
    std::iter::once(LadderMetric::P50)
        .chain(cpu)
        .filter(|metric| costs.iter().all(|cost| cost.metric != *metric))
        .filter(|metric| rungs.iter().any(|rung| rung.median(*metric).is_some()))
        .collect()
}

/// Number of cores that one process needs: the estimate and the bounds of its interval.
struct CoreEstimate {
    user: &'static str,
    estimate: f64,
    low: f64,
    high: f64,
}

fn estimate_cores(list: &PriceList, costs: &[PredictedCost], rate: Rate) -> Vec<CoreEstimate> {
    let of = |(metric, user): (LadderMetric, &'static str)| {
        let cost = costs.iter().find(|cost| cost.metric == metric)?;
        let base = match metric {
            LadderMetric::SidecarCpu => 0.0,
            _ => list.base_value(metric)?,
        };
        // CPU time per call in µs times calls per second, divided by 1e6 µs/s, is a number of cores.
        let cores = |added: f64| ((base + added) * rate.0 / 1e6).max(0.0);
        Some(CoreEstimate {
            user,
            estimate: cores(cost.estimate),
            low: cores(cost.low),
            high: cores(cost.high),
        })
    };
    CPU_METRICS.into_iter().filter_map(of).collect()
}

fn describe_costs(
    list: &PriceList,
    chain: &[String],
    costs: &[PredictedCost],
    rate: Option<Rate>,
) -> Vec<String> {
    let how = match chain.len() {
        1 => "measured".to_owned(),
        _ => format!(
            "predicted from {} prices and {:.0} % of their sum for what sums miss",
            chain.len(),
            COMPOSITION_TOLERANCE * 100.0
        ),
    };
    let mut lines = vec![format!(
        "{}, added to {} ({how}):",
        chain.join(" + "),
        list.base_name()
    )];
    for cost in costs {
        lines.push(format!(
            "  {:<18} {} ({} … {})",
            cost.metric.name(),
            signed_time(cost.estimate),
            signed_time(cost.low),
            signed_time(cost.high)
        ));
    }
    if let Some(rate) = rate {
        for CoreEstimate {
            user,
            estimate,
            low,
            high,
        } in estimate_cores(list, costs, rate)
        {
            lines.push(format!(
                "  at {rate}, {user} need {estimate:.2} cores ({low:.2} … {high:.2})"
            ));
        }
    }
    lines
}

fn prediction_json(
    list: &PriceList,
    chain: &[String],
    costs: &[PredictedCost],
    rate: Option<Rate>,
) -> Value {
    let added: Vec<Value> = costs
        .iter()
        .map(|cost| {
            let layers = chain.iter().zip(&cost.layers).map(|(name, price)| {
                json!({ "layer": name, "added": price.shift, "low": price.low, "high": price.high })
            });
            json!({
                "metric": cost.metric.key(),
                "added": cost.estimate,
                "low": cost.low,
                "high": cost.high,
                "layers": layers.collect::<Vec<_>>(),
            })
        })
        .collect();
    let cores: Vec<Value> = rate
        .map_or_else(Vec::new, |rate| estimate_cores(list, costs, rate))
        .iter()
        .map(|need| json!({ "user": need.user, "cores": need.estimate, "low": need.low, "high": need.high }))
        .collect();
    json!({ "chain": chain, "metrics": added, "rate": rate.map(|rate| rate.0), "cores": cores })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_model::comparisons::ladder::SliceResult;

    /// CPU time of the proxy is known of the first three slices alone.
    #[test]
    fn metric_without_bounds_is_named() {
        let rung = |via: &str, p50_us: f64, has_proxy: bool| {
            let slice = |nth: u32| SliceResult {
                p50_us: Some(p50_us + f64::from(nth % 3)),
                sidecar_cpu_us_per_call: (has_proxy && nth < 3).then_some(40.0),
                ..SliceResult::default()
            };
            Rung {
                name: format!("via {via}"),
                settings: [("via".to_owned(), via.to_owned())].into(),
                slices: (0..30).map(slice).collect(),
                ..Rung::default()
            }
        };
        let record = LadderRecord {
            rungs: vec![rung("direct", 100.0, false), rung("nginx", 150.0, true)],
            ..LadderRecord::default()
        };
        let list = PriceList::new(&record);
        let chain = ["nginx".to_owned()];
        let costs = list.predict(&chain).unwrap();
        assert_eq!(costs.len(), 1, "{costs:?}");
        let unbounded = metrics_without_bounds(&record, &list, &chain, &costs);
        assert_eq!(unbounded, [LadderMetric::SidecarCpu]);
    }
}
