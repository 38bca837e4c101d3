//! Control groups, version 2: the resources that a container or a systemd unit uses, whatever processes it consists of
//! (cgroup-v2.rst of the kernel's documentation).

use std::fs;
use std::path::{Path, PathBuf};

use procfs::process::Process;

/// Suffixes of the names of systemd units.
const SYSTEMD_UNIT_SUFFIXES: [&str; 3] = [".service", ".scope", ".slice"];
/// Prefixes that container engines put before a container's id.
const CONTAINER_PREFIXES: [&str; 5] = ["docker-", "libpod-", "crio-", "cri-containerd-", ""];
/// Minimum number of digits of a container id for a lookup: as many as `docker ps` prints.
const MIN_ID_PREFIX_LENGTH: usize = 12;
/// Maximum number of groups that are searched.
const MAX_SEARCHED_GROUPS: usize = 100_000;
const MAX_LISTED_GROUPS: usize = 5;

/// A control group of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    dir: PathBuf,
}

/// The reason why no group was found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// The kernel has no cgroup v2, or it is not mounted here.
    #[error("control groups of version 2 are not mounted on this machine")]
    NotMounted,
    /// There is no group of this name.
    #[error("there is no control group {name} under {}", mount.display())]
    Missing {
        /// The name that was looked up.
        name: String,
        /// The mount point, below which all groups are found.
        mount: PathBuf,
    },
    /// Several groups have this name.
    #[error("{name} may be {}", among.join(" or "))]
    Ambiguous {
        /// The name that was looked up.
        name: String,
        /// Paths of the groups, from the root of the hierarchy.
        among: Vec<String>,
    },
}

/// CPU time and memory of a group, its child groups included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CgroupUsage {
    /// User and system time since the group was created, in µs.
    pub(crate) cpu_us: u64,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    /// Memory currently charged to the group, in bytes, including cached files; `None` without the memory controller.
    pub(crate) memory_bytes: Option<u64>,
}

impl Cgroup {
    /// Finds a group by its path from the root of the hierarchy, by the name of a systemd unit, or by the id of a
    /// container (at least its first twelve digits).
    ///
    /// # Errors
    /// Returns an error if no group or more than one group is found.
    pub fn find(name: &str) -> Result<Cgroup, CgroupError> {
        let mount = mount_point().ok_or(CgroupError::NotMounted)?;
        Cgroup::find_below(&mount, name)
    }

    fn find_below(mount: &Path, name: &str) -> Result<Cgroup, CgroupError> {
        let missing = || CgroupError::Missing {
            name: name.to_owned(),
            mount: mount.to_owned(),
        };
        let inside = name.strip_prefix(&*mount.to_string_lossy()).unwrap_or(name);
        if inside.contains('/') {
            let dir = mount.join(inside.trim_matches('/'));
            let is_group = dir.starts_with(mount) && dir.join("cgroup.procs").is_file();
            return if is_group {
                Ok(Cgroup { dir })
            } else {
                Err(missing())
            };
        }
        let mut found: Vec<PathBuf> = groups_below(mount)
            .filter(|dir| has_name(dir, name))
            .collect();
        match found.len() {
            0 => Err(missing()),
            1 => Ok(Cgroup {
                dir: found.remove(0),
            }),
            _ => {
                found.sort();
                let path = |dir: &PathBuf| {
                    let inside = dir.strip_prefix(mount).unwrap_or(dir);
                    format!("/{}", inside.display())
                };
                Err(CgroupError::Ambiguous {
                    name: name.to_owned(),
                    among: found.iter().take(MAX_LISTED_GROUPS).map(path).collect(),
                })
            }
        }
    }

    /// Returns the ids of the processes that are currently in the group or its child groups.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let listed =
            |dir: PathBuf| fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        groups_below(&self.dir)
            .flat_map(|dir| {
                let lines = listed(dir);
                let pids = lines.lines().filter_map(|line| line.trim().parse().ok());
                pids.collect::<Vec<i32>>()
            })
            .collect()
    }

    /// Returns the resources that the group has used; `None` if the group no longer exists.
    pub(crate) fn usage(&self) -> Option<CgroupUsage> {
        let stat = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        let of = |key: &str| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(name, _)| *name == key)?.1.trim().parse().ok()
        };
        let memory = fs::read_to_string(self.dir.join("memory.current")).ok();
        Some(CgroupUsage {
            cpu_us: of("usage_usec")?,
            user_us: of("user_usec")?,
            system_us: of("system_usec")?,
            memory_bytes: memory.and_then(|bytes| bytes.trim().parse().ok()),
        })
    }
}

