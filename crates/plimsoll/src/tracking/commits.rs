//! Reads commits of a git repository by running `git` as a child process.
//!
//! Invariant: the user's work tree, index and branches are not changed. Uncommitted changes are turned into a commit
//! with a temporary index.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::failure::Failure;
use crate::load::run_folders;

/// Possible names of the main branch, in the order in which they are tried.
const MAIN_BRANCHES: [&str; 5] = [
    "origin/HEAD",
    "origin/main",
    "origin/master",
    "main",
    "master",
];

/// Environment variables that would make git use another repository or index; git sets them for hooks.
pub(super) const GIT_VARIABLES: [&str; 4] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"];

/// Length of an abbreviated commit id, characters.
const SHORT_ID_LENGTH: usize = 7;

/// The repository of the current folder.
pub(crate) struct GitRepository {
    /// The top folder of the work tree.
    top: PathBuf,
    /// The current folder, relative to the top folder.
    pub(crate) prefix: PathBuf,
}

/// A commit to build, with or without the uncommitted changes on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitCommit {
    /// The full commit id.
    pub(crate) id: String,
    /// The first line of the commit message.
    pub(crate) subject: String,
    /// Id of a temporary commit with the uncommitted changes on top of this commit; `None` if they are not included.
    pub(crate) changes: Option<String>,
}

impl GitCommit {
    /// Returns the name used in reports and file names: the abbreviated id, with `-dirty` if there are changes.
    pub(crate) fn name(&self) -> String {
        let short: String = self.id.chars().take(SHORT_ID_LENGTH).collect();
        match self.changes {
            Some(_) => short + "-dirty",
            None => short,
        }
    }

    /// Returns the id of the commit to build.
    pub(super) fn built_id(&self) -> &str {
        self.changes.as_deref().unwrap_or(&self.id)
    }
}

impl GitRepository {
    /// Finds the repository of the current folder.
    ///
    /// # Errors
    /// When the current folder is not in a repository with a work tree, or git is not installed.
    pub(crate) fn from_current_folder() -> Result<GitRepository, Failure> {
        let here = GitRepository {
            top: PathBuf::from("."),
            prefix: PathBuf::new(),
        };
        let found = here.run_git(&["rev-parse", "--show-toplevel", "--show-prefix"])?;
        let found = found.map_err(|reason| {
            Failure::usage(
                format_args!("the current folder is in no git repository: {reason}"),
                "run it in a clone of the service's repository, or give both versions as commands: --old CMD --new CMD",
            )
        })?;
        let mut lines = found.lines();
        Ok(GitRepository {
            top: lines.next().unwrap_or(".").into(),
            prefix: lines.next().unwrap_or_default().into(),
        })
    }

    /// Returns the commit that `revision` names, which is the value of `flag`.
    ///
    /// # Errors
    /// When `revision` names no commit.
    pub(crate) fn resolve_commit(&self, flag: &str, revision: &str) -> Result<GitCommit, Failure> {
        let peeled = format!("{revision}^{{commit}}");
        let words = ["rev-parse", "--verify", "--end-of-options", &peeled];
        let Ok(id) = self.run_git(&words)? else {
            return Err(Failure::usage(
                format_args!("{flag}: `{revision}` is no commit of this repository"),
                "give a branch, a tag or a commit's id; in a shallow clone, fetch more first: git fetch --unshallow",
            ));
        };
        self.read_commit(&id)
    }

    fn read_commit(&self, id: &str) -> Result<GitCommit, Failure> {
        let subject = self.run_git_checked(&["log", "-1", "--format=%s", id])?;
        let subject = subject.replace(|c: char| c.is_control(), "\u{fffd}");
        Ok(GitCommit {
            id: id.to_owned(),
            subject,
            changes: None,
        })
    }

