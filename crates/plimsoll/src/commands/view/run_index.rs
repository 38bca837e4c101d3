//! Indexes a folder of runs and renders its pages.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::header::plan_hash;
use plimsoll_model::runs::run::{Run, RunError, RunOverview};
use plimsoll_model::search::SearchRecord;
use plimsoll_report::compare::compare;
use plimsoll_report::history::FolderItem;
use plimsoll_report::html;

use crate::failure::message_with_causes;
use crate::load::documents;
use crate::load::run_folders::{find_measurements, record_file};

/// The index of a folder of runs.
pub(super) struct RunIndex {
    dir: PathBuf,
    /// Cached items by directory, each with the modification time of its record file.
    cache: HashMap<PathBuf, (Option<SystemTime>, Result<FolderItem, String>)>,
}

/// The result of a request, with the HTML page to show.
pub(super) enum PageResult {
    Page(String),
    /// No measurement has this URL.
    Unknown(String),
    /// The run exists, but no page can be rendered from it.
    Failed(String),
}

impl RunIndex {
    pub(super) fn new(dir: &Path) -> RunIndex {
        RunIndex {
            dir: dir.to_owned(),
            cache: HashMap::new(),
        }
    }

    /// Returns the page at `path`; `query` is the raw query string.
    pub(super) fn render_page(&mut self, path: &str, query: &str) -> PageResult {
        let found = find_measurements(&self.dir);
        let by_id = |id: &str| {
            let of = |dir: &&PathBuf| is_same_id(id, &self.url_id(dir));
            found.iter().find(of).cloned()
        };
        match path {
            "/" => PageResult::Page(self.list_page(&found)),
            "/compare" => {
                let side = |name: &str| {
                    let fields = query.split('&').filter_map(|field| field.split_once('='));
                    let mut ids = fields.filter(|(key, _)| *key == name).map(|(_, id)| id);
                    ids.next().and_then(by_id)
                };
                match (side("a"), side("b")) {
                    (Some(a), Some(b)) => page_result(comparison_page(&a, &b)),
                    _ => {
                        PageResult::Failed(message_page("Choose two runs: one as A and one as B."))
                    }
                }
            }
            _ => match path.strip_prefix("/runs/").and_then(by_id) {
                Some(dir) => {
                    page_result(documents::html_page(&[dir], None).map_err(|e| e.to_string()))
                }
                None => PageResult::Unknown(message_page("There is nothing under this name.")),
            },
        }
    }

    fn list_page(&mut self, found: &[PathBuf]) -> String {
        let (items, unreadable) = self.read_items(found);
        html::folder_page(&self.dir.display().to_string(), items, &unreadable)
    }

    /// Returns the folder's measurements, and the directories that can't be read, each with the reason.
    pub(super) fn items(&mut self) -> (Vec<FolderItem>, Vec<(String, String)>) {
        let found = find_measurements(&self.dir);
        self.read_items(&found)
    }

    fn read_items(&mut self, found: &[PathBuf]) -> (Vec<FolderItem>, Vec<(String, String)>) {
        let mut items = Vec::new();
        let mut unreadable = Vec::new();
        for dir in found {
            let id = self.url_id(dir);
            let changed =
                record_file(dir).and_then(|file| fs::metadata(file).ok()?.modified().ok());
            let fresh = |(at, _): &&(Option<SystemTime>, _)| *at == changed && at.is_some();
            let read = match self.cache.get(dir).filter(fresh) {
                Some((_, read)) => read.clone(),
                None => {
                    let read = load_item(id.clone(), dir).map_err(|e| message_with_causes(&e));
                    self.cache.insert(dir.clone(), (changed, read.clone()));
                    read
                }
            };
            match read {
                Ok(item) => items.push(item),
                Err(why) => unreadable.push((id, why)),
            }
        }
        self.cache.retain(|dir, _| found.contains(dir));
        (items, unreadable)
    }

    /// Returns the ID that stands for a directory in URLs: its relative path if that needs no escaping, otherwise a
    /// hash.
    fn url_id(&self, dir: &Path) -> String {
        let inside = dir.strip_prefix(&self.dir).unwrap_or(dir);
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        match inside.to_str() {
            Some(path) if !path.is_empty() && path.chars().all(plain) => path.to_owned(),
            Some("") => "here".to_owned(),
            _ => plan_hash(&inside.to_string_lossy()).replace(':', "-"),
        }
    }
}

/// Compares IDs, one of which comes from a query, in which browsers encode `/` as `%2F`.
fn is_same_id(typed: &str, id: &str) -> bool {
    typed == id || typed.replace("%2F", "/") == id
}

fn page_result(page: Result<String, String>) -> PageResult {
    match page {
        Ok(page) => PageResult::Page(html::with_home_link(&page)),
        Err(why) => PageResult::Failed(message_page(&why)),
    }
}

/// Returns a page with a message.
fn message_page(text: &str) -> String {
    html::with_home_link(&html::message_page(text))
}

fn load_item(id: String, dir: &Path) -> Result<FolderItem, RunError> {
    Ok(match () {
        () if SearchRecord::exists_in(dir) => {
            FolderItem::from_search(id, &SearchRecord::load(dir)?)
        }
        () if LadderRecord::exists_in(dir) => {
            FolderItem::from_ladder(id, &LadderRecord::load(dir)?)
        }
        () if LanesRecord::exists_in(dir) => FolderItem::from_lanes(id, &LanesRecord::load(dir)?),
        () => match RunOverview::load(dir)? {
            Some(run) => FolderItem::from_overview(id, &run),
            None => FolderItem::from_run(id, &Run::load(dir)?),
        },
    })
}

fn comparison_page(a: &Path, b: &Path) -> Result<String, String> {
    if a == b {
        return Err("A and B are the same run: choose two.".to_owned());
    }
    let load = |dir: &Path| Run::load(dir).map_err(|e| message_with_causes(&e));
    let (a, b) = ([load(a)?], [load(b)?]);
    let comparison = compare(&a, &b).ok_or("There is nothing to compare.")?;
    let views = |runs: [Run; 1]| documents::run_views(runs.into()).map_err(|e| e.to_string());
    Ok(html::comparison_page(&comparison, &views(a)?, &views(b)?))
}
