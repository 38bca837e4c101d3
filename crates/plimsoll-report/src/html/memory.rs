//! What held connections cost in memory.

use maud::{Markup, html};

use super::View;
use super::page::section;
use crate::memory::{HEAD, NOTE, rows};
use crate::quantity::plural;

pub(super) fn memory(views: &[View]) -> Markup {
    let known: Vec<_> = views
        .iter()
        .filter_map(|view| Some((&view.run.header.name, view.run.summary.memory.as_ref()?)))
        .collect();
    if known.is_empty() {
        return html! {};
    }
    let tables = html! {
        @for (name, memory) in &known {
            div.scroll { table {
                caption { (name) ", " (plural(memory.held.connections, "connection")) }
                thead { tr { @for cell in HEAD { th scope="col" { (cell) } } } }
                tbody { @for [what, rest @ ..] in rows(memory) {
                    tr { th scope="row" { (what) } @for cell in rest { td { (cell) } } }
                } }
            } }
        }
    };
    section("Memory a connection", &format!("{NOTE}."), &tables)
}
