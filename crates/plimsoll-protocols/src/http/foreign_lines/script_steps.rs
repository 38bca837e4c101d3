//! Finds what a user of a script does: its requests and pauses in the order of the text, which become the steps of a
//! plan.
//!
//! The script is not run. Conditions, loops, bodies, header fields and computed values are not read, and
//! [`ScriptUser::unread`] names them where they matter for the order and the times of requests.

mod expressions;
mod plan_tables;

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::formats::redaction::QuerySecrets;
use regex::{NoExpand, Regex};

use self::expressions::{
    Constants, add_pauses, find_constants, read_pause, read_request, remove_comment_blocks,
    remove_comments, split_arguments,
};
use self::plan_tables::{load_tables, toml_text};
use crate::interface::foreign::command_lines::LineBuilder;
use crate::journey::PauseSpec;

/// Requests and pauses of k6's JavaScript; the first group is a request's method.
const K6_CALLS: &str =
    r"\bhttp\.(get|post|put|patch|del|head|options|request|asyncRequest|batch)\s*\(|\bsleep\s*\(";

/// Requests and pauses of Locust's Python; the first group is a request's method.
const LOCUST_CALLS: &str =
    r"\.client\.(get|post|put|patch|delete|head|options|request)\s*\(|\bsleep\s*\(";

/// Characters of an expression that a message shows.
const MAX_SHOWN_CHARS: usize = 60;

/// A request of a script.
#[derive(Debug, PartialEq)]
struct ScriptRequest {
    method: String,
    /// The URL, or the path where the script sets the host elsewhere.
    url: String,
    /// The pause before the request.
    pause: Option<PauseSpec>,
    /// The number of the task that the request belongs to.
    task: usize,
}

/// What each user of a script does again and again.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ScriptUser {
    requests: Vec<ScriptRequest>,
    /// The weights of the tasks, of which a user does one at a time.
    weights: Vec<u32>,
    /// The pause between the last request and the first one of the next journey.
    between: Option<PauseSpec>,
    /// Tasks per second of each user, where the script limits them.
    rate_per_user: Option<f64>,
    /// Parts of the script that are not read, in words.
    pub(super) unread: Vec<String>,
}

/// Returns what a user of a k6 script does: what its default function does.
pub(super) fn read_k6_script(script: &str) -> ScriptUser {
    let script = remove_comments(&remove_comment_blocks(script), "//");
    let mut constants = find_constants(
        &script,
        r#"\b(?:const|let|var)\s+(\w+)\s*=\s*(?:__ENV\.\w+\s*(?:\|\||\?\?)\s*)?["'`]([^"'`$]*)["'`]"#,
    );
    let numbers = r"(?m)\bconst\s+(\w+)\s*=\s*(\d+(?:\.\d+)?)\s*;?\s*$";
    constants.extend(find_constants(&script, numbers));
    let body = find_default_function(&script);
    let mut user = ScriptUser {
        weights: vec![1],
        ..ScriptUser::default()
    };
    for pause in user.read_calls(body, K6_CALLS, &constants) {
        user.add_between(pause);
    }
    user.note_control_flow(body, r"\b(?:if|for|while|switch)\s*\(");
    if user.requests.is_empty() && user.unread.is_empty() && body.len() < script.len() {
        let what = "functions that the default function calls";
        user.unread.push(what.to_owned());
    }
    user
}

/// Returns a k6 script with the values of `variables` (`NAME=VALUE`) where it reads them from its environment.
pub(super) fn fill_k6_environment(script: &str, variables: &[String]) -> String {
    let mut filled = script.to_owned();
    for (name, value) in variables.iter().filter_map(|text| text.split_once('=')) {
        let pattern = format!(r"\b__ENV\.{}\b", regex::escape(name));
        if let Ok(pattern) = Regex::new(&pattern)
            && !value.contains(['"', '\\'])
        {
            let literal = format!("\"{value}\"");
            filled = pattern
                .replace_all(&filled, NoExpand(&literal))
                .into_owned();
        }
    }
    filled
}

/// Returns the text from the default function of a k6 script to what is exported next, such as `teardown`; the whole
/// script if it has no default function.
fn find_default_function(script: &str) -> &str {
    let Some(begin) = script.find("export default") else {
        return script;
    };
    let rest = &script[begin..];
    &rest[..rest.find("\nexport ").unwrap_or(rest.len())]
}

/// Returns what a user of a Locust file does: its tasks, and the time between them.
pub(super) fn read_locust_script(script: &str) -> ScriptUser {
    let script = remove_comments(script, "#");
    let mut constants = find_constants(
        &script,
        r#"(?m)^\s*(\w+)\s*=\s*(?:os\.(?:getenv|environ\.get)\(\s*["']\w+["']\s*,\s*)?["']([^"'{]*)["']"#,
    );
    let numbers = r"(?m)^([A-Z][A-Z0-9_]*)\s*=\s*(\d+(?:\.\d+)?)\s*$";
    constants.extend(find_constants(&script, numbers));
    let mut user = ScriptUser::default();
    if script.contains("def on_start") {
        user.unread.push("on_start".to_owned());
    }
    if script.contains("(SequentialTaskSet)") {
        let what = "the order of a SequentialTaskSet";
        user.unread.push(what.to_owned());
    }
    let tasks = split_tasks(&script);
    let is_only = tasks.len() == 1;
    for (weight, text) in tasks {
        user.weights.push(weight);
        for pause in user.read_calls(text, LOCUST_CALLS, &constants) {
            if is_only {
                user.add_between(pause);
            } else {
                let what = format!("a pause of {pause} at an end of a task");
                user.unread.push(what);
            }
        }
        user.note_control_flow(text, r"(?m)^\s+(?:if|for|while)\b");
    }
    user.read_wait_time(&script, &constants);
    user
}

