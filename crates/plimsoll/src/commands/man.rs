//! `plimsoll man`: writes manual pages from the same definitions as `--help`.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use plimsoll_model::formats::output;

use crate::failure::{Exit, Failure};
use crate::screen::console;

/// Write the manual pages, one file per command, as packages install them.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: all pages, and that of `plimsoll grpc` on the screen\n  \
    plimsoll man pages\n  \
    man -l pages/plimsoll-grpc.1"
)]
pub(crate) struct ManArguments {
    /// The folder for the pages; created if it is missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn execute(arguments: &ManArguments) -> Result<Exit, Failure> {
    let mut command = super::command().disable_help_subcommand(true);
    command.build();
    let dir = &arguments.dir;
    let mut pages = Vec::new();
    collect_pages(&command, None, &mut pages)
        .and_then(|()| {
            fs::create_dir_all(dir)?;
            let mut files = pages.iter();
            files.try_for_each(|(name, text)| output::write(&dir.join(format!("{name}.1")), text))
        })
        .map_err(|e| {
            let problem = format!("can't write the pages to {}: {e}", dir.display());
            Failure::error_with_help(problem, "give a folder that this user may write to")
        })?;
    console::print_result(format_args!("{}: {} pages\n", dir.display(), pages.len()))?;
    Ok(Exit::Done)
}

/// Appends the pages of a command and of its visible subcommands, by name.
fn collect_pages(
    command: &Command,
    above: Option<&str>,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    let name = display_name(command);
    pages.push((name.clone(), render_page(command, above)?));
    let mut visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    visible.try_for_each(|sub| collect_pages(sub, Some(&name), pages))
}

fn display_name(command: &Command) -> String {
    let name = command.get_display_name().unwrap_or(command.get_name());
    name.to_owned()
}

/// Renders the page of a command. `above` is the name of its parent command.
fn render_page(command: &Command, above: Option<&str>) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    // Write no date, so that builds are reproducible.
    let title = display_name(command).to_uppercase();
    let source = concat!("plimsoll ", env!("CARGO_PKG_VERSION"));
    writeln!(page, ".TH \"{title}\" 1 \"\" \"{source}\" Plimsoll")?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    if let Some(examples) = command.get_before_help() {
        self::examples(&examples.to_string()).to_writer(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(more) = command.get_after_help() {
        notes_sections(&more.to_string()).to_writer(&mut page)?;
    }
    if let Some(above) = above {
        let mut see = Roff::new();
        see.control("SH", ["SEE ALSO"]);
        see.text([bold(above), roman("(1)")]);
        see.to_writer(&mut page)?;
    }
    Ok(page)
}

/// Returns the synopsis: the short usage line from the help, not clap's list of dozens of flags in brackets.
fn synopsis(command: &Command) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines();
    for (number, line) in lines.map(str::trim).enumerate() {
        if number > 0 {
            section.control("br", []);
        }
        section.text([roman(line)]);
    }
    section
}

/// Returns the examples section; each example is a line `Example: purpose` and the lines to type.
fn examples(text: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]);
    let examples = text.split("Example: ").filter(|part| !part.is_empty());
    for (number, example) in examples.enumerate() {
        let (purpose, lines) = example.split_once('\n').unwrap_or((example, ""));
        if number > 0 {
            section.control("PP", []);
        }
        section.text([roman(format!("{}:", capitalised(purpose)))]);
        add_verbatim(&mut section, lines);
    }
    section
}

/// Returns the text that follows the flags in the help, under the usual headings of manual pages.
fn notes_sections(text: &str) -> Roff {
    let mut sections = Roff::new();
    for part in text.split("\n\n") {
        let headings = [
            ("Environment: ", "ENVIRONMENT"),
            ("Exit codes: ", "EXIT STATUS"),
        ];
        let known = headings
            .iter()
            .find_map(|(begin, heading)| Some((part.strip_prefix(begin)?, *heading)));
        let (part, heading) = known.unwrap_or((part, "NOTES"));
        sections.control("SH", [heading]);
        add_verbatim(&mut sections, &capitalised(part));
    }
    sections
}

/// Adds lines without roff's filling (joining and breaking of lines), so that columns and commands stay intact.
fn add_verbatim(section: &mut Roff, lines: &str) {
    section.control("nf", []);
    for line in lines.lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []);
}

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(rest).collect()
}
