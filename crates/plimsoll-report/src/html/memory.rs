//! What held connections cost in memory.

use maud::{Markup, html};

use super::View;
use super::page::section;
use super::tables;
use crate::memory::{NOTE, table};
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
            @let caption = format!("{name}, {}", plural(memory.held.connections, "connection"));
            div.scroll { (tables::table(&caption, &table(memory))) }
        }
    };
    section("Memory a connection", &format!("{NOTE}."), &tables)
}
