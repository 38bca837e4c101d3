//! Generates Kubernetes manifests: an Indexed Job, and the ConfigMap and Secret that its pods read.
//!
//! Scalars are written as JSON strings, which are valid YAML (YAML 1.2 §1.3). Texts of several lines are written as
//! block scalars if YAML preserves them exactly, so that the plan stays readable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use plimsoll_protocols::registry;

use super::LaunchPlan;
use crate::failure::{self, Failure};
use crate::load::execution::slug;

/// Maximum size of a ConfigMap or Secret, bytes (API reference of ConfigMap v1).
const MAX_OBJECT_BYTES: usize = 1 << 20;
/// Maximum length of the run ID in an object's name, so that `plimsoll-ID-tls` has at most the 63 characters of a label
/// (RFC 1123).
const MAX_ID_LENGTH: usize = 50;
/// User ID that the pods run with; this user owns no files in the image.
const USER_ID: u32 = 10_001;
const PLAN_DIR: &str = "/plan";
const RENDEZVOUS_DIR: &str = "/rendezvous";
const RUNS_DIR: &str = "/runs";

/// The input for generating the manifests of a run.
pub(crate) struct KubernetesManifests<'a> {
    pub(crate) load: &'a LaunchPlan,
    pub(crate) shards: u32,
    pub(crate) run_id: &'a str,
    pub(crate) rendezvous: PodRendezvous<'a>,
    pub(crate) pods: &'a PodFlags,
}

/// Flags that describe the pods.
#[derive(Debug, Args)]
pub(crate) struct PodFlags {
    /// The image, with Plimsoll as its entrypoint.
    #[arg(long, value_name = "IMAGE", default_value = "plimsoll")]
    pub(crate) image: String,

    /// The namespace [default: kubectl's].
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// A service account with access to the bucket [default: a new one without permissions].
    #[arg(long, value_name = "NAME")]
    pub(crate) service_account: Option<String>,

    /// A secret whose keys become environment variables of the pods, such as AWS_ACCESS_KEY_ID; repeatable.
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,

    /// CPU cores that each pod requests.
    #[arg(long, value_name = "QUANTITY", default_value = "1")]
    pub(crate) cpu: String,

    /// Memory that each pod requests, which is also its limit.
    #[arg(long, value_name = "QUANTITY", default_value = "512Mi")]
    pub(crate) memory: String,
}

