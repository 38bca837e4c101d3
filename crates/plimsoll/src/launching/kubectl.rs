//! Submits a run's manifests to a cluster with `kubectl` and waits for its job.
//!
//! All access is through `kubectl`, which knows the cluster and its credentials. The result is read from the job's
//! conditions and from the container states of its pods. Pods that don't start are reported. The shards in the other
//! pods wait for the missing ones until a timeout, and then end the job.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;
use crate::screen::console;

/// How often the job's state is polled.
const JOB_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Number of consecutive failed polls after which the wait ends with an error.
const MAX_FAILED_POLLS: u32 = 30;

/// The option of `kubectl logs` that shows only the last lines of a failed pod's log.
pub(crate) const LAST_LINES_OPTION: &str = "--tail=20";

/// The Kubernetes job whose pods are the shards of a run.
pub(crate) struct KubernetesJob<'a> {
    pub(crate) namespace: Option<&'a str>,
    /// Name of the job, which is also the value of the label on all its objects.
    pub(crate) name: &'a str,
    pub(crate) shards: u32,
}

/// State of a job and its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobOutcome {
    /// Shard number, name and exit code of each pod; the exit code is `None` until the pod has ended.
    pods: Vec<(u32, String, Option<i32>)>,
    running: usize,
    is_over: bool,
    /// Reasons why pods don't start.
    problems: BTreeSet<String>,
}

impl JobOutcome {
    /// Returns the exit code of shard 0, which is the exit code of the whole run; `None` if shard 0 has not ended.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        let first = self.pods.iter().find(|(shard, ..)| *shard == 0)?;
        first.2.and_then(|code| u8::try_from(code).ok())
    }

    /// Returns the name of shard 0's pod.
    pub(crate) fn first_pod(&self) -> Option<&str> {
        let first = self.pods.iter().find(|(shard, ..)| *shard == 0)?;
        Some(&first.1)
    }

    /// Parses the output of `kubectl get job,pod -o json`.
    fn read(text: &[u8]) -> Result<JobOutcome, String> {
        let list: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let items = list["items"].as_array().ok_or("not a list of objects")?;
        let mut outcome = JobOutcome::default();
        for item in items {
            match item["kind"].as_str() {
                Some("Job") => {
                    let conditions = item["status"]["conditions"].as_array();
                    outcome.is_over = conditions.into_iter().flatten().any(|c| {
                        matches!(c["type"].as_str(), Some("Complete" | "Failed"))
                            && c["status"] == "True"
                    });
                }
                Some("Pod") => outcome.add_pod(item),
                _ => {}
            }
        }
        Ok(outcome)
    }

    fn add_pod(&mut self, pod: &Value) {
        let index = &pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"];
        let shard = index.as_str().and_then(|index| index.parse().ok());
        let (Some(shard), Some(name)) = (shard, pod["metadata"]["name"].as_str()) else {
            return;
        };
        let state = &pod["status"]["containerStatuses"][0]["state"];
        let code = state["terminated"]["exitCode"].as_i64();
        self.running += usize::from(state["running"].is_object());
        let waiting = &state["waiting"];
        if let Some(reason) = waiting["reason"].as_str()
            && !matches!(reason, "ContainerCreating" | "PodInitializing")
        {
            let message = waiting["message"].as_str().unwrap_or_default();
            self.problems.insert(format!("{reason}: {message}"));
        }
        let conditions = pod["status"]["conditions"].as_array();
        for condition in conditions.into_iter().flatten() {
            if condition["reason"] == "Unschedulable" {
                let message = condition["message"].as_str().unwrap_or_default();
                self.problems.insert(format!("Unschedulable: {message}"));
            }
        }
        let code = code.and_then(|code| i32::try_from(code).ok());
        self.pods.push((shard, name.to_owned(), code));
    }
}

