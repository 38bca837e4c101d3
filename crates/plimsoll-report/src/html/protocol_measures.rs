//! The sections of streams and sessions, which have figures in addition to those of calls.

use maud::{Markup, html};
use plimsoll_model::TimeMeasure;

use super::RunView;
use super::page::section;
use super::tables::{facts_table, merged_times, times_table};
use crate::sections::protocol_measures::{
    EARLY_DATA_LABEL, LINK_BYTES_LABEL, STREAMS_NOTE, arriving_callers, describe_distribution,
    protocol_facts, protocol_times, query_callers_name,
};

/// Returns the section about the messages of streams.
pub(super) fn streams_section(views: &[RunView]) -> Markup {
    let rows = merged_times(views, |total| {
        let messages = total.messages;
        [
            ("first message", messages.and_then(|m| m.first_message)),
            ("inter-message", messages.and_then(|m| m.inter_message)),
            ("whole stream", total.service.filter(|_| messages.is_some())),
        ]
    });
    if rows.is_empty() {
        return html! {};
    }
    let lead = format!(
        "First message: from the actual send to the first message from the server; inter-message: from one to the next; {STREAMS_NOTE}."
    );
    section("Streams", &lead, &times_table("", &rows))
}

/// Returns the sections about tokens, the times of sessions, and early data.
pub(super) fn protocol_sections(views: &[RunView]) -> Markup {
    let mut facts_shown = Vec::new();
    let mut rows = Vec::new();
    for view in views {
        let own = protocol_facts(&view.run)
            .into_iter()
            .chain(describe_distribution(&view.run));
        facts_shown.extend(own.map(|fact| (view.with_run_name(fact.name), fact)));
        if let Some(measures) = &view.run.summary.total.measures {
            let own = protocol_times(measures).into_iter();
            rows.extend(own.map(|(what, t)| (view.with_run_name(&what), t)));
        }
    }
    if facts_shown.is_empty() {
        return html! {};
    }
    let arrived = |name: &str| {
        facts_shown.iter().any(|(_, fact)| fact.name == name)
            || views.iter().any(|view| {
                arriving_callers(&view.run).is_some_and(|callers| callers.name() == name)
            })
    };
    let are_all = |name: &str| facts_shown.iter().all(|(_, fact)| fact.name == name);
    let (heading, lead) = if arrived(query_callers_name()) {
        (capitalise(query_callers_name()), TOKEN_TIMES_NOTE)
    } else if arrived(USERS) {
        let note = if has_times(views, TimeMeasure::is_about_tokens) {
            TOKEN_TIMES_NOTE
        } else if has_times(views, |measure| measure == TimeMeasure::Journey) {
            JOURNEY_TIMES_NOTE
        } else {
            ""
        };
        (capitalise(USERS), note)
    } else if !rows.is_empty() {
        ("Tokens".to_owned(), TOKEN_TIMES_NOTE)
    } else if are_all(LINK_BYTES_LABEL) {
        (
            "Bytes".to_owned(),
            "What TCP carried, handshakes and framing included.",
        )
    } else if are_all(EARLY_DATA_LABEL) {
        (
            "Early data".to_owned(),
            "Requests sent with the first bytes of a resumed TLS session.",
        )
    } else {
        ("Also counted".to_owned(), "")
    };
    let content = html! {
        (facts_table(&facts_shown))
        @if !rows.is_empty() { (times_table("", &rows)) }
    };
    section(&heading, lead, &content)
}

/// The name of users who make several calls each.
const USERS: &str = "users";

/// Returns whether a run has times of a measure for which `is_wanted` returns true.
fn has_times(views: &[RunView], is_wanted: impl Fn(TimeMeasure) -> bool) -> bool {
    views.iter().any(|view| {
        let measures = view.run.summary.total.measures.as_ref();
        measures.is_some_and(|measures| {
            TimeMeasure::all()
                .any(|measure| is_wanted(measure) && measures.times.contains_key(measure.key()))
        })
    })
}

const JOURNEY_TIMES_NOTE: &str =
    "Journey: from a user's arrival to the end of the last step, of journeys that succeeded.";

const TOKEN_TIMES_NOTE: &str = "First token: from the query's send; token gap: from one token to the next; time per token: the query's time after its first token, over the tokens after it.";

fn capitalise(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_uppercase() + rest
}
