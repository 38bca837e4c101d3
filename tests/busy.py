#!/usr/bin/env python3
"""Runs a command while part of every processor's time is taken away.

    tests/busy.py [--share 0.4] COMMAND…

While COMMAND runs, a process of real-time priority takes a share of each processor, in bursts of
1 to 500 ms, like a host that overcommits its cores. A test that fails here depends on the machine's
speed. Needs root, or the capability CAP_SYS_NICE. The exit code is that of COMMAND.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time


def take_processor_time(cpu, share, parent):
    """Takes `share` of one processor until the process `parent` ends."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while os.getppid() == parent:
        least, most = random.choices([(0.001, 0.02), (0.02, 0.1), (0.1, 0.5)], [70, 25, 5])[0]
        burst_s = random.uniform(least, most)
        end = time.monotonic() + burst_s
        while time.monotonic() < end:
            pass
        time.sleep(burst_s * (1 - share) / share * random.uniform(0.5, 1.5))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--share", type=float, default=0.4, help="share of each processor's time (0.4)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("which command? for example: tests/busy.py make test")
    if not 0 < options.share <= 0.9:
        parser.error(f"--share {options.share}: use more than 0, and 0.9 at most")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError as error:
        sys.exit(f"tests/busy.py: real-time priority: {error}: run this as root")
    parent = os.getpid()
    takers = []
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            pid = os.fork()
            if pid == 0:
                try:
                    take_processor_time(cpu, options.share, parent)
                finally:
                    os._exit(0)
            takers.append(pid)
        return subprocess.run(options.command, check=False).returncode
    finally:
        for pid in takers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
