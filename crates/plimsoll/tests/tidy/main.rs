//! Checks the tree against its description: the architecture page, links, unlinked pages, machine
//! paths and marks of unfinished work. The submodules check the sources against the rules of
//! CONTRIBUTING.md: [`protocols`], [`sizes`], [`modules`], [`flags`], [`wording`] and [`terms`].
//!
//! Covers the files that git tracks, and those that it would track if they were added. A binary of its own, because
//! `make fast` runs it without the others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

mod flags;
mod modules;
mod protocols;
mod ratchet;
mod shapes;
mod sizes;
mod sources;
mod terms;
mod wording;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is two folders up")
}

/// Returns every file of the repository, relative to its root, with `/`.
fn files() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the repository: is git installed?");
    assert!(
        listed.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let files: Vec<String> = String::from_utf8(listed.stdout)
        .expect("paths are UTF-8")
        .lines()
        // A tracked file may have been deleted without a commit.
        .filter(|file| root().join(file).is_file())
        .map(str::to_owned)
        .collect();
    assert!(
        files.iter().any(|file| file == "ARCHITECTURE.md"),
        "git ls-files lists no ARCHITECTURE.md: is this a clone of the repository?"
    );
    files
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn markdown() -> Vec<String> {
    files()
        .into_iter()
        .filter(|file| file.ends_with(".md"))
        .collect()
}

/// With `panic = "abort"` a defect of one thread would lose all measurements of a run.
#[test]
fn panics_unwind_in_every_profile() {
    let manifest = read("Cargo.toml");
    let (_, profiles) = manifest
        .split_once("[profile.")
        .expect("the profiles are there");
    assert!(profiles.contains("release]") && profiles.contains("dist]"));
    let set = profiles.lines().find(|line| line.starts_with("panic"));
    assert_eq!(set, None);
}

/// Returns the lines outside fenced code blocks, with inline code blanked.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let kept: Vec<&str> = line.split('`').step_by(2).collect();
            lines.push(kept.join(" "));
        }
    }
    lines
}

/// Returns the targets of inline links: the text in `](…)`.
fn links(text: &str) -> Vec<String> {
    // A link's text may span lines; its target does not.
    prose(text)
        .join("\n")
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()))
        .collect()
}

/// Returns a heading's anchor as GitHub makes it: lower case, hyphens for spaces, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || !line.starts_with('#') {
            continue;
        }
        let anchor = line
            .trim_start_matches('#')
            .trim()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        found.insert(anchor);
    }
    found
}

/// Resolves `target`, a link in `file`, relative to the root and without `.` and `..`.
fn resolve(file: &str, target: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    for component in folder.join(target).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => {
                parts.pop();
            }
            _ => {}
        }
    }
    parts.join("/")
}

fn is_relative(link: &str) -> bool {
    !link.contains("://") && !link.starts_with("mailto:")
}

/// Returns the text of a Markdown page below a heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let behind = page.split_once(&format!("\n## {heading}\n"));
    let behind = behind.unwrap_or_else(|| panic!("no section '{heading}'")).1;
    behind.split("\n## ").next().unwrap_or_default()
}

#[test]
fn architecture_page_matches_source_tree() {
    let page = read("ARCHITECTURE.md");
    let block = section(&page, "The tree")
        .split("```")
        .nth(1)
        .expect("the section starts with a code block");
    let (mut folders, mut crates) = (BTreeSet::new(), BTreeSet::new());
    for line in block.lines() {
        let Some((name, description)) = line.split_once('/') else {
            continue;
        };
        match name.strip_prefix("  ") {
            None => folders.insert(name.to_owned()),
            // Lines that are indented further continue a description.
            Some(name) if !name.starts_with(' ') => {
                assert!(
                    !description.trim().is_empty(),
                    "ARCHITECTURE.md: crate {name} has no description"
                );
                crates.insert(name.to_owned())
            }
            Some(_) => true,
        };
    }

    let (mut folders_there, mut crates_there) = (BTreeSet::new(), BTreeSet::new());
    for file in files() {
        let mut parts = file.split('/');
        let top = parts.next().unwrap_or_default();
        let Some(second) = parts.next() else {
            continue;
        };
        if !top.starts_with('.') {
            folders_there.insert(top.to_owned());
        }
        if top == "crates" {
            crates_there.insert(second.to_owned());
        }
    }
    assert_eq!(
        folders, folders_there,
        "top folders: ARCHITECTURE.md (left) against the disk (right)"
    );
    assert_eq!(
        crates, crates_there,
        "crates: ARCHITECTURE.md (left) against the disk (right)"
    );
}

