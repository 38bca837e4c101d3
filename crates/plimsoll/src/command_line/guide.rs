//! `plimsoll` without arguments on a terminal: asks for a service and a load, and builds the command line for them.
//!
//! The command line is printed before anything runs, and is then parsed as if it had been typed, so the guide can't do
//! more than a command line can. The protocols detect the services at an address and their calls ([`registry`]).

use std::cmp::Reverse;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use plimsoll_model::formats::units::{Period, Rate};
use plimsoll_protocols::registry::{
    COMMAND_ENTRIES, OfferDetail, OfferedCall, QueryContext, ServiceOffer,
};

use crate::command_line::quoting::quote_for_shell;
use crate::load::planning;
use crate::screen::console;
use crate::settings::environment::Environment;

/// Maximum number of calls to list. The user can choose other calls by name.
const MAX_LISTED_CALLS: usize = 20;

const DEFAULT_USERS: &str = "10";
const DEFAULT_DURATION: &str = "10s";
const DEFAULT_PLAN_FILE: &str = "plan.toml";

/// The result of the guide's questions.
pub(crate) enum GuideResult {
    /// The words of a command line, with the program's name.
    Line(Vec<OsString>),
    /// The user asked for the help text.
    Help,
    /// The user has quit.
    Leave,
}

/// The end of standard input in place of an answer, or the answer that quits the guide.
struct EndOfInput;

/// Returns whether the command line has no arguments, and standard input, output and error are terminals.
pub(crate) fn can_start(typed: &[OsString]) -> bool {
    let [input, out, messages] = [
        io::stdin().is_terminal(),
        io::stdout().is_terminal(),
        io::stderr().is_terminal(),
    ];
    typed.len() == 1 && input && out && messages
}

/// Asks for the service, the call and the load.
pub(crate) fn run_guide(program: OsString, environment: &Environment) -> GuideResult {
    match ask_questions(environment) {
        Ok(Some(words)) => {
            let words = words.into_iter().map(OsString::from);
            GuideResult::Line(std::iter::once(program).chain(words).collect())
        }
        Ok(None) => GuideResult::Help,
        Err(EndOfInput) => {
            eprintln!();
            GuideResult::Leave
        }
    }
}

/// Asks the user all questions, and returns the words of the command line without the program's name; `None` if the
/// user enters no address.
fn ask_questions(environment: &Environment) -> Result<Option<Vec<String>>, EndOfInput> {
    console::print_notice("What is to be loaded? (`plimsoll --help` lists everything else.)");
    let offers = loop {
        let address = ask_line("Address, a URL or HOST:PORT (Enter: help): ")?;
        if address.is_empty() {
            return Ok(None);
        }
        console::print_notice(format_args!("asking {address} ..."));
        let offers = find_services(&address, environment);
        if !offers.is_empty() {
            break offers;
        }
        console::print_notice(
            "Nothing answers there that describes itself, or without flags such as --ca. Is it running, and is this \
             its address?",
        );
    };
    let (command, call) = ask_for_call(&offers)?;
    let mut words = vec![command.to_owned()];
    words.extend(call.words.iter().cloned());
    if let Some(content) = &call.content {
        let text = ask_line(&format!("Message, as JSON [{}]: ", content.blank))?;
        let text = if text.is_empty() {
            content.blank.clone()
        } else {
            text
        };
        words.extend([content.flag.to_owned(), text]);
    }
    words.extend(ask_for_load()?);
    console::print_notice(format_args!("This line says it:\n  plimsoll {}", {
        let line: Vec<OsString> = words.iter().map(OsString::from).collect();
        quote_for_shell(&line)
    }));
    let next = ask_until_valid("Enter: run it, p: write a plan, q: leave: ", |text| {
        matches!(text, "" | "p" | "q").then(|| text.to_owned())
    })?;
    match next.as_str() {
        "q" => return Err(EndOfInput),
        "p" => {
            let file = ask_line(&format!("File [{DEFAULT_PLAN_FILE}]: "))?;
            let file = if file.is_empty() {
                DEFAULT_PLAN_FILE.to_owned()
            } else {
                file
            };
            words.extend(["--save-plan".to_owned(), file, "--dry-run".to_owned()]);
        }
        _ => {}
    }
    Ok(Some(words))
}