/// The rendezvous through which the pods exchange messages.
#[derive(Clone, Copy)]
pub(crate) enum PodRendezvous<'a> {
    Url(&'a str),
    /// A persistent volume claim whose volume all nodes can write to.
    Claim(&'a str),
}

/// File contents by path under the pods' working directory.
type PodFiles = BTreeMap<String, Vec<u8>>;

impl KubernetesManifests<'_> {
    /// Returns the objects as YAML for `kubectl apply`.
    ///
    /// # Errors
    /// When the plan contains a secret as text, when a file that it names can't be read or is outside the current
    /// directory, or when the files together exceed the size limit of an object.
    pub(crate) fn yaml(&self) -> Result<String, Failure> {
        let (plan, data) = self.collect_files()?;
        let secret = read_pod_files(self.load.spec.tls_files())?;
        let name = self.name();
        let mut documents = vec![self.config_map(&name, &data)?];
        if !secret.is_empty() {
            documents.push(self.secret(&name, &secret)?);
        }
        if self.pods.service_account.is_none() {
            documents.push(format!(
                "apiVersion: v1\nkind: ServiceAccount\n{}automountServiceAccountToken: false\n",
                self.metadata(&name)
            ));
        }
        documents.push(self.job(&name, &plan, &data, &secret));
        Ok(format!(
            "{}{}",
            self.header_comment(&name),
            documents.join("---\n")
        ))
    }

    /// Returns the name that all objects share.
    pub(crate) fn name(&self) -> String {
        let mut id = slug(self.run_id);
        id.truncate(MAX_ID_LENGTH);
        format!("plimsoll-{}", id.trim_end_matches('-'))
    }

    fn rendezvous_url(&self) -> String {
        match self.rendezvous {
            PodRendezvous::Url(url) => url.to_owned(),
            PodRendezvous::Claim(_) => format!("file://{RENDEZVOUS_DIR}"),
        }
    }

    /// Returns the path of the run directory that shard 0 writes.
    pub(crate) fn run_directory(&self) -> String {
        match self.rendezvous {
            PodRendezvous::Url(_) => format!("{RUNS_DIR}/run"),
            PodRendezvous::Claim(_) => format!("{RENDEZVOUS_DIR}/runs/{}", self.run_id),
        }
    }

    fn header_comment(&self, name: &str) -> String {
        let space = self.pods.namespace.iter();
        let space: String = space.map(|space| format!(" -n {space}")).collect();
        let result = match self.rendezvous {
            PodRendezvous::Url(url) => format!(
                "#   plimsoll watch {url} --run-id {id}\n#   plimsoll merge {url} --run-id {id} --out runs/{id}\n",
                id = self.run_id
            ),
            PodRendezvous::Claim(claim) => format!(
                "#   kubectl{space} logs -f job/{name} --all-pods\n\
                 # The run directory is {} of the claim {claim}.\n",
                self.run_directory().trim_start_matches(RENDEZVOUS_DIR)
            ),
        };
        format!(
            "# {} shards of {}, for `kubectl apply -f -`. While they run, and afterwards:\n{result}\
             #   kubectl{space} delete job,configmap,secret,serviceaccount -l plimsoll/run={name}\n",
            self.shards,
            self.load.path.display()
        )
    }

    /// Returns the plan's path in the pods, and all files including the plan.
    fn collect_files(&self) -> Result<(String, PodFiles), Failure> {
        if let Some(name) = self.load.spec.literal_secret_names().first() {
            return Err(Failure::usage(
                format_args!(
                    "{}: `{name}` contains a secret, which everyone who may read the ConfigMap of the run could read",
                    self.load.path.display()
                ),
                "read it from an environment variable: write `{ env = \"NAME\" }` as the value, `$NAME` in a query, or \
                 `$PLIMSOLL_BODY_NAME` in a body, and give --secret a Secret that has this name as a key",
            ));
        }
        let mut files = read_pod_files(self.load.spec.data_files())?;
        if let Some(folder) = registry::local_folder(&self.load.spec.call) {
            return Err(Failure::usage(
                format_args!("{}: a folder can't be passed to pods", folder.key),
                folder.help,
            ));
        }
        let plan = relative_path(&self.load.path).unwrap_or_else(|| "plan.toml".to_owned());
        let plan = if files.contains_key(&plan) {
            format!("plimsoll-{}.toml", self.load.name)
        } else {
            plan
        };
        files.insert(plan.clone(), self.load.text.clone().into_bytes());
        Ok((plan, files))
    }

    /// Returns the metadata of the object `name`, with the run's label.
    fn metadata(&self, name: &str) -> String {
        let mut text = format!("metadata:\n  name: {name}\n");
        if let Some(space) = &self.pods.namespace {
            let _ = writeln!(text, "  namespace: {}", json_string(space));
        }
        let _ = writeln!(
            text,
            "  labels:\n    app.kubernetes.io/name: plimsoll\n    plimsoll/run: {}",
            self.name()
        );
        text
    }

    fn config_map(&self, name: &str, files: &PodFiles) -> Result<String, Failure> {
        let (mut texts, mut others) = (String::new(), String::new());
        for (index, (path, content)) in files.iter().enumerate() {
            let key = config_map_key(index, path);
            let _ = match block_scalar(content) {
                Some(block) => writeln!(texts, "  {key}: {block}"),
                None => writeln!(others, "  {key}: {}", STANDARD.encode(content)),
            };
        }
        check_object_size("data files", texts.len() + others.len())?;
        let mut text = self.immutable_object("ConfigMap", name);
        for (section, entries) in [("data", texts), ("binaryData", others)] {
            if !entries.is_empty() {
                let _ = write!(text, "{section}:\n{entries}");
            }
        }
        Ok(text)
    }

    fn immutable_object(&self, kind: &str, name: &str) -> String {
        let metadata = self.metadata(name);
        format!("apiVersion: v1\nkind: {kind}\n{metadata}immutable: true\n")
    }

    fn secret(&self, name: &str, files: &PodFiles) -> Result<String, Failure> {
        let mut entries = String::new();
        for (index, (path, content)) in files.iter().enumerate() {
            let (key, content) = (config_map_key(index, path), STANDARD.encode(content));
            let _ = writeln!(entries, "  {key}: {content}");
        }
        check_object_size("certificates and keys", entries.len())?;
        let object = self.immutable_object("Secret", &format!("{name}-tls"));
        Ok(format!("{object}type: Opaque\ndata:\n{entries}"))
    }

    /// Returns the YAML of the mount of the rendezvous volume (empty if there is none), and of all volumes.
    fn volumes(&self, name: &str, data: &PodFiles, secret: &PodFiles) -> (String, String) {
        let mut text = format!(
            "      volumes:
        - name: plan
          projected:
            # 0440: for the group of the pod alone.
            defaultMode: 288
            sources:
{}",
            volume_source("configMap", name, data)
        );
        if !secret.is_empty() {
            text += &volume_source("secret", &format!("{name}-tls"), secret);
        }
        text += "        - name: runs\n          emptyDir: {}\n";
        let PodRendezvous::Claim(claim) = self.rendezvous else {
            return (String::new(), text);
        };
        let _ = write!(
            text,
            "        - name: rendezvous\n          persistentVolumeClaim:\n            claimName: {}\n",
            json_string(claim)
        );
        let mount =
            format!("            - name: rendezvous\n              mountPath: {RENDEZVOUS_DIR}\n");
        (mount, text)
    }

    /// Returns the `envFrom` entries that set environment variables from the secrets named by flags.
    fn secret_references(&self) -> String {
        let mut text = String::new();
        for secret in &self.pods.secret {
            if text.is_empty() {
                text += "          envFrom:\n";
            }
            let name = json_string(secret);
            let _ = write!(
                text,
                "            - secretRef:\n                name: {name}\n"
            );
        }
        text
    }

    fn job(&self, name: &str, plan: &str, data: &PodFiles, secret: &PodFiles) -> String {
        let shards = self.shards.to_string();
        let (url, out) = (self.rendezvous_url(), self.run_directory());
        let flags = [
            ("--rendezvous", &*url),
            ("--run-id", self.run_id),
            ("--shards", &*shards),
            ("--out", &*out),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag, value]);
        let words = ["run", plan].into_iter().chain(flags);
        let arguments: String = words
            .map(|word| format!("            - {}\n", json_string(word)))
            .collect();
        let variables = self.secret_references();
        let (mount, volumes) = self.volumes(name, data, secret);
        let account = self.pods.service_account.as_deref();
        let account = account.map_or_else(|| name.to_owned(), json_string);
        format!(
            "apiVersion: batch/v1
kind: Job
{metadata}spec:
  # Shards are numbered, run all at once, and are never restarted: calls after a restart would be late.
  completionMode: Indexed
  completions: {shards}
  parallelism: {shards}
  backoffLimit: 0
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          operator: NotIn
          values: [0]
  template:
    metadata:
      labels:
        app.kubernetes.io/name: plimsoll
        plimsoll/run: {name}
    spec:
      restartPolicy: Never
      serviceAccountName: {account}
      automountServiceAccountToken: false
      enableServiceLinks: false
      # A shard that is told to stop finishes calls in flight, and hands over its measurements.
      terminationGracePeriodSeconds: 60
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              plimsoll/run: {name}
      securityContext:
        runAsNonRoot: true
        runAsUser: {USER_ID}
        runAsGroup: {USER_ID}
        fsGroup: {USER_ID}
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: shard
          image: {image}
          args:
{arguments}          workingDir: {PLAN_DIR}
{variables}          resources:
            requests: {{cpu: {cpu}, memory: {memory}}}
            limits: {{memory: {memory}}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: plan
              mountPath: {PLAN_DIR}
              readOnly: true
            - name: runs
              mountPath: {RUNS_DIR}
            - name: runs
              mountPath: /tmp
{mount}{volumes}",
            metadata = self.metadata(name),
            image = json_string(&self.pods.image),
            cpu = json_string(&self.pods.cpu),
            memory = json_string(&self.pods.memory),
        )
    }
}