/// Returns the mount point of cgroup v2.
fn mount_point() -> Option<PathBuf> {
    let mounts = Process::myself().ok()?.mountinfo().ok()?;
    let mut groups = mounts
        .into_iter()
        .filter(|mount| mount.fs_type == "cgroup2");
    Some(groups.next()?.mount_point)
}

/// Returns a group and all its descendants.
fn groups_below(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let mut next = vec![dir.to_owned()];
    std::iter::from_fn(move || {
        let dir = next.pop()?;
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        next.extend(folders.map(|entry| entry.path()));
        Some(dir)
    })
    .take(MAX_SEARCHED_GROUPS)
}

/// Returns whether a group has this name, or is the systemd unit with this name or the container with this id.
fn has_name(dir: &Path, name: &str) -> bool {
    let Some(group) = dir.file_name().and_then(|group| group.to_str()) else {
        return false;
    };
    let is_unit = || {
        SYSTEMD_UNIT_SUFFIXES
            .iter()
            .any(|suffix| group.strip_suffix(suffix) == Some(name))
    };
    let is_container = || {
        name.len() >= MIN_ID_PREFIX_LENGTH
            && name.bytes().all(|byte| byte.is_ascii_hexdigit())
            && CONTAINER_PREFIXES.iter().any(|prefix| {
                let id = group.strip_prefix(prefix);
                id.is_some_and(|id| id.starts_with(name))
            })
    };
    group == name || is_unit() || is_container()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes groups as the kernel shows them: a folder each, with files.
    fn tree(groups: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (nth, group) in ["", "system.slice"].iter().chain(groups).enumerate() {
            let dir = root.path().join(group);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.procs"), format!("{nth}\n")).unwrap();
            let stat = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 0\n";
            fs::write(dir.join("cpu.stat"), stat).unwrap();
        }
        root
    }

    const ID: &str = "6d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6";

    #[test]
    fn groups_are_found_by_path_unit_and_container() {
        let container = format!("system.slice/docker-{ID}.scope");
        let root = tree(&[
            "system.slice/nginx.service",
            &container,
            "user.slice/nginx.service",
        ]);
        let find = |name: &str| {
            let found = Cgroup::find_below(root.path(), name)?;
            Ok::<_, CgroupError>(found.dir.strip_prefix(root.path()).unwrap().to_owned())
        };
        let nginx = PathBuf::from("system.slice/nginx.service");
        assert_eq!(find("/system.slice/nginx.service"), Ok(nginx.clone()));
        assert_eq!(find("system.slice/nginx.service"), Ok(nginx));
        for name in [ID, &ID[..12]] {
            assert_eq!(find(name), Ok(PathBuf::from(&container)));
        }
        let said = |name: &str| find(name).unwrap_err().to_string();
        assert_eq!(
            said("nginx"),
            "nginx may be /system.slice/nginx.service or /user.slice/nginx.service"
        );
        for name in ["apache", "6d0e1f", "system.slice/../../etc", "/"] {
            let is_root = name == "/";
            assert_eq!(find(name).is_ok(), is_root, "{name}");
        }
        assert!(said("apache").starts_with("there is no control group apache under "));
    }

    #[test]
    fn usage_is_that_of_the_files() {
        let root = tree(&["system.slice/a.service", "system.slice/a.service/inner"]);
        let group = Cgroup::find_below(root.path(), "a").unwrap();
        let usage = group.usage().unwrap();
        assert_eq!(
            (usage.cpu_us, usage.user_us, usage.system_us),
            (1500, 1000, 500)
        );
        assert_eq!(usage.memory_bytes, None);
        fs::write(group.dir.join("memory.current"), "4096\n").unwrap();
        assert_eq!(group.usage().unwrap().memory_bytes, Some(4096));
        let mut pids = group.pids();
        pids.sort_unstable();
        assert_eq!(pids, [2, 3]);
        fs::remove_dir_all(&group.dir).unwrap();
        assert_eq!(group.usage(), None);
    }

    /// This process's own group, as the kernel shows it.
    #[test]
    fn own_group_has_this_process() {
        let Some(mount) = mount_point() else {
            assert_eq!(Cgroup::find("/"), Err(CgroupError::NotMounted));
            return;
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let has_self = |dir: &PathBuf| {
            let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            listed.lines().any(|line| line == pid.to_string())
        };
        let dir = groups_below(&mount).find(has_self).unwrap();
        let inside = dir.strip_prefix(&mount).unwrap();
        let group = Cgroup::find(&format!("/{}", inside.display())).unwrap();
        assert!(group.pids().contains(&pid), "{group:?}");
        assert!(group.usage().unwrap().cpu_us > 0);
    }
}