    /// Returns the commit of `HEAD` with the uncommitted changes of the work tree.
    ///
    /// # Errors
    /// When there is no commit yet.
    pub(crate) fn head_with_changes(&self) -> Result<GitCommit, Failure> {
        let head = self.resolve_commit("--candidate", "HEAD")?;
        let all = self.pathspecs_without_measurements()?;
        let mut words = vec!["status", "--porcelain", "--untracked-files=all", "--"];
        words.extend(all.iter().map(String::as_str));
        let changes = if self.run_git_checked(&words)?.is_empty() {
            None
        } else {
            self.commit_changes(&head.id, &all)?
        };
        Ok(GitCommit { changes, ..head })
    }

    /// Returns the pathspecs for `git status` and `git add` that exclude directories of measurements, which are no
    /// changes of the service.
    fn pathspecs_without_measurements(&self) -> Result<Vec<String>, Failure> {
        let words = [
            "ls-files",
            "--others",
            "--exclude-standard",
            "--directory",
            "-z",
        ];
        let listed = self.run_git_checked(&words)?;
        let folders = listed.split('\0').filter(|path| path.ends_with('/'));
        let found =
            folders.flat_map(|folder| run_folders::find_measurements(&self.top.join(folder)));
        let mut all = vec![":(top)".to_owned()];
        for dir in found {
            if let Some(path) = dir.strip_prefix(&self.top).ok().and_then(Path::to_str) {
                all.push(format!(":(top,exclude,literal){path}"));
            }
        }
        Ok(all)
    }

    /// Returns the commit that `candidate` is compared with by default: the merge base with the main branch. If that is
    /// the candidate itself, returns its parent, or the candidate without its uncommitted changes if there are any.
    ///
    /// # Errors
    /// When the candidate has no parent.
    pub(crate) fn default_base(&self, candidate: &GitCommit) -> Result<GitCommit, Failure> {
        for branch in MAIN_BRANCHES {
            let base = self.run_git(&["merge-base", branch, &candidate.id])?;
            // Use the first of the branches that exists; others may be years old.
            if let Ok(base) = base {
                if base == candidate.id {
                    break;
                }
                return self.read_commit(&base);
            }
        }
        if candidate.changes.is_some() {
            return self.read_commit(&candidate.id);
        }
        let parent = format!("{}~1", candidate.id);
        let words = ["rev-parse", "--verify", "--end-of-options", &parent];
        match self.run_git(&words)? {
            Ok(id) => self.read_commit(&id),
            Err(_) => Err(Failure::usage(
                format_args!("{} has no commit before it here", candidate.name()),
                "name the commit to compare with: --base REV; a shallow clone has to fetch it first: git fetch --unshallow",
            )),
        }
    }