/// Reads files, each given with the plan key that names it; returns their contents by path in the pods.
fn read_pod_files(named: Vec<(String, PathBuf)>) -> Result<PodFiles, Failure> {
    let mut files = PodFiles::new();
    for (key, path) in named {
        let place = relative_path(&path).ok_or_else(|| {
            Failure::usage(
                format_args!("{key}: {} is not under the current directory", path.display()),
                "pods have the plan's files in their working directory, under the same relative paths: put the file under the current directory, and give its relative path",
            )
        })?;
        files.insert(place, failure::read_named_file(&key, &path)?);
    }
    Ok(files)
}

/// Normalises a path below the working directory; `None` for any other path.
fn relative_path(path: &Path) -> Option<String> {
    let mut words = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(word) => words.push(word.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!words.is_empty() && words != ["-"]).then(|| words.join("/"))
}

fn check_object_size(what: &str, length: usize) -> Result<(), Failure> {
    if length <= MAX_OBJECT_BYTES {
        return Ok(());
    }
    Err(Failure::error_with_help(
        format_args!(
            "the plan's {what} take {length} bytes: a Kubernetes object holds at most {MAX_OBJECT_BYTES}"
        ),
        "build an image that has the files under its working directory, and run the plan from there",
    ))
}

/// Returns a valid ConfigMap key: letters, digits, `-`, `_` and `.`.
fn config_map_key(index: usize, path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = name.chars().map(|c| if legal(c) { c } else { '_' });
    format!("{index}-{}", name.collect::<String>())
}

