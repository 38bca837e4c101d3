"""Shared code of the benchmarks: starts and stops servers, and measures clients.

CPU is what wait4 reports for the whole process tree of a client, user and system
together; a client's own figures about its cost are ignored. Servers listen on
the loopback interface, are stopped by their process ids, and every client has a time
limit. The other files in this folder are commands; this one is imported by them.
"""

import json
import os
import pathlib
import platform
import re
import resource
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ROOT / ".peers"
PLIMSOLL = pathlib.Path(os.environ.get("PLIMSOLL", ROOT / "target" / "release" / "plimsoll"))
SCORE_PROTO = ROOT / "crates" / "plimsoll-protocols" / "proto" / "score.proto"
METHOD = "score.ScoreService/GetScore"
# 100 characters, which make a gRPC message of 107 bytes with its prefix.
VECTOR = "[" + ", ".join(f"0.{i:04d}" for i in range(12)) + ",  1]"


def grpc_frame(text):
    """Returns the gRPC message JsonVector{json: text} with its prefix, as it is sent in DATA."""
    data = text.encode()
    assert len(data) < 128, "the length is written as one byte"
    message = b"\x0a" + bytes([len(data)]) + data
    return b"\0" + len(message).to_bytes(4, "big") + message


def tool(name):
    """Returns the path of a program, in .peers/bin or on PATH."""
    for place in (PEERS / "bin" / name, pathlib.Path("/usr/sbin") / name):
        if place.exists():
            return str(place)
    found = shutil.which(name)
    if not found:
        sys.exit(f"{name} is missing: run `make setup`")
    return found


def program_of(variable):
    """Returns the command in an environment variable, split into words; None if it is not set."""
    text = os.environ.get(variable)
    if text is None:
        return None
    command = shlex.split(text)
    if not command or not shutil.which(command[0]):
        sys.exit(f"{variable}={text!r}: no such program: set it to a command that can be run, or unset it")
    return command


def plimsoll():
    if not PLIMSOLL.exists():
        sys.exit(f"{PLIMSOLL} is missing: run `make release`, or set PLIMSOLL to the binary")
    return str(PLIMSOLL)


def raise_descriptor_limit(wanted):
    """Lets this process and its children open `wanted` files, or warns why it cannot."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"the limit on open files is {hard}: {wanted} are needed: raise it with `ulimit -Hn {wanted}`")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Scratch:
    """A temporary folder that is removed when the benchmark ends."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-bench-"))

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def make_certificates(folder, algorithm="ecdsa-p256"):
    """Makes a CA, and server and client certificates, with `plimsoll certs`."""
    subprocess.run([plimsoll(), "certs", str(folder), "--algorithm", algorithm], check=True, stdout=subprocess.DEVNULL)
    return folder


class Server:
    """A server process on the loopback interface; stopped when the `with` block ends.

    It must print its address within ten seconds.
    """

    def __init__(self, command):
        self.command, self.port = [str(word) for word in command], None

    def __enter__(self):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.errors)
        timer = threading.Timer(10, self.process.kill)
        timer.start()
        for line in self.process.stdout:
            found = re.search(rb"127\.0\.0\.1:(\d+)", line)
            if found:
                timer.cancel()
                self.port = int(found.group(1))
                return self
        timer.cancel()
        self.__exit__()
        sys.exit(f"the server did not start: {' '.join(self.command)}\n{self.said.strip()}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.out = self.process.stdout.read().decode(errors="replace")
        self.process.wait()
        self.errors.seek(0)
        self.said = self.out + self.errors.read().decode(errors="replace")

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"


class Measured:
    """The cost and output of a client process."""

    def __init__(self, status, usage, wall, out, errors):
        self.exit = os.waitstatus_to_exitcode(status)
        self.user, self.cpu = usage.ru_utime, usage.ru_utime + usage.ru_stime
        self.rss = usage.ru_maxrss * 1024
        self.wall, self.out, self.errors = wall, out, errors


def measure(command, timeout=120):
    """Runs a client until it exits, for at most `timeout` seconds."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        said = [file.read().decode(errors="replace") for file in (out, errors)]
        return Measured(status, usage, wall, *said)


def run_record(folder):
    """Returns the run.json of a run directory."""
    with open(pathlib.Path(folder) / "run.json", encoding="utf-8") as file:
        return json.load(file)


def median(values):
    return statistics.median(values)


# Sends one byte there and back over the loopback device at each due time, and sleeps in
# between; prints its CPU time in seconds.
PACED_BYTES = """
import os, resource, socket, sys, time
gap, calls = 1 / float(sys.argv[1]), int(sys.argv[2])
with socket.create_server(("127.0.0.1", 0)) as listener:
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
for end in (client, server):
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if os.fork() == 0:
    client.close()
    while byte := server.recv(1):
        server.send(byte)
    os._exit(0)
server.close()
cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
begin, due = cpu(), time.monotonic()
for _ in range(calls):
    due += gap
    time.sleep(max(0, due - time.monotonic()))
    client.send(b"x")
    client.recv(1)
print(cpu() - begin)
"""


def wakeup_cost(rate, seconds):
    """Returns the CPU seconds per call that wake-ups cost any client on this machine.

    A client that sends each call at its time wakes twice for it: at that time, and at the
    answer. On a virtual machine that alone may cost more than everything else it does.
    """
    calls = int(rate * seconds)
    measured = measure([sys.executable, "-c", PACED_BYTES, rate, calls], timeout=seconds * 5 + 10)
    if measured.exit != 0:
        sys.exit(f"the cost of waking could not be measured: {measured.errors.strip()}")
    return float(measured.out) / calls


def machine():
    """Returns one line about the machine, because ratios depend on it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{os.cpu_count()} × {model}, Linux {platform.release()}, load average {os.getloadavg()[0]:.1f}"


def warn_if_busy():
    """Warns about other work on the machine, which distorts pacing and ratios."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: load average {load:.1f} before the start: the results will be distorted", file=sys.stderr)


def print_table(head, rows):
    """Prints a Markdown table, aligned for terminals."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print("| " + " | ".join(cell.ljust(w) for cell, w in zip(head, widths)) + " |")
    print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    for row in rows:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |")