    /// Commits the tracked and untracked files of the work tree that match `paths`, with a temporary index; returns the
    /// commit id. `None` if there are no changes from `head`.
    fn commit_changes(&self, head: &str, paths: &[String]) -> Result<Option<String>, Failure> {
        let failed = |e: io::Error| Failure::error(format_args!("can't copy git's index: {e}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        let index = folder.path().join("index");
        let own = self
            .top
            .join(self.run_git_checked(&["rev-parse", "--git-path", "index"])?);
        if own.exists() {
            // Copy the user's index, which tells git which files have not changed and need not be read.
            std::fs::copy(own, &index).map_err(failed)?;
        }
        let git = |words: &[&str]| {
            let mut command = self.git_command(words);
            command.env("GIT_INDEX_FILE", &index);
            for role in ["AUTHOR", "COMMITTER"] {
                command.env(format!("GIT_{role}_NAME"), "plimsoll");
                command.env(format!("GIT_{role}_EMAIL"), "plimsoll@localhost");
            }
            let words = words.join(" ");
            run_to_completion(&words, command)?.map_err(|reason| git_failure(&words, &reason))
        };
        let mut words = vec!["add", "--all", "--"];
        words.extend(paths.iter().map(String::as_str));
        git(&words)?;
        let tree = git(&["write-tree"])?;
        if tree == git(&["rev-parse", &format!("{head}^{{tree}}")])? {
            return Ok(None);
        }
        let message = "changes that are not committed";
        git(&["commit-tree", &tree, "-p", head, "-m", message]).map(Some)
    }

    /// Creates a work tree of the commit `id` in `folder`.
    ///
    /// # Errors
    /// When git can't create the work tree.
    pub(super) fn add_work_tree(&self, id: &str, folder: &Path) -> Result<(), Failure> {
        let folder = folder.to_string_lossy();
        // Don't run the repository's hooks, which are meant for the user's work tree.
        let hooks = "core.hooksPath=/dev/null";
        self.run_git_checked(&[
            "-c", hooks, "worktree", "add", "--detach", "--quiet", &folder, id,
        ])
        .map(drop)
    }

    /// Removes a work tree.
    ///
    /// # Errors
    /// When git can't remove the work tree.
    pub(super) fn remove_work_tree(&self, folder: &Path) -> Result<(), Failure> {
        let folder = folder.to_string_lossy();
        self.run_git_checked(&["worktree", "remove", "--force", "--force", &folder])
            .map(drop)
    }

    /// Returns whether `good` is an ancestor of `bad`.
    ///
    /// # Errors
    /// When git is not installed.
    pub(super) fn is_ancestor(&self, good: &GitCommit, bad: &GitCommit) -> Result<bool, Failure> {
        let found = self.run_git(&["merge-base", "--is-ancestor", &good.id, &bad.id])?;
        Ok(found.is_ok())
    }

    /// Returns the ids of the commits that may be the first bad one, including `bad`. The commits that divide the
    /// others best come first.
    ///
    /// # Errors
    /// When git fails.
    pub(super) fn suspect_ids(
        &self,
        bad: &str,
        good: &[String],
        follow: MergeAncestry,
    ) -> Result<Vec<String>, Failure> {
        let mut words = vec!["rev-list", "--bisect-all"];
        if follow == MergeAncestry::FirstParents {
            words.push("--first-parent");
        }
        words.extend([bad, "--not"]);
        words.extend(good.iter().map(String::as_str));
        let listed = self.run_git_checked(&words)?;
        let ids = listed
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        Ok(ids.map(str::to_owned).collect())
    }

    /// Returns the commit with the given id.
    ///
    /// # Errors
    /// When git fails.
    pub(super) fn commit_by_id(&self, id: &str) -> Result<GitCommit, Failure> {
        self.read_commit(id)
    }

    fn git_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.current_dir(&self.top).args(words);
        for name in GIT_VARIABLES {
            command.env_remove(name);
        }
        // Commands such as `git status` must not rewrite the user's index.
        command.env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null());
        // In its own process group git gets no SIGINT from Ctrl-C; this program then removes the work trees.
        command.process_group(0);
        command
    }

    /// Runs git; returns its output or, as inner error, its error message.
    fn run_git(&self, words: &[&str]) -> Result<Result<String, String>, Failure> {
        run_to_completion(&words.join(" "), self.git_command(words))
    }

    fn run_git_checked(&self, words: &[&str]) -> Result<String, Failure> {
        self.run_git(words)?
            .map_err(|reason| git_failure(&words.join(" "), &reason))
    }
}

/// The parents of merge commits that a search for commits follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeAncestry {
    AllParents,
    /// Only first parents, which form the history of the branch that other branches were merged into.
    FirstParents,
}

fn git_failure(words: &str, reason: &str) -> Failure {
    Failure::error(format_args!("git {words}: {reason}"))
}

fn run_to_completion(words: &str, mut command: Command) -> Result<Result<String, String>, Failure> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Failure::error_with_help(
            "git is not installed, or not in PATH: it finds the commits and makes their work trees",
            "install git, or give both versions as commands: --old CMD --new CMD",
        ),
        _ => Failure::error(format_args!("can't run git {words}: {e}")),
    })?;
    if status.success() {
        let text = String::from_utf8_lossy(&stdout);
        return Ok(Ok(text.trim_end().to_owned()));
    }
    let said = String::from_utf8_lossy(&stderr);
    Ok(Err(said.trim().to_owned()))
}
