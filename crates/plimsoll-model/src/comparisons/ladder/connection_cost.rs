//! Computes the cost of a new connection with each rung (variant) of a ladder, for a table in reports.

use serde::{Deserialize, Serialize};

use super::{ExtraMeasurement, Rung, SliceResult};
use crate::records::record::TimeHistogram;
use crate::statistics::quantile;
use crate::statistics::rank::median_of_unsorted;

/// A percentile with its 95 % confidence interval, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PercentileEstimate {
    /// The percentile.
    pub us: f64,
    /// The interval's lower end.
    pub low_us: f64,
    /// The interval's upper end.
    pub high_us: f64,
    /// The number of values.
    pub count: u64,
}

impl PercentileEstimate {
    /// Estimates the p99 of `times`; `None`: too few for a p99.
    pub fn p99(times: &TimeHistogram) -> Option<PercentileEstimate> {
        let histogram = times.histogram()?;
        let ns = quantile::quantile(histogram, 0.99)?;
        let (low, high) = quantile::confidence_interval(histogram, 0.99)?;
        Some(PercentileEstimate {
            us: ns as f64 / 1e3,
            low_us: low as f64 / 1e3,
            high_us: high as f64 / 1e3,
            count: histogram.len(),
        })
    }
}

/// The cost of a new connection of a rung: medians over its slices.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionCost {
    /// Whether the connection resumes a session from a ticket.
    pub resumed: bool,
    /// Time until the connection could carry a call, µs.
    pub p50_us: Option<f64>,
    /// The 99th percentile of that time, over all slices together.
    pub p99: Option<PercentileEstimate>,
    /// The client's CPU time, including that of one call, µs.
    pub client_cpu_us: Option<f64>,
    /// The server's CPU time, including that of one call, µs.
    pub server_cpu_us: Option<f64>,
    /// Bytes that TCP carries in both directions for the connection, without the call; `None`: not counted.
    pub bytes: Option<f64>,
}

impl Rung {
    /// Returns the cost of new connections, and of resumed ones where those were measured. The list is empty where
    /// calls share connections and no additional measurement made new ones.
    pub fn connection_costs(&self) -> Vec<ConnectionCost> {
        let Some(handshake) = &self.handshake else {
            return Vec::new();
        };
        let price = |resumed: bool, slices: &[SliceResult]| {
            let part = if resumed {
                ExtraMeasurement::Resumed
            } else {
                ExtraMeasurement::Connections
            };
            let of = |value: fn(&SliceResult) -> Option<f64>| {
                let slices = slices.iter().filter(|slice| !slice.not_resumed);
                median_of_unsorted(slices.filter_map(value).collect())
            };
            ConnectionCost {
                resumed,
                p50_us: of(|slice| slice.connection_p50_us),
                p99: self.connection_p99.get(&part).copied(),
                client_cpu_us: of(|slice| slice.client_cpu_us_per_call),
                server_cpu_us: of(|slice| slice.server_cpu_us_per_call),
                bytes: self
                    .bytes_per_connection_and_call(part)
                    .map(|(connection, _)| connection),
            }
        };
        let costs: Vec<ConnectionCost> = [
            (false, ExtraMeasurement::Connections),
            (true, ExtraMeasurement::Resumed),
        ]
        .into_iter()
        .filter_map(|(resumed, part)| Some(price(resumed, self.parts.get(&part)?)))
        .collect();
        if costs.is_empty() {
            vec![price(handshake.resumed, &self.slices)]
        } else {
            costs
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparisons::ladder::TcpTraffic;
    use crate::crypto_speeds::HandshakeWork;

    fn slice(us: f64) -> SliceResult {
        SliceResult {
            connection_p50_us: Some(us),
            client_cpu_us_per_call: Some(us / 2.0),
            ..SliceResult::default()
        }
    }

    #[test]
    fn rung_prices_use_parts_or_slices() {
        let mut rung = Rung {
            handshake: Some(HandshakeWork {
                group: "X25519".to_owned(),
                certificate: "ecdsa-p256".to_owned(),
                mutual: false,
                resumed: true,
            }),
            slices: vec![slice(100.0)],
            ..Rung::default()
        };
        let [own] = &rung.connection_costs()[..] else {
            panic!("one kind of connection, one price");
        };
        assert_eq!(
            (own.resumed, own.p50_us, own.bytes),
            (true, Some(100.0), None)
        );

        let carried = |bytes, calls| {
            Some(TcpTraffic {
                bytes,
                calls,
                connections: 1,
            })
        };
        rung.slices[0].carried = carried(10_000, 100);
        let mut new = vec![slice(300.0), slice(500.0), slice(400.0)];
        new.iter_mut()
            .for_each(|slice| slice.carried = carried(2_099, 1));
        rung.parts.insert(ExtraMeasurement::Connections, new);
        // A slice in which the server did not resume says nothing about resumed connections.
        let mut resumed = vec![slice(200.0), slice(900.0)];
        resumed[1].not_resumed = true;
        rung.parts.insert(ExtraMeasurement::Resumed, resumed);
        let [new, resumed] = &rung.connection_costs()[..] else {
            panic!("two kinds of connections, two prices");
        };
        assert_eq!((new.p50_us, new.client_cpu_us), (Some(400.0), Some(200.0)));
        // The call is not among the bytes: 99 more calls on the other connection amount to 7,901.
        assert!(new.bytes.is_some_and(|bytes| bytes < 2_099.0), "{new:?}");
        assert_eq!((resumed.p50_us, resumed.bytes), (Some(200.0), None));

        rung.handshake = None;
        assert!(rung.connection_costs().is_empty());
    }

    #[test]
    fn p99_interval_needs_enough_values() {
        let mut times = TimeHistogram::default();
        (1..=300).for_each(|us| times.record(us * 1_000));
        assert_eq!(PercentileEstimate::p99(&times), None);
        (301..=1_000).for_each(|us| times.record(us * 1_000));
        let p99 = PercentileEstimate::p99(&times).expect("a thousand are enough");
        assert!(p99.low_us < p99.us && p99.us < p99.high_us, "{p99:?}");
        assert!((p99.us - 990.0).abs() < 2.0, "{p99:?}");
    }
}
