//! Values of fields in one call, computed from the seed and the call's number.
//!
//! No generator state is advanced: the values of a call are the same in any order and on any shard.

use super::RowOrder;
use super::trace_context::TraceIds;
use crate::rows::mixing::{GOLDEN_GAMMA, mix};

/// The slot number for the random choice of rows. Each random value of a call has its own slot number, which makes the
/// values independent.
const ROW_SLOT: u32 = u32::MAX;

/// The settings from which the values of all calls of a run are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariationSettings {
    /// A number mixed from the plan's seed.
    seed: u64,
    clients: u64,
    /// Number of consecutive calls of a client.
    in_a_row: u64,
    rows: u64,
    order: RowOrder,
    /// Whether rows belong to arrivals, each of which may make several calls.
    uses_rows_by_arrival: bool,
    traces: TraceIds,
}

/// The message of a call for which values of fields are computed.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    variation: &'a VariationSettings,
    /// The call's number, from 0.
    pub number: u64,
    /// The message's number in its stream, from 0.
    pub message: u32,
    /// The time, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The values that the same journey captured from earlier answers; `None`: not captured yet.
    pub captured: &'a [Option<Box<[u8]>>],
}

impl VariationSettings {
    /// Creates the settings. Calls are assigned to the `clients` in turn; `rows` is the number of rows.
    pub fn new(seed: u64, clients: u32, rows: usize, order: RowOrder) -> VariationSettings {
        VariationSettings {
            seed: mix(seed.wrapping_add(GOLDEN_GAMMA)),
            clients: u64::from(clients.max(1)),
            in_a_row: 1,
            rows: rows.max(1) as u64,
            order,
            uses_rows_by_arrival: false,
            // Placeholders that are used before a run: every load, and every request sent before it, sets its own ids.
            traces: TraceIds::new(mix(seed), seed),
        }
    }

    /// Sets the trace ids of calls.
    #[must_use]
    pub fn with_trace_ids(self, traces: TraceIds) -> VariationSettings {
        VariationSettings { traces, ..self }
    }

    /// Returns whether all calls of an arrival use the same row.
    pub fn uses_rows_by_arrival(&self) -> bool {
        self.uses_rows_by_arrival
    }

    pub(super) fn trace_ids(&self) -> TraceIds {
        self.traces
    }

    /// Assigns row k to arrival k, so that all calls of the arrival use this row.
    #[must_use]
    pub fn with_rows_by_arrival(self) -> VariationSettings {
        VariationSettings {
            uses_rows_by_arrival: true,
            ..self
        }
    }

    /// Assigns `calls` consecutive calls to each client, such as the queries of a session.
    #[must_use]
    pub fn with_calls_per_client(mut self, calls: u32) -> VariationSettings {
        self.in_a_row = u64::from(calls.max(1));
        self
    }

    /// Returns the order of the rows.
    pub fn row_order(&self) -> RowOrder {
        self.order
    }

    /// Returns the number of rows; 1 where there are none.
    pub fn row_count(&self) -> u64 {
        self.rows
    }

    /// Returns the context of one message. [`RenderContext`] describes the arguments.
    #[inline]
    pub fn render_context(&self, number: u64, message: u32, unix_ns: u64) -> RenderContext<'_> {
        RenderContext {
            variation: self,
            number,
            message,
            unix_ns,
            captured: &[],
        }
    }
}

impl<'a> RenderContext<'a> {
    /// Sets the values that the same journey captured from earlier answers.
    #[must_use]
    pub fn with_captured_values(self, taken: &'a [Option<Box<[u8]>>]) -> RenderContext<'a> {
        RenderContext {
            captured: taken,
            ..self
        }
    }

    /// Returns the captured value with this index; `None`: it has not been captured.
    pub fn captured_value(&self, index: u16) -> Option<&'a [u8]> {
        self.captured.get(usize::from(index))?.as_deref()
    }
}

impl RenderContext<'_> {
    #[inline]
    fn random_bits(&self, slot: u32, half: u64) -> u64 {
        let call = mix(self
            .variation
            .seed
            .wrapping_add(self.number.wrapping_mul(GOLDEN_GAMMA)));
        let place = u64::from(slot) << 33 | u64::from(self.message) << 1 | half;
        mix(call ^ place.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA))
    }

    /// Returns a uniformly distributed number from `low` to `high`, both included.
    #[inline]
    pub(super) fn random_between(&self, slot: u32, low: i64, high: i64) -> i64 {
        // The bias of reducing 64 random bits to the range is negligible.
        let span = u128::from(high.abs_diff(low)) + 1;
        let offset = (u128::from(self.random_bits(slot, 0)) * span) >> 64;
        low.wrapping_add_unsigned(offset as u64)
    }

    /// Returns a version 4 UUID (RFC 9562 §5.4).
    #[inline]
    pub(super) fn uuid(&self, slot: u32) -> [u8; 16] {
        let high = self.random_bits(slot, 0) & !0xf000 | 0x4000;
        let low = self.random_bits(slot, 1) & !(3 << 62) | 2 << 62;
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    #[inline]
    pub(super) fn traceparent(&self) -> [u8; TraceIds::TRACEPARENT_LENGTH] {
        self.variation.traces.traceparent(self.number)
    }

    /// Formats the time according to RFC 3339, in UTC.
    pub fn format_rfc3339(&self) -> String {
        let time = jiff::Timestamp::from_nanosecond(i128::from(self.unix_ns));
        time.unwrap_or_default().to_string()
    }

    /// Returns the number of the call's client, from 0.
    #[inline]
    pub fn client_number(&self) -> u64 {
        self.number / self.variation.in_a_row % self.variation.clients
    }

    /// Returns the index of the call's row, which is the same for all messages of the call.
    #[inline]
    pub fn row_index(&self) -> usize {
        let rows = self.variation.rows;
        let row = match self.variation.order {
            RowOrder::Client => self.client_number() % rows,
            // When the plan was resolved, it was checked that there are enough unique rows.
            RowOrder::RoundRobin | RowOrder::Unique if self.variation.uses_rows_by_arrival => {
                self.number / self.variation.in_a_row % rows
            }
            RowOrder::RoundRobin | RowOrder::Unique => self.number % rows,
            RowOrder::Random => {
                let number = if self.variation.uses_rows_by_arrival {
                    self.number / self.variation.in_a_row
                } else {
                    self.number
                };
                let first = RenderContext {
                    number,
                    message: 0,
                    ..*self
                };
                ((u128::from(first.random_bits(ROW_SLOT, 0)) * u128::from(rows)) >> 64) as u64
            }
        };
        row as usize
    }
}
