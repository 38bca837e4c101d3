//! Reads the file of `[rows]`, and checks that there are enough rows.

use super::resolve::DEFAULT_SEED;
use super::{Problems, ResolveContext, Spec};
use crate::formats::quantity::plural;
use crate::plan::{ArrivalModel, CallPlan, LoadPlan};
use crate::rows::template::{RowOrder, Rows, VariationSettings};
use crate::schedule::Schedule;

impl Problems {
    /// Returns the rows of the plan; `None`: there are none, or they can't be read.
    pub fn resolve_rows(&mut self, spec: &Spec, surroundings: &dyn ResolveContext) -> Option<Rows> {
        let Some(rows) = spec.rows.as_ref() else {
            spec.load.recording_key()?;
            return self.recorded_rows(spec, surroundings);
        };
        let Some(path) = &rows.file else {
            self.add("rows.file", "missing: name a CSV or JSON-lines file");
            return None;
        };
        let text = surroundings
            .read(path)
            .map_err(|e| format!("can't read {}: {e}", path.display()));
        let text = self.ok_or_report("rows.file", text)?;
        let rows = Rows::parse(&path.display().to_string(), &text);
        self.ok_or_report("rows.file", rows)
    }

    /// Resolves the settings that determine the values of each call.
    pub fn resolve_variation(&mut self, spec: &Spec, rows: Option<&Rows>) -> VariationSettings {
        let typed = spec.rows.as_ref().and_then(|rows| rows.order.as_deref());
        let order = self.resolve_choice("rows.order", typed, &RowOrder::ALL, RowOrder::name);
        let load = &spec.load;
        let clients = load.clients.or(load.connections).unwrap_or(1);
        let variation = VariationSettings::new(
            spec.seed.unwrap_or(DEFAULT_SEED),
            clients,
            rows.map_or(0, Rows::count),
            order,
        );
        if spec.rows.is_none() && load.recording_key().is_some() {
            variation.with_rows_by_arrival()
        } else {
            variation
        }
    }

    /// Checks that there are enough rows for all calls, including the warm-up's, where each row is used only once.
    pub(super) fn check_row_count(&mut self, call: &CallPlan, load: &LoadPlan, seed: u64) {
        // An arrival may be a user who makes several calls.
        let each = u64::from(call.calls_per_user().unwrap_or(1));
        let Some(variation) = call.variation_settings() else {
            return;
        };
        let rows = variation.row_count();
        let key = "rows.order";
        match variation.row_order() {
            RowOrder::Unique => {}
            RowOrder::Client => {
                let is_journey = call.max_calls_per_journey().is_some();
                match load.arrivals.clients().filter(|_| is_journey) {
                    None => self.add(
                        key,
                        "\"client\" is for journeys of load.clients, each of whom keeps its row: use \"round-robin\", \"random\" or \"unique\"",
                    ),
                    Some(clients) if u64::from(clients) > rows => {
                        let (rows, clients) = (plural(rows, "row"), plural(u64::from(clients), "client"));
                        self.add(
                            key,
                            format!("\"client\" needs one row per client: the file has only {rows} for {clients}"),
                        );
                    }
                    Some(_) => {}
                }
                return;
            }
            RowOrder::RoundRobin | RowOrder::Random => return,
        }
        let enough = match load.arrivals {
            ArrivalModel::Open(_) => {
                let arrivals = Schedule::new(load, seed).share(0, 1);
                let most = usize::try_from(rows).unwrap_or(usize::MAX);
                (arrivals.take(most.saturating_add(1)).count() as u64).saturating_mul(each) <= rows
            }
            ArrivalModel::Closed { .. } => {
                let warms_up = load.stages.iter().any(|stage| stage.warmup);
                match load.calls {
                    Some(calls) if !warms_up => calls <= rows,
                    _ => {
                        self.add(
                            key,
                            "\"unique\" needs a number of calls that is known beforehand: \
                             with clients give load.calls, and no warm-up",
                        );
                        return;
                    }
                }
            }
        };
        if !enough {
            self.add(
                key,
                format!(
                    "\"unique\" needs one row per call, warm-up included: the file has only {}",
                    plural(rows, "row")
                ),
            );
        }
    }
}
