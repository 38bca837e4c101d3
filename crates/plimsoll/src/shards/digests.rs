//! Computes digests of a shard's plan, data files and program. Shards with different digests would not run the same
//! load.

use aws_lc_rs::digest::{SHA256, digest};
use plimsoll_model::spec::Spec;

use super::objects::RunDigests;
use crate::failure::{self, Failure};

/// Returns the digests of `spec`, which must have all defaults filled in, of its data files, and of this program.
///
/// # Errors
/// When a file can't be read.
pub(super) fn compute(spec: &Spec) -> Result<RunDigests, Failure> {
    let mut same = spec.clone();
    // Leave out plan keys that may differ between shards, such as the numbers of processes and workers.
    same.load.processes = None;
    same.load.workers = None;
    same.load.source_addresses = None;
    same.watch = None;
    let plan = same.to_toml().map_err(Failure::error)?;
    let mut digests = RunDigests {
        plan: hex(plan.as_bytes()),
        build: hex(&read_own_executable()?),
        ..RunDigests::default()
    };
    for (key, path) in spec.data_files() {
        let content = failure::read_named_file(&key, &path)?;
        let data = &mut digests.data;
        data.insert(path.display().to_string(), hex(&content));
    }
    Ok(digests)
}

fn read_own_executable() -> Result<Vec<u8>, Failure> {
    // This link leads to the running executable even if its file has been replaced since the start.
    std::fs::read("/proc/self/exe")
        .map_err(|e| Failure::error(format_args!("can't read this program's own file: {e}")))
}

fn hex(bytes: &[u8]) -> String {
    let sum = digest(&SHA256, bytes);
    let hex = sum.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", hex.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_covers_data_but_not_worker_layout() {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("rows.csv");
        std::fs::write(&rows, "a\n1\n").unwrap();
        let mut spec = Spec {
            seed: Some(3),
            ..Spec::default()
        };
        spec.rows.get_or_insert_default().file = Some(rows.clone());
        let first = compute(&spec).unwrap();
        spec.load.processes = Some(3);
        spec.load.workers = Some(2);
        assert_eq!(compute(&spec).unwrap(), first);
        std::fs::write(&rows, "a\n2\n").unwrap();
        let difference = first.describe_difference(&compute(&spec).unwrap()).unwrap();
        assert!(difference.ends_with("rows.csv"), "{difference}");
        spec.seed = Some(4);
        let difference = first.describe_difference(&compute(&spec).unwrap()).unwrap();
        assert_eq!(difference, "another plan");
        spec.rows = Some(plimsoll_model::spec::RowsSpec {
            file: Some("absent.csv".into()),
            ..Default::default()
        });
        let difference = compute(&spec).unwrap_err().to_string();
        assert!(
            difference.starts_with("rows.file: can't read absent.csv"),
            "{difference}"
        );
    }
}