/// Returns the weights and the texts of the tasks; the whole script with the weight 1 if it has no task of its own.
fn split_tasks(script: &str) -> Vec<(u32, &str)> {
    let Ok(decorator) = Regex::new(r"@task\b(?:\(\s*(\d+)\s*\))?") else {
        return Vec::new();
    };
    let mut marks = Vec::new();
    for found in decorator.captures_iter(script) {
        let weight = found.get(1).and_then(|text| text.as_str().parse().ok());
        let end = found.get(0).map_or(0, |whole| whole.end());
        marks.push((weight.unwrap_or(1), end));
    }
    if marks.is_empty() {
        return vec![(1, script)];
    }
    let tasks = marks.iter().enumerate().map(|(index, (weight, begin))| {
        let text = &script[*begin..];
        let next = marks
            .get(index + 1)
            .map_or(text.len(), |(_, end)| end - begin);
        // A function without a decorator ends the task, too.
        let other = text.match_indices("def ").nth(1);
        let end = other.map_or(next, |(at, _)| at.min(next));
        (*weight, &text[..end])
    });
    tasks.collect()
}

impl ScriptUser {
    /// Reads the requests and pauses of a task, whose weight is the last one. Returns the pauses before its first request
    /// and after its last one.
    fn read_calls(&mut self, text: &str, calls: &str, constants: &Constants) -> Vec<PauseSpec> {
        let Ok(calls) = Regex::new(calls) else {
            return Vec::new();
        };
        let task = self.weights.len().saturating_sub(1);
        let mut outer = Vec::new();
        let mut is_first = true;
        let mut pause = None;
        for found in calls.captures_iter(text) {
            let end = found.get(0).map_or(0, |whole| whole.end());
            let arguments = split_arguments(&text[end..]);
            let Some(method) = found.get(1) else {
                self.add_pause(&mut pause, &arguments.join(", "), constants);
                continue;
            };
            let Some((method, url)) = read_request(method.as_str(), &arguments, constants) else {
                let what = arguments.first().copied().unwrap_or_default();
                let what: String = what.chars().take(MAX_SHOWN_CHARS).collect();
                self.unread.push(format!("the request `{what}`"));
                continue;
            };
            if is_first {
                outer.extend(pause.take());
            }
            is_first = false;
            self.requests.push(ScriptRequest {
                method,
                url,
                pause: pause.take(),
                task,
            });
        }
        outer.extend(pause);
        outer
    }

    /// Adds a pause in the script to the pause before the next request.
    fn add_pause(&mut self, pause: &mut Option<PauseSpec>, text: &str, constants: &Constants) {
        let added = read_pause(text, constants).and_then(|next| add_pauses(*pause, next));
        match added {
            Some(sum) => *pause = Some(sum),
            None => self.unread.push(format!("the pause `{text}`")),
        }
    }

    fn add_between(&mut self, pause: PauseSpec) {
        match add_pauses(self.between, pause) {
            Some(sum) => self.between = Some(sum),
            None => self.unread.push(format!("the pause of {pause}")),
        }
    }