#[test]
fn source_walkthrough_names_existing_functions() {
    let page = read("ARCHITECTURE.md");
    let walk = section(&page, "A walk from plan file to report");
    let mut arrows = 0;
    for row in walk.lines().filter(|line| line.contains("](crates/")) {
        let file = row.split("](").nth(1).and_then(|it| it.split(')').next());
        let file = file.expect("a link");
        let (source, functions) = (read(file), row.rsplit('|').nth(1).unwrap_or_default());
        let names: Vec<&str> = functions.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no function: {row}");
        for name in names {
            let name = name.rsplit("::").next().unwrap_or(name);
            assert!(
                source.contains(&format!("fn {name}(")) || source.contains(&format!("fn {name}<")),
                "ARCHITECTURE.md: {file} has no function {name}"
            );
        }
        arrows += 1;
    }
    assert!(arrows > 8, "{arrows} arrows: is the table there?");
}

#[test]
fn relative_links_resolve() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for file in markdown() {
        for link in links(&read(&file)).iter().filter(|link| is_relative(link)) {
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                file.clone()
            } else {
                resolve(&file, path)
            };
            if !root().join(&target).exists() {
                broken.push(format!("{file}: {link}: no such file"));
            } else if !anchor.is_empty()
                && target.ends_with(".md")
                && !anchors(&read(&target)).contains(anchor)
            {
                broken.push(format!("{file}: {link}: no such heading"));
            }
        }
    }
    assert!(checked > 20, "only {checked} relative links were found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn documentation_pages_are_all_linked() {
    let linked: BTreeSet<String> = ["README.md", "docs/README.md"]
        .iter()
        .flat_map(|file| {
            links(&read(file))
                .into_iter()
                .filter(|link| is_relative(link))
                .map(|link| resolve(file, link.split('#').next().unwrap_or_default()))
        })
        .collect();
    let orphans: Vec<String> = markdown()
        .into_iter()
        .filter(|file| file.starts_with("docs/") && !linked.contains(file))
        .collect();
    assert!(
        orphans.is_empty(),
        "linked from neither README.md nor docs/README.md: {orphans:?}"
    );
}

/// The website has the pages that `docs/SUMMARY.md` lists.
#[test]
fn documentation_pages_are_on_website() {
    let summary = "docs/SUMMARY.md";
    let listed = links(&read(summary));
    let on_site: BTreeSet<String> = listed.iter().map(|link| resolve(summary, link)).collect();
    assert_eq!(on_site.len(), listed.len(), "{summary} lists a page twice");
    let missing: Vec<String> = markdown()
        .into_iter()
        .filter(|file| file.starts_with("docs/") && file != summary && !on_site.contains(file))
        .collect();
    assert!(missing.is_empty(), "not in {summary}: {missing:?}");
}

#[test]
fn every_protocol_has_plan_and_page() {
    let files = files();
    let protocols: Vec<&str> = files
        .iter()
        .filter_map(|file| {
            file.strip_prefix("crates/plimsoll-protocols/src/")?
                .strip_suffix("/driver.rs")
        })
        .collect();
    assert!(
        protocols.contains(&"grpc"),
        "no folder with a driver.rs in crates/plimsoll-protocols/src"
    );
    for protocol in protocols {
        let page = format!("docs/{protocol}.md");
        assert!(files.contains(&page), "{protocol} has no page {page}");
        let section = format!("[call.{protocol}]");
        assert!(
            files
                .iter()
                .filter(|file| file.starts_with("plans/") && file.ends_with(".toml"))
                .any(|plan| read(plan).contains(&section)),
            "{protocol}: no plan in plans/ has a section {section}"
        );
    }
}

#[test]
fn no_unfinished_marks_or_machine_paths() {
    // Split in halves, so that this file does not match itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
    ];
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
    ];
    let mut found = Vec::new();
    for file in files() {
        // Third-party text, and input made by a fuzzer.
        if file.starts_with("LICENSE") || file.starts_with("fuzz/corpus/") || file.ends_with(".sum")
        {
            continue;
        }
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!' && c != '(')
                .collect();
            let mark = marks
                .iter()
                .find(|mark| words.iter().any(|word| word.starts_with(**mark)));
            // A path starts at a word boundary: after a dot or a brace there is none.
            let path = paths.iter().find(|path| {
                line.match_indices(**path).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-})>".contains(c))
                })
            });
            if let Some(what) = mark.or(path) {
                found.push(format!("{file}:{}: {what}", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
