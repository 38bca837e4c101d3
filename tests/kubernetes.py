#!/usr/bin/env python3
"""Runs a plan on a real Kubernetes: starts a control plane and two nodes, each in a network namespace of this machine,
and stops them afterwards. `plimsoll kubernetes --apply` uses the image that `make image` builds.

    tests/kubernetes.py PROGRAM IMAGES

PROGRAM is plimsoll, IMAGES the folder of the images' tar files. Needs root; `make test-kubernetes` builds everything else.
"""

import base64
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile

from clusters import PLAN, Background, fail, check_matches_one_process, run, wait_for

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"
BINARIES = PEERS / "kubernetes"

# Network prefixes: of the control plane and the nodes, and of the pods, with a subnet for each node.
NET = "10.91.0"
PODS = "10.92"
NODES = (1, 2)
SHARDS = 4

CONTAINERD = """
version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{home}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  # The container that holds a pod's network: any image that runs until it is stopped will do.
  sandbox_image = "{sandbox}"
  stream_server_address = "127.0.0.1"
  # Root inside a container may not lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{home}/cni"
"""

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "failCgroupV1": False,
    "makeIPTablesUtilChains": False,
    "localStorageCapacityIsolation": False,
    "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
    "imageGCHighThresholdPercent": 100,
}


def in_namespace(space, *words):
    """Returns the command that runs `words` in a network namespace."""
    # `ip netns exec` would mount another /sys, but containers need the control groups of this one.
    return ["nsenter", f"--net=/run/netns/{space}", *map(str, words)]