/// Returns the services found at `address`, each with its command, the most detailed descriptions first. If any service
/// describes its calls, services of which only the protocol is known are left out.
fn find_services(address: &str, environment: &Environment) -> Vec<(&'static str, ServiceOffer)> {
    let mut offers = all_services_at(address, environment);
    offers.sort_by_key(|(_, offer)| Reverse(offer.detail));
    if offers
        .first()
        .is_some_and(|(_, best)| best.detail > OfferDetail::Protocol)
    {
        offers.retain(|(_, offer)| offer.detail > OfferDetail::Protocol);
    }
    offers
}

fn all_services_at(address: &str, environment: &Environment) -> Vec<(&'static str, ServiceOffer)> {
    planning::with_resolve_context(environment, |surroundings| {
        let context = QueryContext {
            surroundings,
            notice: &|_| (),
        };
        let offers = COMMAND_ENTRIES.iter().filter_map(|entry| {
            let offer = entry.probe(address, context)?;
            Some((entry.name, offer))
        });
        offers.collect()
    })
}

/// Lists the calls of all services, and returns the call that the user chooses, with its command.
fn ask_for_call<'a>(
    offers: &'a [(&'static str, ServiceOffer)],
) -> Result<(&'static str, &'a OfferedCall), EndOfInput> {
    let mut calls = Vec::new();
    for (command, offer) in offers {
        console::print_notice(format_args!("{}:", capitalised(&offer.service)));
        for call in &offer.calls {
            calls.push((*command, call));
            if calls.len() <= MAX_LISTED_CALLS {
                console::print_notice(format_args!("  {}  {}", calls.len(), call.name));
            }
        }
    }
    if calls.len() > MAX_LISTED_CALLS {
        let more = calls.len() - MAX_LISTED_CALLS;
        console::print_notice(format_args!("  and {more} more, which you can name"));
    }
    if calls.len() == 1 {
        return Ok(calls[0]);
    }
    ask_until_valid("Which one, a number or a name [1]: ", |text| match text {
        "" => calls.first().copied(),
        text => match text.parse::<usize>() {
            Ok(number) => calls.get(number.checked_sub(1)?).copied(),
            Err(_) => calls.iter().find(|(_, call)| call.name == text).copied(),
        },
    })
}

/// Asks for the load, and returns the flags that set it.
fn ask_for_load() -> Result<Vec<String>, EndOfInput> {
    let question =
        format!("How much, users at once or calls a second such as 100/s [{DEFAULT_USERS}]: ");
    let [flag, amount] = ask_until_valid(&question, |text| {
        let text = if text.is_empty() { DEFAULT_USERS } else { text };
        let flag = match (text.parse::<u32>(), text.parse::<Rate>()) {
            (Ok(1..), _) => "--clients",
            (_, Ok(rate)) if rate.0 > 0.0 => "--rate",
            _ => return None,
        };
        Some([flag.to_owned(), text.to_owned()])
    })?;
    let question = format!("How long [{DEFAULT_DURATION}]: ");
    let duration = ask_until_valid(&question, |text| {
        let text = if text.is_empty() {
            DEFAULT_DURATION
        } else {
            text
        };
        let is_time = text
            .parse::<Period>()
            .is_ok_and(|period| !period.0.is_zero());
        is_time.then(|| text.to_owned())
    })?;
    Ok(vec![flag, amount, "--duration".to_owned(), duration])
}

/// Repeats the question until `read` accepts the answer.
fn ask_until_valid<T>(question: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, EndOfInput> {
    loop {
        let text = ask_line(question)?;
        if let Some(value) = read(&text) {
            return Ok(value);
        }
        console::print_notice(format_args!("`{text}` is none of these."));
    }
}

/// Prints a question, and returns the answer without surrounding whitespace.
fn ask_line(question: &str) -> Result<String, EndOfInput> {
    let mut messages = io::stderr().lock();
    let _ = write!(messages, "{question}").and_then(|()| messages.flush());
    drop(messages);
    let mut line = String::new();
    match io::stdin().read_line(&mut line) {
        Ok(1..) => Ok(line.trim().to_owned()),
        _ => Err(EndOfInput),
    }
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters).collect()
}
