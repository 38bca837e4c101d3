#!/usr/bin/env python3
"""Starts the shards of a plan with Open MPI, MPICH and Slurm, and compares each run with that of one process, call
by call. Slurm's cluster of four nodes is started on this machine and stopped afterwards.

    tests/clusters.py PROGRAM

PROGRAM is plimsoll. Needs root, because Slurm's nodes start tasks for any user.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MAX_WAIT_S = 300
# An option of prctl(2).
PR_SET_CHILD_SUBREAPER = 36
SHARDS = 4
NODES = 4

PLAN = """
name = "clustered"
target = "grpc://{address}"
seed = 7
requests = true

[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1, {{{{seq}}}}]" }}

[load]
rate = "200/s"
arrivals = "poisson"
duration = "3s"
connections = 8
"""

SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
KillWait=5
InactiveLimit=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def fail(text):
    sys.exit(f"{sys.argv[0]}: {text}")


def wait_for(what, found):
    """Waits until `found` returns something true, and returns that."""
    end = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.1)
    fail(f"{what}: timed out after {MAX_WAIT_S} s")


class Background:
    """Child processes and the daemons that they start; all end with this process."""

    def __init__(self):
        self.children = []
        # Orphaned processes become children of this one.
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            fail(f"prctl: {os.strerror(ctypes.get_errno())}")

    def start(self, *words, **options):
        child = subprocess.Popen([str(word) for word in words], **options)
        self.children.append(child)
        return child

    def end(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        # Processes that end leave their own children to this one.
        while left := children():
            for child in left:
                os.kill(child, signal.SIGKILL)
            for child in left:
                os.waitpid(child, 0)


def children():
    """Returns the process ids of this process's children."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name before it may contain any character, so fields count from its last parenthesis (proc_pid_stat(5)).
            if int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def run(words, folder, code=(0,), **variables):
    """Runs a command, which must exit with one of the codes; returns its output."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
                          timeout=MAX_WAIT_S)
    if done.returncode not in code:
        fail(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def calls(directory):
    """Returns number, arrival relative to the first, and outcome of every call."""
    lines = run(["zstd", "-dcq", directory / "requests.jsonl.zst"], directory).splitlines()
    found = [json.loads(line) for line in lines]
    first = min(call["arrival_ns"] for call in found)
    return sorted((call["number"], call["arrival_ns"] - first, call["code"]) for call in found)


def check_matches_one_process(name, folder, directory):
    merged, one = (json.loads((place / "run.json").read_text(encoding="utf-8")) for place in (directory, folder / "one"))
    for key in ("due", "ok", "errors", "not_started"):
        assert merged["total"][key] == one["total"][key], f"{name}: {key}: {merged['total'][key]} {one['total'][key]}"
    assert [shard["state"] for shard in merged["shards"]] == ["complete"] * SHARDS, merged["shards"]
    assert calls(directory) == calls(folder / "one"), f"{name}: other calls"
    print(f"{name}: {merged['total']['ok']} calls from {SHARDS} shards, as from one process")


def run_with_mpi(program, folder):
    meeting = f"file://{folder}/meeting"
    words = [program, "run", "plan.toml", "-q", "--rendezvous", meeting]
    run(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", SHARDS, *words, "--out", "openmpi"], folder)
    check_matches_one_process("Open MPI", folder, folder / "openmpi")
    run(["mpirun.mpich", "-n", SHARDS, *words, "--out", "mpich", "--run-id", "mpich"], folder)
    check_matches_one_process("MPICH", folder, folder / "mpich")


def start_slurm(folder, background):
    """Starts munge, the controller and the nodes; returns the environment variables that their clients need."""
    home = folder / "slurm"
    (home / "state").mkdir(parents=True)
    # munge does not trust a folder that others could write to.
    for place in (folder, home):
        place.chmod(0o755)
    key = home / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    background.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={home}/munge.sock",
                     f"--pid-file={home}/munge.pid", f"--seed-file={home}/munge.seed", f"--log-file={home}/munge.log",
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("munge's socket", (home / "munge.sock").exists)
    host = socket.gethostname().split(".")[0]
    controller, *ports = free_ports(1 + NODES)
    nodes = "\n".join(f"NodeName=n{k} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=500 State=UNKNOWN"
                      for k, port in enumerate(ports))
    (home / "slurm.conf").write_text(SLURM.format(host=host, folder=home, controller=controller, nodes=nodes),
                                     encoding="utf-8")
    variables = {"SLURM_CONF": str(home / "slurm.conf")}
    environment = {**os.environ, **variables}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    background.start("slurmctld", "-D", "-f", home / "slurm.conf", **quiet)
    for k in range(NODES):
        (home / f"spool.n{k}").mkdir()
        background.start("slurmd", "-D", "-N", f"n{k}", "-f", home / "slurm.conf", **quiet)

    def idle():
        listed = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=environment, capture_output=True, text=True)
        return listed.stdout.split() == ["idle"] * NODES

    wait_for("Slurm's nodes", idle)
    return variables


def run_with_slurm(program, folder, background):
    variables = start_slurm(folder, background)
    words = [program, "run", "plan.toml", "-q", "--rendezvous", f"file://{folder}/meeting", "--out", "srun"]
    run(["srun", "-n", SHARDS, *words], folder, **variables)
    check_matches_one_process("srun", folder, folder / "srun")
    script = run([program, "slurm", "plan.toml", "--shards", SHARDS, "--program", program, "--time", "10:00"], folder)
    (folder / "load.sh").write_text(script, encoding="utf-8")
    run(["sbatch", "--wait", "load.sh"], folder, **variables)
    (directory,) = (folder / "runs").glob("clustered-*")
    check_matches_one_process("sbatch with plimsoll slurm's script", folder, directory)
    # A cancelled job must keep what it has measured.
    long = (folder / "plan.toml").read_text(encoding="utf-8").replace('"3s"', '"300s"')
    (folder / "long.toml").write_text(long, encoding="utf-8")
    script = run([program, "slurm", "long.toml", "--shards", SHARDS, "--program", program], folder)
    (folder / "long.sh").write_text(script, encoding="utf-8")
    job = run(["sbatch", "--parsable", "long.sh"], folder, **variables).strip()
    directory = folder / "runs" / f"clustered-{job}"
    written = directory / "intervals.jsonl"
    wait_for("the load of a job", lambda: written.exists() and len(written.read_text(encoding="utf-8").splitlines()) > 2)
    run(["scancel", job], folder, **variables)

    def ended():
        result = json.loads((directory / "run.json").read_text(encoding="utf-8"))
        return result if result["state"] != "running" else None

    cancelled = wait_for("the end of a job", ended)
    assert cancelled["state"] in ("aborted", "partial"), cancelled["state"]
    assert cancelled["total"]["ok"] > 0 and cancelled["count_check"]["matches"], cancelled["count_check"]
    print(f"scancel: {cancelled['state']}, {cancelled['total']['ok']} calls kept")
    # Slurm notices the end of a step later than the step ends.
    wait_for("the end of the steps", lambda: not run(["squeue", "--noheader"], folder, **variables))


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    if os.geteuid() != 0:
        fail("Slurm's nodes need root")
    os.environ["PATH"] += ":/usr/sbin"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-clusters-"))
    background = Background()
    try:
        server = background.start(program, "serve", "score", "--listen", "127.0.0.1:0", "--delay", "0s",
                                  stdout=subprocess.PIPE, text=True)
        line = server.stdout.readline()
        address = next(word for word in line.split() if word.startswith("127.0.0.1:"))
        (folder / "plan.toml").write_text(PLAN.format(address=address), encoding="utf-8")
        run([program, "run", "plan.toml", "--out", "one", "-q"], folder)
        run_with_mpi(program, folder)
        run_with_slurm(program, folder, background)
    finally:
        if (folder / "slurm" / "slurm.conf").exists():
            # Nodes leave their jobs' tasks running, so these are ended first; a controller that has ended gives no answer.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["scancel", "--user=root", "--full", "--signal=KILL"], check=False, timeout=60,
                               env={**os.environ, "SLURM_CONF": str(folder / "slurm" / "slurm.conf")})
        background.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