class Cluster:
    """A control plane at NET.10 and nodes at NET.11 and NET.12, with all their processes."""

    def __init__(self, folder, background, images):
        self.home = folder / "cluster"
        self.home.mkdir()
        self.background = background
        self.images = images
        server = next(images.glob("plimsoll-server-*.tar")).name
        self.version = server.removeprefix("plimsoll-server-").split("-x86_64")[0]
        # Files outside of `folder` that kubelets and plugins leave are removed at the end, except those that existed
        # before.
        self.before = set(self.leftovers())
        # Several clusters may run on one machine.
        self.name = f"plk{os.getpid() % 100_000}"
        self.spaces = []
        self.kubeconfig = self.home / "kubeconfig"

    def space(self, which):
        return f"{self.name}{which}"

    def netns(self, which):
        name = self.space(which)
        run(["ip", "netns", "add", name], self.home)
        self.spaces.append(name)
        run(in_namespace(name, "ip", "link", "set", "lo", "up"), self.home)
        return name

    def network(self):
        switch = self.netns("s")
        run(in_namespace(switch, "ip", "link", "add", "br0", "type", "bridge"), self.home)
        run(in_namespace(switch, "ip", "link", "set", "br0", "up"), self.home)
        for which, number in (("c", 10), *((node, 10 + node) for node in NODES)):
            name = self.netns(which)
            end = f"v{which}"
            run(["ip", "link", "add", end, "netns", switch, "type", "veth", "peer", "name", "e0", "netns", name], self.home)
            run(in_namespace(switch, "ip", "link", "set", end, "master", "br0", "up"), self.home)
            run(in_namespace(name, "ip", "addr", "add", f"{NET}.{number}/24", "dev", "e0"), self.home)
            run(in_namespace(name, "ip", "link", "set", "e0", "up"), self.home)
            run(in_namespace(name, "sysctl", "-qw", "net.ipv4.ip_forward=1"), self.home)
        for which in ("c", *NODES):
            for node in NODES:
                if node != which:
                    words = ["ip", "route", "add", f"{PODS}.{node}.0/24", "via", f"{NET}.{10 + node}"]
                    run(in_namespace(self.space(which), *words), self.home)

    def start(self, which, program, *words):
        log = (self.home / f"{pathlib.Path(program).name}-{which}.log").open("w", encoding="utf-8")
        return self.background.start(*in_namespace(self.space(which), program, *words), stdout=log, stderr=log)

    def kubectl(self, *words, code=(0,), **options):
        return run(in_namespace(self.space("c"), BINARIES / "kubectl", "--kubeconfig", self.kubeconfig, *words), self.home,
                   code=code, **options)

    def objects(self, document):
        file = self.home / "objects.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        self.kubectl("apply", "-f", file)

    def control_plane(self):
        token = secrets.token_hex(16)
        (self.home / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n", encoding="utf-8")
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
            # The server's certificate is self-signed; no other server is in these namespaces.
            "clusters": [{"name": "here", "cluster": {
                "server": f"https://{NET}.10:6443", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": token}}],
        }), encoding="utf-8")
        key = self.home / "accounts.key"
        run(["openssl", "genrsa", "-out", key, "2048"], self.home)
        self.start("c", BINARIES / "etcd", "--data-dir", self.home / "etcd", "--log-level", "warn",
                   "--listen-peer-urls", "http://127.0.0.1:2380")
        self.start("c", BINARIES / "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379",
                   "--cert-dir", self.home / "certs", "--bind-address", f"{NET}.10", "--advertise-address", f"{NET}.10",
                   "--token-auth-file", self.home / "tokens.csv", "--authorization-mode", "RBAC",
                   "--service-account-issuer", "https://here", "--service-account-key-file", key,
                   "--service-account-signing-key-file", key, "--service-cluster-ip-range", "10.93.0.0/24")
        wait_for("the API server", lambda: "ok" in self.kubectl("get", "--raw", "/readyz", code=range(256)))
        kubeconfig = ("--kubeconfig", self.kubeconfig, "--leader-elect=false")
        self.start("c", BINARIES / "kube-controller-manager", *kubeconfig, "--service-account-private-key-file", key,
                   "--authentication-tolerate-lookup-failure=true")
        self.start("c", BINARIES / "kube-scheduler", *kubeconfig, "--authentication-tolerate-lookup-failure=true")

    def node(self, number):
        home = self.home / f"node{number}"
        (home / "cni").mkdir(parents=True)
        (home / "cni" / "10-pods.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipam": {"type": "host-local", "dataDir": str(home / "addresses"),
                         "ranges": [[{"subnet": f"{PODS}.{number}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]},
            }],
        }), encoding="utf-8")
        config = home / "containerd.toml"
        sandbox = f"localhost/plimsoll-server:{self.version}"
        config.write_text(CONTAINERD.format(home=home, sandbox=sandbox), encoding="utf-8")
        self.start(number, "containerd", "-c", config)
        ctr = ["ctr", "-a", home / "containerd.sock", "-n", "k8s.io"]
        wait_for("containerd", lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0)
        for image in sorted(self.images.glob("*.tar")):
            run([*ctr, "images", "import", image], self.home)
        settings = home / "kubelet.json"
        pods = {"containerRuntimeEndpoint": f"unix://{home}/containerd.sock", "podLogsDir": str(home / "logs")}
        settings.write_text(json.dumps({**KUBELET, **pods}), encoding="utf-8")
        self.start(number, BINARIES / "kubelet", "--config", settings, "--kubeconfig", self.kubeconfig,
                   "--root-dir", home / "kubelet", "--cert-dir", home / "certs", "--hostname-override", f"node{number}",
                   "--node-ip", f"{NET}.{10 + number}")

    def up(self):
        self.network()
        self.control_plane()
        for number in NODES:
            self.node(number)

        def ready():
            listed = self.kubectl("get", "nodes", "--no-headers", code=range(256)).splitlines()
            return [line.split()[1] for line in listed] == ["Ready"] * len(NODES)

        wait_for("the nodes", ready)

    def pods(self):
        """Returns the output of the remaining pods, to explain a failure."""
        logs = sorted(self.home.glob("node*/logs/*/*/*.log"))
        texts = [f"{log.parent.parent.name}:\n{log.read_text(encoding='utf-8')}" for log in logs]
        return "\n".join([*texts, self.kubectl("get", "jobs,pods,events", code=range(256))])

    @staticmethod
    def leftovers():
        return [*pathlib.Path("/run/netns").glob("cni-*"), *pathlib.Path("/var/log/containers").glob("*")]

    def end(self):
        """Stops everything that was started, pods included: they are processes of this machine."""
        if self.kubeconfig.exists():
            with contextlib.suppress(SystemExit, subprocess.TimeoutExpired):
                self.kubectl("delete", "jobs", "--all", "--cascade=foreground", "--timeout=60s", code=range(256))
        for child in self.background.children:
            if str(BINARIES / "kubelet") in child.args:
                # A kubelet would restart the containers that are deleted next.
                child.kill()
                child.wait()
        for number in NODES:
            socket = self.home / f"node{number}" / "containerd.sock"
            ctr = ["ctr", "-a", str(socket), "-n", "k8s.io"]
            quiet = {"capture_output": True, "text": True, "check": False, "timeout": 60}
            listed = subprocess.run([*ctr, "containers", "list", "-q"], **quiet).stdout if socket.exists() else ""
            for container in listed.split():
                subprocess.run([*ctr, "tasks", "delete", "-f", container], **quiet)
                subprocess.run([*ctr, "containers", "delete", container], **quiet)
        self.background.end()
        mounts = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        for place in sorted((line.split()[1] for line in mounts), reverse=True):
            if place.startswith(str(self.home)):
                subprocess.run(["umount", "-l", place], check=False)
        for trace in set(self.leftovers()) - self.before:
            if trace.is_symlink():
                trace.unlink()
            else:
                subprocess.run(["ip", "netns", "delete", trace.name], check=False)
        for name in self.spaces:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def apply(cluster, program, folder, plan, run_id, store):
    """Starts `plimsoll kubernetes --apply`."""
    words = [program, "kubernetes", plan, "--shards", SHARDS, "--rendezvous", "s3://loads/meeting", "--run-id", run_id,
             "--secret", "store", "--image", f"localhost/plimsoll:{cluster.version}", "--cpu", "500m", "--apply", "--out", run_id]
    path = f"{cluster.home}/bin:{os.environ['PATH']}"
    environment = {**os.environ, **store, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.Popen(in_namespace(cluster.space("c"), *words), cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def shard_process(index, run_id):
    """Returns the process id of a shard."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"JOB_COMPLETION_INDEX={index}".encode() in variables and run_id.encode() in words:
            return int(entry.name)
    return None


def check_pods_spread(cluster, run_id):
    pods = json.loads(cluster.kubectl("get", "pods", "-l", f"plimsoll/run=plimsoll-{run_id}", "-o", "json"))["items"]
    nodes = sorted(pod["spec"]["nodeName"] for pod in pods)
    assert nodes == sorted(f"node{node}" for node in NODES for _ in range(SHARDS // len(NODES))), nodes


def check_run(cluster, program, folder, store):
    child = apply(cluster, program, folder, "plan.toml", "whole", store)
    output, _ = child.communicate(timeout=600)
    # On a busy machine the generator may have been late.
    if child.returncode not in (0, 90):
        fail(f"plimsoll kubernetes --apply: exit code {child.returncode}\n{output}\n{cluster.pods()}")
    check_matches_one_process("Kubernetes", folder, folder / "whole")
    check_pods_spread(cluster, "whole")


def check_pod_loss(cluster, program, folder, store):
    """Checks that killing a pod ends the run of all shards, and that the data they had handed over is kept."""
    long = (folder / "plan.toml").read_text(encoding="utf-8").replace('"3s"', '"300s"')
    (folder / "long.toml").write_text(long, encoding="utf-8")
    child = apply(cluster, program, folder, "long.toml", "killed", store)

    def handed_over():
        """Returns the number of calls that each shard has handed over so far, or None before all have."""
        out = folder / "so-far"
        shutil.rmtree(out, ignore_errors=True)
        words = [program, "merge", "s3://loads/meeting", "--run-id", "killed", "--out", out, "-q"]
        run(in_namespace(cluster.space("c"), *words), folder, code=range(256), **store)
        if not (out / "run.json").exists():
            return None
        ok = [shard["ok"] for shard in json.loads((out / "run.json").read_text(encoding="utf-8"))["shards"]]
        return ok if len(ok) == SHARDS and min(ok) > 50 else None

    before = wait_for("the load of the shards", handed_over)
    victim = shard_process(2, "killed")
    os.kill(victim, signal.SIGKILL)
    output, _ = child.communicate(timeout=600)
    assert child.returncode == 1, f"exit code {child.returncode}\n{output}\n{cluster.pods()}"
    result = json.loads((folder / "killed" / "run.json").read_text(encoding="utf-8"))
    assert result["state"] == "partial", result["state"]
    shards = result["shards"]
    assert [shard["state"] for shard in shards if shard["shard"] == 2] == ["lost"], shards
    assert all(shard["ok"] >= ok for shard, ok in zip(shards, before, strict=True)), (before, shards)
    assert sum(shard["ok"] for shard in shards) == result["total"]["ok"], shards
    assert result["count_check"]["matches"], result["count_check"]
    job = json.loads(cluster.kubectl("get", "job", "plimsoll-killed", "-o", "json"))
    failed = [c for c in job["status"]["conditions"] if c["type"] == "Failed"]
    assert failed and failed[0]["reason"] == "PodFailurePolicy", job["status"]
    print(f"killed pod: {result['reason']}; {result['total']['ok']} calls kept")


def main():
    program, images = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    if os.geteuid() != 0:
        fail("network namespaces and containers need root")
    os.environ["PATH"] += ":/usr/sbin"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-kubernetes-"))
    background = Background()
    cluster = Cluster(folder, background, images)
    try:
        cluster.up()
        (cluster.home / "bin").mkdir()
        (cluster.home / "bin" / "kubectl").symlink_to(BINARIES / "kubectl")
        server = background.start(*in_namespace(cluster.space("c"), program, "serve", "score", "--listen", f"{NET}.10:0",
                                          "--delay", "0s"), stdout=subprocess.PIPE, text=True)
        address = next(word for word in server.stdout.readline().split() if word.startswith(f"{NET}.10:"))
        bucket = background.start(*in_namespace(cluster.space("c"), PEERS / "bin" / "go-s3", "-listen", f"{NET}.10:0"),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        store = {
            "AWS_ENDPOINT_URL": "http://" + bucket.stdout.readline().split()[-1],
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        cluster.objects({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"},
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in store.items()},
        })
        (folder / "plan.toml").write_text(PLAN.format(address=address), encoding="utf-8")
        run(in_namespace(cluster.space("c"), program, "run", "plan.toml", "--out", "one", "-q"), folder)
        check_run(cluster, program, folder, store)
        check_pod_loss(cluster, program, folder, store)
    finally:
        cluster.end()
        if "KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
