//! The section of the memory that idle connections hold.

use maud::{Markup, html};

use super::RunView;
use super::page::section;
use super::tables;
use crate::sections::memory::{MEMORY_NOTE, describe_open_connections, table};

pub(super) fn memory(views: &[RunView]) -> Markup {
    let known = views.iter();
    let known = known.filter_map(|view| Some((view, view.run.summary.memory.as_ref()?)));
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        return html! {};
    }
    let tables = html! {
        @for (view, memory) in &known {
            @let held = describe_open_connections(memory);
            @let caption = view.with_run_name(&format!("{}: {}", held.name, held.text));
            div.scroll { (tables::table(&caption, &table(memory))) }
        }
    };
    section("Memory a connection", &format!("{MEMORY_NOTE}."), &tables)
}