impl KubernetesJob<'_> {
    /// Runs `kubectl` with these arguments and `input` on its standard input; returns its output.
    fn run_kubectl(&self, words: &[&str], input: &str) -> Result<String, Failure> {
        let mut command = Command::new("kubectl");
        if let Some(namespace) = self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(words).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| kubectl_missing(&e))?;
        if let Some(mut stdin) = child.stdin.take() {
            // If kubectl stops reading early, its exit status and stderr say why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|e| kubectl_missing(&e))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(Failure::error(format_args!(
                "kubectl {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            )))
        }
    }

    /// Submits the manifests.
    ///
    /// # Errors
    /// When `kubectl` is not installed, or the cluster rejects the manifests.
    pub(crate) fn apply(&self, objects: &str) -> Result<(), Failure> {
        let printed = self.run_kubectl(&["apply", "-f", "-"], objects)?;
        printed.lines().for_each(console::print_confirmation);
        Ok(())
    }

    /// Waits until the job has ended. `interrupted` is called between polls; if it returns an error, the wait ends.
    ///
    /// # Errors
    /// When the cluster does not answer, or `interrupted` fails.
    pub(crate) fn wait(
        &self,
        interrupted: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<JobOutcome, Failure> {
        let label = format!("plimsoll/run={}", self.name);
        let words = ["get", "job,pod", "-l", &label, "-o", "json"];
        let (mut failed, mut running) = (0, usize::MAX);
        let mut reported = BTreeSet::new();
        loop {
            let found = self.run_kubectl(&words, "").and_then(|printed| {
                let unread = |e| Failure::error(format_args!("kubectl get: {e}"));
                JobOutcome::read(printed.as_bytes()).map_err(unread)
            });
            match found {
                Ok(outcome) => {
                    failed = 0;
                    if outcome.running != running && !outcome.is_over {
                        running = outcome.running;
                        console::print_confirmation(format_args!(
                            "{running} of {} pods run",
                            self.shards
                        ));
                    }
                    for problem in outcome.problems.difference(&reported.clone()) {
                        console::print_notice(problem);
                        reported.insert(problem.clone());
                    }
                    if outcome.is_over {
                        return Ok(outcome);
                    }
                }
                Err(failure) => {
                    failed += 1;
                    if failed == MAX_FAILED_POLLS {
                        return Err(failure);
                    }
                }
            }
            interrupted()?;
            thread::sleep(JOB_POLL_INTERVAL);
        }
    }

    /// Returns the pod's log. `options` are passed to `kubectl logs`, such as [`LAST_LINES_OPTION`].
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub(crate) fn pod_log(&self, pod: &str, options: &[&str]) -> Result<String, Failure> {
        self.run_kubectl(&[&["logs", pod], options].concat(), "")
    }
}

fn kubectl_missing(error: &io::Error) -> Failure {
    Failure::error_with_help(
        format_args!("can't start kubectl: {error}"),
        "install kubectl, or leave --apply out and give the objects to the cluster yourself",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn job_outcome_follows_conditions_and_shard_zero() {
        let pod = |shard: u32, state: Value| {
            json!({"kind": "Pod",
                "metadata": {"name": format!("p-{shard}"), "annotations":
                    {"batch.kubernetes.io/job-completion-index": shard.to_string()}},
                "status": {"containerStatuses": [{"state": state}]}})
        };
        let job = |conditions: Value| json!({"kind": "Job", "status": {"conditions": conditions}});
        let read = |items: &[Value]| {
            JobOutcome::read(json!({"items": items}).to_string().as_bytes()).unwrap()
        };
        let under_way = read(&[
            pod(1, json!({"running": {}})),
            pod(
                0,
                json!({"waiting": {"reason": "ErrImagePull", "message": "no image"}}),
            ),
            job(json!([{"type": "Suspended", "status": "True"}])),
        ]);
        assert!(!under_way.is_over);
        assert_eq!((under_way.running, under_way.exit_code()), (1, None));
        assert_eq!(
            under_way.problems,
            BTreeSet::from(["ErrImagePull: no image".to_owned()])
        );
        let over = read(&[
            job(json!([{"type": "Failed", "status": "True"}])),
            pod(1, json!({"terminated": {"exitCode": 137}})),
            pod(0, json!({"terminated": {"exitCode": 99}})),
        ]);
        assert!(over.is_over);
        assert_eq!(
            (over.exit_code(), over.first_pod()),
            (Some(99), Some("p-0"))
        );
        assert!(JobOutcome::read(b"{}").is_err());
    }
}