    fn note_control_flow(&mut self, text: &str, pattern: &str) {
        let what = "conditions and loops".to_owned();
        let has_any = Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text));
        if has_any && !self.unread.contains(&what) {
            self.unread.push(what);
        }
    }

    /// Reads the time between two tasks of a Locust user.
    fn read_wait_time(&mut self, script: &str, constants: &Constants) {
        let found = Regex::new(r"\bwait_time\s*=\s*(?:\w+\.)*(\w+\()").ok();
        let found = found.and_then(|pattern| Some(pattern.captures(script)?.get(1)?.start()));
        let Some(begin) = found else {
            if script.contains("wait_time") {
                self.unread.push("wait_time".to_owned());
            }
            return;
        };
        let text = &script[begin..];
        let name = text.split('(').next().unwrap_or_default();
        let arguments = split_arguments(&text[name.len() + 1..]);
        let number = arguments
            .first()
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|number| *number > 0.0);
        match (name, number) {
            ("constant_pacing", Some(seconds)) => self.rate_per_user = Some(1.0 / seconds),
            ("constant_throughput", Some(rate)) => self.rate_per_user = Some(rate),
            _ => {
                let call = format!("{name}({})", arguments.join(", "));
                match read_pause(&call, constants) {
                    Some(pause) => self.add_between(pause),
                    None => self.unread.push(format!("wait_time = {call}")),
                }
            }
        }
    }

    /// Returns the pause between two journeys as a load has it, one length for all. The flag says whether it is the mean
    /// of random pauses.
    pub(super) fn think(&self) -> Option<(Duration, bool)> {
        match self.between? {
            PauseSpec::Fixed(pause) => Some((pause, false)),
            PauseSpec::Uniform(low, high) => Some(((low + high) / 2, true)),
            PauseSpec::Exponential(mean) => Some((mean, true)),
        }
    }

    /// Returns the tasks per second of all users together, where the script limits them.
    pub(super) fn rate(&self, users: u64) -> Option<f64> {
        let rate = self.rate_per_user? * users as f64;
        Some((rate * 1e3).round() / 1e3)
    }

    /// Returns the URL of the first request; `None` if there is none, or the script sets its host elsewhere.
    pub(super) fn first_url(&self) -> Option<String> {
        let url = &self.requests.first()?.url;
        url.contains("://").then(|| url.clone())
    }

    /// Returns what the error about the script adds: what its pauses and requests became in `line`, and what is not read.
    pub(super) fn describe(&self, line: &LineBuilder) -> String {
        let has_think = line.our_flags.iter().any(|word| word == "--think");
        let mut text = String::new();
        if self.rate_per_user.is_some() {
            text += "; the pacing of its users is a rate, which a slow server does not lower";
        } else if has_think && self.think().is_some_and(|(_, is_mean)| is_mean) {
            text += "; the random pauses between its journeys have their mean";
        }
        if line.plan.is_some() {
            text += "; the plan above has its requests, with the pauses between them";
        }
        if !self.unread.is_empty() {
            text += "; not read: ";
            text += &self.unread.join(", ").replace('\n', " ");
        }
        text
    }

    /// Returns the plan with these requests as TOML; `None` if there is at most one. `host`: the target of paths.
    /// `load`: flags of Plimsoll that say what the load is.
    pub(super) fn to_plan(&self, host: Option<&str>, load: &[String]) -> Option<String> {
        let [first, _, ..] = &self.requests[..] else {
            return None;
        };
        let target = match split_origin(&first.url).0 {
            "" => host?.trim_end_matches('/'),
            origin => origin,
        };
        let mut plan = String::from(
            "# Made of a script, whose header fields, bodies, checks and values of answers are not read.\n",
        );
        for what in &self.unread {
            let _infallible = writeln!(plan, "# Not read: {}", what.replace('\n', " "));
        }
        let _infallible = writeln!(plan, "target = {}", toml_text(target));
        let (mut names, mut secrets) = (Vec::new(), QuerySecrets::default());
        for (index, request) in self.requests.iter().enumerate() {
            let is_begin = index == 0 || self.requests[index - 1].task != request.task;
            let weight = self.weights.get(request.task).copied().unwrap_or(1);
            let branch = (self.weights.len() > 1)
                .then_some(weight)
                .filter(|_| is_begin);
            request.write_step(&mut plan, target, branch, (&mut names, &mut secrets));
            if self.weights.len() > 1 {
                let _infallible = writeln!(plan, "branch = \"task {}\"", request.task + 1);
            }
        }
        Some(plan + &load_tables(load))
    }
}

impl ScriptRequest {
    /// Writes the step. `weight`: that of the branch which begins with the step. `names`, `secrets`: those of earlier
    /// steps.
    fn write_step(
        &self,
        plan: &mut String,
        target: &str,
        weight: Option<u32>,
        (names, secrets): (&mut Vec<String>, &mut QuerySecrets),
    ) {
        let (origin, path) = split_origin(&self.url);
        let path = match path {
            path if path.starts_with('/') => path.to_owned(),
            path => format!("/{path}"),
        };
        // A `$NAME` of the script is text, not a variable.
        let path = secrets.replace_secrets(&path.replace("=$", "=%24"));
        let plain = format!("{} {path}", self.method);
        let same = names.iter().filter(|name| **name == plain).count();
        let mut lines = vec!["\n[[steps]]".to_owned()];
        if same > 0 {
            lines.push(format!(
                "name = {}",
                toml_text(&format!("{plain} {}", same + 1))
            ));
        }
        names.push(plain);
        if !origin.is_empty() && origin != target {
            lines.push(format!("target = {}", toml_text(origin)));
        }
        if self.method != "GET" {
            lines.push(format!("method = {}", toml_text(&self.method)));
        }
        lines.push(format!("path = {}", toml_text(&path)));
        lines.extend(self.pause.map(|pause| format!("pause = \"{pause}\"")));
        lines.extend(weight.map(|weight| format!("weight = {weight}")));
        plan.push_str(&(lines.join("\n") + "\n"));
    }
}

/// Splits a URL into its origin and the rest; the origin is empty if the URL has no scheme.
fn split_origin(url: &str) -> (&str, &str) {
    let Some(scheme) = url.find("://") else {
        return ("", url);
    };
    let host = scheme + 3;
    let end = url[host..]
        .find(['/', '?'])
        .map_or(url.len(), |at| host + at);
    url.split_at(end)
}

#[cfg(test)]
mod tests;