/// Returns the source of a projected volume that mounts the files of a ConfigMap or Secret.
fn volume_source(kind: &str, name: &str, files: &PodFiles) -> String {
    let mut text = format!(
        "              - {kind}:\n                  name: {name}\n                  items:\n"
    );
    for (index, path) in files.keys().enumerate() {
        let _ = writeln!(
            text,
            "                    - {{key: {}, path: {}}}",
            config_map_key(index, path),
            json_string(path)
        );
    }
    text
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Formats text as a YAML literal block scalar (YAML 1.2 §8.1.2) for a key that is indented by two spaces; `None` if
/// YAML would not keep the text unchanged.
fn block_scalar(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    let kept = |c: char| matches!(c, '\n' | '\t' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}');
    // Exclude U+2028 and U+2029, which are line breaks in YAML 1.1.
    if text.is_empty()
        || !text
            .chars()
            .all(|c| kept(c) && !matches!(c, '\u{2028}' | '\u{2029}'))
    {
        return (text.is_empty()).then(|| "\"\"".to_owned());
    }
    let (chomping, body) = match text.strip_suffix('\n') {
        Some(body) => ('+', body),
        None => ('-', text),
    };
    let lines: String = body
        .split('\n')
        .map(|line| match line {
            "" => "\n".to_owned(),
            line => format!("\n    {line}"),
        })
        .collect();
    Some(format!("|2{chomping}{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_yaml_block_when_lossless() {
        assert_eq!(
            block_scalar(b"a\n\n b\n").as_deref(),
            Some("|2+\n    a\n\n     b")
        );
        assert_eq!(block_scalar(b"a").as_deref(), Some("|2-\n    a"));
        assert_eq!(block_scalar(b"a\n\n").as_deref(), Some("|2+\n    a\n"));
        assert_eq!(block_scalar(b"").as_deref(), Some("\"\""));
        for other in [&b"a\r\n"[..], b"\x00", b"\xff", "\u{feff}a".as_bytes()] {
            assert_eq!(block_scalar(other), None);
        }
    }

    #[test]
    fn paths_outside_working_directory_are_rejected() {
        assert_eq!(
            relative_path(Path::new("./a/b.csv")).as_deref(),
            Some("a/b.csv")
        );
        for other in ["/a", "../a", "a/../b", "-", "."] {
            assert_eq!(relative_path(Path::new(other)), None, "{other}");
        }
        assert_eq!(config_map_key(3, "a b/c d.toml"), "3-c_d.toml");
    }
}
