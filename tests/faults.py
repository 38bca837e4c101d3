#!/usr/bin/env python3
"""Makes single system calls of the program fail, and checks how it handles that.

    tests/faults.py PROGRAM [--seed N] [--number N] [--jobs N]
    tests/faults.py PROGRAM --only 'run write:file ENOSPC 3'

PROGRAM is plimsoll. Each scenario (a run, a search, a ladder, shards, processes, a relay, servers, a report) first runs
undisturbed, and its system calls are counted by name and by what their descriptor or path refers to. A fault then
affects one call of one scenario: the first of its kind, one in the middle, or a late one, counted over all threads and
processes from `main` on. The call fails with an errno of its manual page, transfers one byte instead of many (`short`),
or is accompanied by a signal: SIGXFSZ with EFBIG, SIGSTOP for a while, SIGINT, SIGKILL.

Afterwards the program must have ended, without a panic and without an unexpected signal; its counts must add up; the
run directory must be readable; no failure of this machine may be blamed on the target; and exit code 0 must mean that
everything requested was written. Each fault that breaks one of these rules is printed on a line; `--only` repeats it.
The exit code is 0 if there was none. `tests/faults.py PROGRAM --list` prints the calls of each scenario.

The tracer is ptrace(2) behind a seccomp filter, so calls of other kinds run at full speed. x86-64 Linux only.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import errno
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

# A command that takes longer than this hangs. The longest scenario takes a few seconds on a quiet machine.
MAX_WAIT_S = 120
SIGSTOP_DURATION_S = 0.3
LOAD_CALLS = 200

# --- System calls, and what their manual pages list ---------------------------------------------

# The numbers of x86-64, from asm/unistd_64.h.
SYSCALL_NUMBERS = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20,
    "mremap": 25, "madvise": 28, "nanosleep": 35, "socket": 41, "connect": 42, "accept": 43, "sendto": 44,
    "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "bind": 49, "listen": 50, "getsockname": 51,
    "getpeername": 52, "socketpair": 53, "setsockopt": 54, "getsockopt": 55, "clone": 56, "fork": 57, "vfork": 58,
    "execve": 59, "wait4": 61, "kill": 62, "uname": 63, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75,
    "ftruncate": 77, "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87,
    "symlink": 88, "readlink": 89, "chmod": 90, "fchmod": 91, "sysinfo": 99, "sigaltstack": 131, "prctl": 157,
    "futex": 202, "sched_setaffinity": 203, "sched_getaffinity": 204, "getdents64": 217, "clock_gettime": 228,
    "clock_nanosleep": 230, "epoll_ctl": 233, "tgkill": 234, "waitid": 247, "openat": 257, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265, "readlinkat": 267, "faccessat": 269,
    "ppoll": 271, "epoll_pwait": 281, "epoll_wait": 232, "timerfd_create": 283, "timerfd_settime": 286,
    "accept4": 288, "eventfd2": 290, "epoll_create1": 291, "pipe2": 293, "prlimit64": 302, "renameat2": 316,
    "getrandom": 318, "statx": 332, "clone3": 435, "close_range": 436, "pidfd_open": 434, "faccessat2": 439,
    "epoll_pwait2": 441, "copy_file_range": 326, "sendfile": 40, "pselect6": 270, "setsid": 112, "setpgid": 109,
    "dup": 32, "dup2": 33, "dup3": 292, "access": 21, "stat": 4, "lstat": 6, "open": 2, "timerfd_gettime": 287,
    "sched_yield": 24, "membarrier": 324, "io_uring_setup": 425, "perf_event_open": 298, "fallocate": 285,
    "sched_setscheduler": 144, "sched_getscheduler": 145, "setpriority": 141, "getpriority": 140, "personality": 135,
    "brk": 12, "clock_getres": 229, "getpid": 39, "gettid": 186, "getppid": 110, "getuid": 102, "geteuid": 107, "getgid": 104, "getegid": 108,
    "exit": 60, "exit_group": 231, "rt_sigreturn": 15, "set_robust_list": 273, "rseq": 334, "set_tid_address": 218,
    "arch_prctl": 158, "restart_syscall": 219, "umask": 95, "gettimeofday": 96, "time": 201, "sched_get_priority_max": 146,
    "inotify_init1": 294, "inotify_add_watch": 254, "signalfd4": 289, "fadvise64": 221, "statfs": 137, "fstatfs": 138,
}
SYSCALL_NAMES = {number: name for name, number in SYSCALL_NUMBERS.items()}

PATH_ERRNOS = "EACCES ELOOP EMFILE ENAMETOOLONG ENFILE ENOENT ENOMEM ENOTDIR EIO"
CHANGE_ERRNOS = "EACCES EDQUOT EIO ENOENT ENOMEM ENOSPC EPERM EROFS"
DATA_ERRNOS = "EINTR EIO"
# The errors with which a call may fail, by its name and, where that matters, by what its descriptor refers to. Excluded
# are only EFAULT, which means invalid memory, and errors that the kernel never returns for such a call: an EINTR of
# connect(2) that aborts the connection attempt, or of a futex operation that does not wait.
ERRNOS = {
    "read": f"{DATA_ERRNOS} EINVAL EISDIR", "read:socket": "ECONNRESET EINTR ENOMEM ETIMEDOUT ENOBUFS",
    "read:pipe": "EINTR EIO", "read:event": "EINTR", "pread64": f"{DATA_ERRNOS} EINVAL", "readv": "EINTR EIO",
    "readv:socket": "ECONNRESET EINTR ENOMEM ETIMEDOUT", "write": f"{DATA_ERRNOS} EDQUOT EFBIG EINVAL ENOSPC EPERM",
    "write:socket": "ECONNRESET EINTR ENOBUFS ENOMEM EPIPE ETIMEDOUT", "write:pipe": "EINTR EIO EPIPE",
    "write:event": "EINTR", "write:null": "EINTR EIO ENOSPC", "pwrite64": f"{DATA_ERRNOS} EDQUOT EFBIG ENOSPC",
    "writev": f"{DATA_ERRNOS} EDQUOT EFBIG ENOSPC", "writev:socket": "ECONNRESET EINTR ENOBUFS ENOMEM EPIPE",
    "recvfrom": "ECONNRESET EINTR ENOMEM ETIMEDOUT ENOBUFS", "recvmsg": "ECONNRESET EINTR ENOMEM",
    "sendto": "ECONNRESET EINTR ENOBUFS ENOMEM EPIPE EACCES EPERM", "sendmsg": "ECONNRESET EINTR ENOBUFS ENOMEM EPIPE",
    "close": "EINTR EIO ENOSPC EDQUOT", "close:socket": "EINTR EIO", "close:pipe": "EINTR EIO", "close:event": "EINTR",
    "open": f"{PATH_ERRNOS} ENOSPC EROFS", "openat": f"{PATH_ERRNOS} EINTR", "openat:run": f"{PATH_ERRNOS} EDQUOT EEXIST EFBIG EINTR ENOSPC EPERM EROFS",
    "stat": PATH_ERRNOS, "lstat": PATH_ERRNOS, "fstat": "ENOMEM EIO", "newfstatat": PATH_ERRNOS, "statx": f"{PATH_ERRNOS} ENOSYS EPERM",
    "access": PATH_ERRNOS, "faccessat": PATH_ERRNOS, "faccessat2": f"{PATH_ERRNOS} ENOSYS", "readlink": PATH_ERRNOS, "readlinkat": PATH_ERRNOS,
    "getdents64": "EINVAL ENOENT EIO", "getcwd": "EACCES ENOENT ENOMEM ERANGE", "chdir": "EACCES ENOENT ENOMEM",
    "statfs": "EACCES EINTR EIO ENOMEM ENOSYS", "fstatfs": "EINTR EIO ENOMEM ENOSYS",
    "mkdir": CHANGE_ERRNOS + " EEXIST EMLINK", "mkdirat": CHANGE_ERRNOS, "rmdir": CHANGE_ERRNOS + " EBUSY", "unlink": CHANGE_ERRNOS + " EBUSY",
    "unlinkat": CHANGE_ERRNOS + " EBUSY", "rename": CHANGE_ERRNOS + " EBUSY EXDEV", "renameat": CHANGE_ERRNOS, "renameat2": CHANGE_ERRNOS,
    "link": CHANGE_ERRNOS, "linkat": CHANGE_ERRNOS + " EEXIST EMLINK EOPNOTSUPP", "symlink": CHANGE_ERRNOS, "chmod": CHANGE_ERRNOS, "fchmod": CHANGE_ERRNOS,
    "ftruncate": "EFBIG EINTR EIO EPERM EROFS", "fallocate": "EFBIG EINTR EIO ENOSPC EOPNOTSUPP",
    "fsync": "EIO ENOSPC EDQUOT EINVAL", "fdatasync": "EIO ENOSPC EDQUOT", "flock": "EINTR ENOLCK EWOULDBLOCK",
    "lseek": "EINVAL ESPIPE", "fcntl": "EACCES EAGAIN EINTR EINVAL EMFILE EPERM", "ioctl": "EINVAL ENOTTY",
    "copy_file_range": "EIO ENOSPC EXDEV EOPNOTSUPP", "sendfile": "EAGAIN EIO EINVAL ENOMEM", "fadvise64": "EINVAL",
    "brk": "ENOMEM", "mmap": "ENOMEM EAGAIN EPERM", "mremap": "ENOMEM", "mprotect": "ENOMEM", "munmap": "ENOMEM",
    "madvise": "EAGAIN EINVAL ENOMEM EPERM", "socket": "EACCES EAFNOSUPPORT EMFILE ENFILE ENOBUFS ENOMEM EPERM",
    "socketpair": "EMFILE ENFILE ENOMEM", "connect": "EACCES EADDRNOTAVAIL EAGAIN ECONNREFUSED EHOSTUNREACH "
    "ENETUNREACH EPERM ETIMEDOUT ENOBUFS", "accept": "ECONNABORTED EINTR EMFILE ENFILE ENOBUFS ENOMEM EPERM EPROTO",
    "accept4": "ECONNABORTED EINTR EMFILE ENFILE ENOBUFS ENOMEM EPERM EPROTO ENETDOWN EHOSTUNREACH",
    "bind": "EACCES EADDRINUSE EADDRNOTAVAIL EINVAL ENOMEM", "listen": "EADDRINUSE EOPNOTSUPP", "shutdown": "ENOTCONN",
    "getsockname": "ENOBUFS", "getpeername": "ENOBUFS ENOTCONN", "setsockopt": "EINVAL ENOPROTOOPT ENOMEM EPERM",
    "getsockopt": "EINVAL ENOPROTOOPT", "poll": "EINTR ENOMEM EINVAL", "ppoll": "EINTR ENOMEM EINVAL",
    "pselect6": "EINTR ENOMEM", "epoll_create1": "EMFILE ENFILE ENOMEM", "epoll_ctl": "ENOMEM ENOSPC EPERM",
    "epoll_wait": "EINTR EINVAL", "epoll_pwait": "EINTR EINVAL", "epoll_pwait2": "EINTR EINVAL ENOSYS", "eventfd2": "EMFILE ENFILE ENODEV ENOMEM",
    "timerfd_create": "EMFILE ENFILE ENODEV ENOMEM EPERM", "timerfd_settime": "EINVAL ECANCELED",
    "timerfd_gettime": "EINVAL", "pipe2": "EMFILE ENFILE", "signalfd4": "EMFILE ENFILE ENODEV ENOMEM",
    "inotify_init1": "EMFILE ENOMEM", "inotify_add_watch": "EACCES ENOMEM ENOSPC",
    "clone": "EAGAIN ENOMEM EPERM", "clone3": "EAGAIN ENOMEM EPERM ENOSYS", "fork": "EAGAIN ENOMEM", "vfork": "EAGAIN ENOMEM",
    "execve": "E2BIG EACCES EIO EMFILE ENOENT ENOMEM EPERM", "wait4": "ECHILD EINTR", "waitid": "ECHILD EINTR",
    "kill": "EPERM ESRCH", "tgkill": "EAGAIN EPERM ESRCH", "pidfd_open": "EMFILE ENFILE ENODEV ENOMEM ESRCH ENOSYS",
    "uname": "EPERM", "sysinfo": "EPERM", "prctl": "EINVAL EPERM EACCES", "prlimit64": "EPERM EINVAL",
    "setsid": "EPERM", "setpgid": "EACCES EPERM ESRCH", "rt_sigaction": "EINVAL", "rt_sigprocmask": "EINVAL",
    "sigaltstack": "ENOMEM EPERM", "personality": "EINVAL EPERM", "membarrier": "ENOSYS EPERM EINVAL",
    # Futexes are used by glibc and the standard library, which abort on errors that the kernel never returns.
    "futex": "", "futex:wait": "EAGAIN EINTR", "nanosleep": "EINTR", "clock_nanosleep": "EINTR", "sched_yield": "EPERM",
    "clock_gettime": "EINVAL ENODEV EPERM", "clock_getres": "EINVAL EPERM", "getrandom": "EINTR ENOSYS",
    "sched_setaffinity": "EINVAL EPERM ESRCH", "sched_getaffinity": "EINVAL ESRCH EPERM",
    "sched_setscheduler": "EINVAL EPERM ESRCH", "sched_getscheduler": "EPERM ESRCH", "setpriority": "EACCES EPERM ESRCH",
    "getpriority": "ESRCH", "dup": "EMFILE", "dup2": "EMFILE EINTR EBUSY", "dup3": "EMFILE EINTR EBUSY",
    "close_range": "EMFILE ENOMEM", "io_uring_setup": "ENOSYS EPERM", "perf_event_open": "EACCES ENOSYS EPERM",
}
# Calls without documented errors, and those with which the program ends.
INFALLIBLE = {"getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "exit", "exit_group", "rt_sigreturn",
              "set_robust_list", "rseq", "set_tid_address", "arch_prctl", "restart_syscall", "umask", "gettimeofday", "time"}
# Calls that transfer bytes, and the position of the argument that says how many.
LENGTH_ARGUMENTS = {"read": 2, "write": 2, "pread64": 2, "pwrite64": 2, "recvfrom": 2, "sendto": 2, "getrandom": 1,
                    "readv": 2, "writev": 2}
WITH_DESCRIPTOR = {"read", "write", "close", "fstat", "lseek", "ioctl", "pread64", "pwrite64", "readv", "writev", "fcntl",
                   "ftruncate", "fsync", "fdatasync"}
WITH_PATH = {"openat": 1, "newfstatat": 1, "statx": 1, "readlink": 0, "mkdir": 0, "unlink": 0, "unlinkat": 1, "rename": 0,
             "renameat2": 1, "open": 0, "stat": 0}
# Errors that a peer or the network may cause as well, so they do not show whose failure it is.
NETWORK_ERRNOS = {"ECONNRESET", "EPIPE", "ETIMEDOUT", "ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ECONNABORTED", "EPROTO",
                  "ENETDOWN", "ENOTCONN"}
# Calls whose error means that written data is lost. The scenarios write only what was requested.
LOSING_WRITES = {"fsync:run", "fdatasync:run", "fsync:stdout", "fdatasync:stdout"}
SIGNALS = {"SIGINT": signal.SIGINT, "SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}

# --- The tracer: ptrace(2), seccomp(2) ----------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_SYSCALL = 7, 12, 13, 24
PTRACE_SEIZE, PTRACE_LISTEN = 0x4206, 0x4208
# SECCOMP, EXEC, CLONE, VFORK, FORK, SYSGOOD; EXITKILL.
PTRACE_OPTIONS = 0x80 | 0x10 | 0x8 | 0x4 | 0x2 | 0x1 | 0x100000
EVENT_EXEC, EVENT_SECCOMP, EVENT_STOP = 4, 7, 128
WALL = 0x40000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_TRACE = 0x7FFF0000, 0x7FF00000


class Registers(ctypes.Structure):
    """The registers of a stopped thread: user_regs_struct of x86-64."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base "
        "ds es fs gs").split()]


ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")


def ptrace(request, tid, data=None):
    """Returns whether the request was carried out; a thread may be gone at any time."""
    return LIBC.ptrace(request, tid, None, data) == 0


class BpfInstruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class BpfProgram(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(BpfInstruction))]


def stop_at(numbers):
    """Makes these calls of this process and its children stop for the tracer; all calls for None."""
    load, equals, answer = 0x20, 0x15, 0x06
    code = [BpfInstruction(answer, 0, 0, RET_TRACE)]
    if numbers is not None:
        code = [BpfInstruction(load, 0, 0, 0)]
        for at, number in enumerate(numbers):
            code.append(BpfInstruction(equals, len(numbers) - at, 0, number))
        code += [BpfInstruction(answer, 0, 0, RET_ALLOW), BpfInstruction(answer, 0, 0, RET_TRACE)]
    program = BpfProgram(len(code), (BpfInstruction * len(code))(*code))
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        os._exit(125)


class Tracer:
    """Runs one command under ptrace: counts its calls, and applies the fault to one of them."""

    def __init__(self, command, folder, out, fault):
        self.fault = fault
        self.counts = {}
        self.fired = False
        # Whether a process has reached `main`, by process id; the process of each thread.
        self.in_main = {}
        self.process = {}
        self.resume_at = None
        self.changed = None
        ready, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.exec_command(command, folder, out, ready)
        os.close(ready)
        if not ptrace(PTRACE_SEIZE, self.pid, PTRACE_OPTIONS):
            os.kill(self.pid, signal.SIGKILL)
            raise OSError(ctypes.get_errno(), "ptrace: may this process trace its children?")
        os.write(go, b"x")
        os.close(go)

    def exec_command(self, command, folder, out, ready):
        try:
            os.setpgid(0, 0)
            os.read(ready, 1)
            os.chdir(folder)
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{out}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            numbers = None
            if self.fault:
                numbers = sorted({SYSCALL_NUMBERS[self.fault.name], SYSCALL_NUMBERS["rt_sigaction"]})
            stop_at(numbers)
            os.execv(command[0], command)
        finally:
            os._exit(126)

    def run(self):
        """Returns the command's status, of waitpid(2); None for a command that was killed for hanging."""
        end = time.monotonic() + MAX_WAIT_S
        hung = False

        def tick(*_):
            nonlocal hung
            now = time.monotonic()
            if self.resume_at and now >= self.resume_at[0]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.resume_at[1], signal.SIGCONT)
                self.resume_at = None
            if now >= end:
                hung = True
                for pid in set(self.process.values()) | {self.pid}:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        ended = None
        while True:
            try:
                tid, status = os.waitpid(-1, WALL)
            except ChildProcessError:
                break
            if not os.WIFSTOPPED(status):
                if tid == self.pid:
                    ended = status
                continue
            self.on_stop(tid, os.WSTOPSIG(status), status >> 16)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return None if hung else ended

    def change_argument(self, tid, registers, name, value):
        """Passes another argument to the kernel. The register is restored afterwards, because compilers rely on that."""
        self.changed = (tid, name, getattr(registers, name))
        setattr(registers, name, value)
        ptrace(PTRACE_SETREGS, tid, ctypes.byref(registers))

    def restore_argument(self):
        (tid, name, value), self.changed = self.changed, None
        registers = Registers()
        if ptrace(PTRACE_GETREGS, tid, ctypes.byref(registers)):
            setattr(registers, name, value)
            ptrace(PTRACE_SETREGS, tid, ctypes.byref(registers))

    def on_stop(self, tid, sig, event):
        if event == EVENT_SECCOMP:
            self.on_call(tid)
            if self.changed and self.changed[0] == tid:
                # Continues to the end of the call.
                ptrace(PTRACE_SYSCALL, tid)
                return
        elif event == 0 and sig == signal.SIGTRAP | 0x80:
            self.restore_argument()
            sig = 0
        elif event == EVENT_EXEC:
            self.in_main[self.of(tid)] = False
        elif event == EVENT_STOP and sig in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            ptrace(PTRACE_LISTEN, tid)
            return
        ptrace(PTRACE_CONT, tid, sig if event == 0 else 0)

    def of(self, tid):
        if tid not in self.process:
            try:
                text = pathlib.Path(f"/proc/{tid}/status").read_text(encoding="utf-8")
            except OSError:
                return tid
            self.process[tid] = int(re.search(r"^Tgid:\s*(\d+)", text, re.MULTILINE)[1])
        return self.process[tid]

    def on_call(self, tid):
        registers = Registers()
        if not ptrace(PTRACE_GETREGS, tid, ctypes.byref(registers)):
            return
        pid = self.of(tid)
        name = SYSCALL_NAMES.get(registers.orig_rax, str(registers.orig_rax))
        if not self.in_main.get(pid):
            # `main` begins with this call; before it come the loader and the standard library.
            self.in_main[pid] = name == "rt_sigaction" and registers.rdi == signal.SIGXFSZ
            return
        if name in INFALLIBLE:
            return
        kind = self.kind(pid, name, registers)
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.fault and not self.fired and kind == self.fault.kind and count == self.fault.count:
            self.fired = True
            self.apply_fault(tid, pid, registers)

    def kind(self, pid, name, registers):
        """Returns the call's name, for some calls with what their descriptor or path refers to."""
        leads_to = None
        if name == "futex":
            # Only FUTEX_WAIT and FUTEX_WAIT_BITSET wait.
            return "futex:wait" if registers.rsi & 0x7F in (0, 9) else "futex:wake"
        try:
            if name in WITH_DESCRIPTOR:
                leads_to = os.readlink(f"/proc/{pid}/fd/{ctypes.c_int(registers.rdi).value}")
            elif name in WITH_PATH:
                leads_to = path_at(pid, getattr(registers, ARGUMENTS[WITH_PATH[name]]))
                folder = ctypes.c_int(registers.rdi).value
                if WITH_PATH[name] == 1 and folder >= 0 and not leads_to.startswith("/"):
                    leads_to = f"{os.readlink(f'/proc/{pid}/fd/{folder}')}/{leads_to}"
        except OSError:
            return name
        return name if leads_to is None else f"{name}:{descriptor_class(leads_to)}"

    def apply_fault(self, tid, pid, registers):
        how = self.fault.how
        if how == "short":
            place = ARGUMENTS[LENGTH_ARGUMENTS[self.fault.name]]
            if getattr(registers, place) > 1:
                self.change_argument(tid, registers, place, 1)
            return
        if how in SIGNALS:
            if how == "SIGSTOP":
                self.resume_at = (time.monotonic() + SIGSTOP_DURATION_S, pid)
            os.kill(pid, SIGNALS[how])
            return
        if self.fault.name == "brk":
            # A brk that fails returns the current break instead of an errno.
            self.change_argument(tid, registers, "rdi", 0)
            return
        number = errno.EFBIG if how == "SIGXFSZ" else getattr(errno, how)
        registers.orig_rax = ctypes.c_uint64(-1).value
        registers.rax = ctypes.c_uint64(-number).value
        ptrace(PTRACE_SETREGS, tid, ctypes.byref(registers))
        if how == "SIGXFSZ":
            LIBC.syscall(SYSCALL_NUMBERS["tgkill"], pid, tid, signal.SIGXFSZ)


def path_at(pid, address):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        # Reads to the end of the page only, because the next one may not be mapped.
        text = memory.read(min(256, 4096 - address % 4096))
    return text.split(b"\0")[0].decode(errors="replace")


def descriptor_class(leads_to):
    for start, found in (("socket:", "socket"), ("pipe:", "pipe"), ("anon_inode:", "event"), ("/proc", "proc"),
                         ("/sys", "sys"), ("/dev/null", "null"), ("/etc", "etc"), ("/dev", "dev")):
        if leads_to.startswith(start):
            return found
    name = leads_to.rsplit("/", 1)[-1]
    if name.endswith(".out"):
        return "stdout"
    if name.endswith(".err"):
        return "stderr"
    return "file" if leads_to.startswith("/usr") or leads_to.startswith("/lib") else "run"


class TracedCommand:
    """A command with its tracer, which is a separate process."""

    def __init__(self, command, folder, name, fault):
        self.out = f"{folder}/{name}"
        self.reader, writer = os.pipe()
        self.tracer = os.fork()
        if self.tracer == 0:
            try:
                os.close(self.reader)
                tracer = Tracer([str(word) for word in command], folder, self.out, fault)
                os.write(writer, f"{tracer.pid}\n".encode())
                status = tracer.run()
                answer = {"status": status, "counts": tracer.counts, "fired": tracer.fired}
                with os.fdopen(writer, "wb") as pipe:
                    pipe.write(json.dumps(answer).encode())
                os._exit(0)
            except BaseException as error:  # pylint: disable=broad-except
                print(f"tests/faults.py: the tracer: {error!r}", file=sys.stderr)
            finally:
                os._exit(1)
        os.close(writer)
        self.pipe = os.fdopen(self.reader, "rb")
        self.pid = int(self.pipe.readline() or b"0")
        self.answer = None

    def wait(self):
        if self.answer is None:
            self.answer = json.loads(self.pipe.read() or b"{}")
            self.pipe.close()
            os.waitpid(self.tracer, 0)
            if not self.answer:
                raise RuntimeError("the tracer failed")
        return self

    def is_over(self, wait_s=0):
        """Returns whether the command has ended, or ends within this time."""
        return self.answer is not None or bool(select.select([self.pipe], [], [], wait_s)[0])

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def text(self, which):
        try:
            return pathlib.Path(f"{self.out}.{which}").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def code(self):
        """Returns the exit code: negative if a signal ended the command, None if it hung."""
        status = self.answer["status"]
        return None if status is None else os.waitstatus_to_exitcode(status)


class Fault:
    def __init__(self, scenario, kind, how, count):
        self.scenario, self.kind, self.how, self.count = scenario, kind, how, count
        self.name = kind.split(":")[0]

    def __str__(self):
        return f"{self.scenario} {self.kind} {self.how} {self.count}"


# --- Scenarios ----------------------------------------------------------------------------------

FIND = """
name = "line"
target = "http://{address}"
[call.http]
path = "/bytes/100"
[load]
rate = "300/s"
connections = 4
[objective]
"p99" = "< 5s"
"""

LADDER = """
name = "rungs"
[call.http]
path = "/bytes/100"
[load]
rate = "400/s"
connections = 2
[[ladder.rungs]]
name = "one"
target = "http://{address}"
[[ladder.rungs]]
name = "other"
target = "http://{address}"
"""

RELAY = """
admin = "{admin}"
[[route]]
name = "plain"
protocol = "tcp"
listen = "{listen}"
upstream = ["{upstream}"]
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Scenarios:
    """The commands to which faults are applied. Each scenario returns the problems found, and the traced command."""

    def __init__(self, program, target, certs):
        self.program, self.target, self.certs = program, target, certs

    def load(self, url, *more):
        return [self.program, "http", url, "--clients", "4", "--calls", str(LOAD_CALLS), "--objective", "errors < 0.1%", "--out",
                "run", *more]

    def check_load(self, folder, fault, command, documents=()):
        traced = TracedCommand(command, folder, "traced", fault).wait()
        wrong = check_command(traced, fault) + self.check_run(traced, folder, fault)
        return traced, wrong + (check_documents(folder, documents) if traced.code == 0 else [])

    def run(self, folder, fault):
        return self.check_load(folder, fault, self.load(
            f"http://{self.target}/bytes/3KiB", "--requests", "--junit", "junit.xml", "--markdown", "run.md",
            "--html", "run.html"), ["junit.xml", "run.md", "run.html"])

    def paced(self, folder, fault):
        return self.check_load(folder, fault, [
            self.program, "http", f"http://localhost:{self.target.split(':')[1]}/bytes/100", "--rate", "250/s", "--calls",
            str(LOAD_CALLS), "--connections", "8", "--calls-per-connection", "20", "--objective", "errors < 0.1%", "--out", "run", "--telemetry", "127.0.0.1:0"])

    def processes(self, folder, fault):
        return self.check_load(folder, fault, self.load(
            f"http://{self.target}/bytes/100", "--processes", "2", "--requests"))

    def tls(self, folder, fault):
        port = free_port()
        with self.server(folder, ["files", "--listen", f"127.0.0.1:{port}", "--tls-cert", f"{self.certs}/server.crt",
                                  "--tls-key", f"{self.certs}/server.key"], port):
            return self.check_load(folder, fault, self.load(
                f"https://localhost:{port}/bytes/20KiB", "--ca", f"{self.certs}/ca.crt", "--calls-per-connection", "10"))

    def find(self, folder, fault):
        pathlib.Path(folder, "find.toml").write_text(FIND.format(address=self.target), encoding="utf-8")
        traced = TracedCommand([self.program, "find", "find.toml", "--budget", "4s", "--trial", "400ms", "--confirm", "800ms", "--precision", "20%",
                         "--most", "1200/s", "--out", "run"],
                        folder, "traced", fault).wait()
        return traced, check_command(traced, fault) + check_directory(self.program, traced, folder, "run", "search.json")

    def ladder(self, folder, fault):
        pathlib.Path(folder, "ladder.toml").write_text(LADDER.format(address=self.target), encoding="utf-8")
        traced = TracedCommand([self.program, "ladder", "ladder.toml", "--slice", "300ms", "--rounds", "2", "--out", "run"], folder, "traced", fault).wait()
        return traced, check_command(traced, fault) + check_directory(self.program, traced, folder, "run", "ladder.json")

    def shard(self, folder, fault):
        pathlib.Path(folder, "shards.toml").write_text(FIND.format(address=self.target), encoding="utf-8")
        words = ["run", "shards.toml", "--rate", "200/s", "--calls", str(LOAD_CALLS), "--objective", "errors < 0.1%",
                 "--rendezvous", f"file://{folder}/meeting", "--run-id", "r", "--shards", "2", "--barrier", "20s", "--out"]
        with open(f"{folder}/other", "wb") as out:
            other = subprocess.Popen([self.program, *words, "other-run", "--shard", "1"], cwd=folder, stdout=out, stderr=out)
        try:
            traced = TracedCommand([self.program, *words, "run", "--shard", "0"], folder, "traced", fault).wait()
            wrong = check_command(traced, fault) + self.check_run(traced, folder, fault)
            try:
                code = other.wait(MAX_WAIT_S if traced.code == 0 else 10)
                if traced.code != 0 and code == 0:
                    wrong.append("the other shard ended with 0")
            except subprocess.TimeoutExpired:
                # The other shards notice a lost leader after two minutes, which tests/distributed/shards covers.
                if traced.code == 0:
                    wrong.append("the other shard hangs")
            return traced, wrong
        finally:
            other.kill()
            other.wait()

    def report(self, folder, fault):
        shutil.copytree(f"{self.certs}/../finished", f"{folder}/run")
        traced = TracedCommand([self.program, "report", "run", "--html", "run.html", "--markdown", "-"], folder, "traced",
                        fault).wait()
        wrong = check_command(traced, fault)
        if traced.code == 0:
            wrong += check_documents(folder, ["run.html"])
            if "200" not in traced.text("out"):
                wrong.append("ended with 0 without a report on stdout")
        return traced, wrong

    @contextlib.contextmanager
    def server(self, folder, words, port):
        with open(f"{folder}/server", "wb") as out:
            child = subprocess.Popen([self.program, "serve", *words], cwd=folder, stdout=out, stderr=out)
        try:
            wait_for_port(port, lambda: child.poll() is not None)
            yield child
        finally:
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def check_listener(self, folder, fault, command, port, url, more=()):
        """Checks that a server keeps serving after the fault, or exits with a message."""
        traced = TracedCommand(command, folder, "traced", fault)
        wrong = []
        wait_for_port(port, traced.is_over)
        for name in ("first", "second"):
            if traced.is_over():
                break
            done = self.run_load(folder, url, name, more)
            if name == "second" and done.returncode != 0 and not traced.is_over():
                # The fault may have occurred only now.
                done = self.run_load(folder, url, "third", more)
                if done.returncode != 0 and not traced.is_over():
                    wrong.append(f"serves nobody any more: {first_line(done.stderr)}")
        stopped_by_us = not traced.is_over()
        traced.signal(signal.SIGTERM)
        if not traced.is_over(20):
            # The fault may have prevented the first signal from being handled.
            traced.signal(signal.SIGTERM)
        traced.wait()
        wrong += check_command(traced, fault)
        if not stopped_by_us and traced.code == 0 and fault.how != "SIGINT":
            wrong.append("ended with 0 by itself")
        return traced, wrong

    def run_load(self, folder, url, name, more):
        load = [self.program, "http", url, "--clients", "4", "--calls", "100", "--calls-per-connection", "10", "--out", name,
                "-q", *more]
        return subprocess.run(load, cwd=folder, capture_output=True, text=True, timeout=MAX_WAIT_S, check=False)

    def serve(self, folder, fault):
        port = free_port()
        return self.check_listener(folder, fault, [self.program, "serve", "http", "--listen", f"127.0.0.1:{port}", "--drain",
                                                "2s"], port, f"http://127.0.0.1:{port}/bytes/3KiB")

    def files(self, folder, fault):
        port = free_port()
        pathlib.Path(folder, "page.txt").write_text("a page\n" * 500, encoding="utf-8")
        return self.check_listener(
            folder, fault, [self.program, "serve", "files", ".", "--listen", f"127.0.0.1:{port}", "--drain", "2s", "--tls-cert",
                            f"{self.certs}/server.crt", "--tls-key", f"{self.certs}/server.key"], port,
            f"https://localhost:{port}/page.txt", ["--ca", f"{self.certs}/ca.crt"])

    def relay(self, folder, fault):
        port, admin = free_port(), free_port()
        pathlib.Path(folder, "relay.toml").write_text(
            RELAY.format(admin=f"127.0.0.1:{admin}", listen=f"127.0.0.1:{port}", upstream=self.target), encoding="utf-8")
        return self.check_listener(folder, fault, [self.program, "relay", "sidecar", "relay.toml"], port,
                                f"http://127.0.0.1:{port}/bytes/3KiB")

    def check_run(self, traced, folder, fault):
        """Returns how the run's directory and documents contradict its exit code."""
        wrong = check_directory(self.program, traced, folder, "run", "run.json")
        try:
            run = json.loads(pathlib.Path(folder, "run/run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return wrong + (["ended with 0 without a run"] if traced.code == 0 else [])
        except ValueError as error:
            return wrong + [f"run.json is no JSON: {error}"]
        total = run.get("total") or {}
        if traced.code == 0:
            # The run has an objective, which an invalid run does not meet.
            if run["state"] != "complete":
                wrong.append(f"ended with 0, and the run is {run['state']}")
            if (total.get("ok") or 0) + (total.get("errors") or 0) != LOAD_CALLS:
                wrong.append(f"ended with 0, and {total.get('ok')} + {total.get('errors')} calls ended of {LOAD_CALLS}")
            wrong += check_files(folder, LOAD_CALLS)
            if "errors" not in traced.text("out"):
                wrong.append("ended with 0 without a report on stdout")
        if run.get("state") != "running" and (run.get("count_check") or {}).get("matches") is False:
            wrong.append(f"counts do not add up: {run['count_check']}")
        ours = fault is not None and fault.how not in NETWORK_ERRNOS
        if ours and traced.code == 99:
            codes = [(error.get("code"), error.get("count")) for error in total.get("errors_by_code") or []]
            wrong.append(f"99, the target's failure: {codes or first_line(traced.text('err'))}")
        return wrong


def check_command(traced, fault):
    wrong = []
    code, said = traced.code, traced.text("err")
    how = fault.how if fault else None
    if code is None:
        return [f"hangs: killed after {MAX_WAIT_S} s"]
    if "a bug in plimsoll" in said or "panicked at" in said or code in (70, 101):
        line = next((line for line in said.splitlines() if "panicked" in line), first_line(said))
        wrong.append(f"panic: {line}")
    elif how in ("SIGINT", "SIGKILL") and code == -SIGNALS[how]:
        # The default action of the signal, which SIGINT also has before the handler is installed.
        pass
    elif code < 0:
        # Without memory nothing more can be reported.
        if not (code == -signal.SIGABRT and "memory allocation of" in said):
            wrong.append(f"ended by {signal.Signals(-code).name}: {first_line(said)}")
    elif code > 0 and how not in SIGNALS and not (said + traced.text("out")).strip():
        if not (fault and fault.kind == "write:stderr"):
            wrong.append(f"ended with {code} without a word")
    elif how and how not in NETWORK_ERRNOS and how not in SIGNALS and ":etc" not in fault.kind and "is the server running" in said:
        wrong.append(f"asks for the server: {first_line(said)}")
    elif code == 2:
        wrong.append(f"2, a usage error: {first_line(said)}")
    elif code == 0 and traced.answer["fired"] and how in ("EDQUOT", "EIO", "ENOSPC") and fault.kind in LOSING_WRITES:
        wrong.append("ended with 0, and the file system has said that it did not keep a file")
    return wrong


def check_directory(program, traced, folder, name, document):
    """Checks that everything in the directory can be read."""
    if not pathlib.Path(folder, name, document).exists():
        is_missing = traced.code in (0, 90, 99) and document != "run.json"
        return [f"ended with {traced.code} without {document}"] if is_missing else []
    read = subprocess.run([program, "report", name], cwd=folder, capture_output=True, text=True, timeout=MAX_WAIT_S, check=False)
    if "panicked" in read.stderr or read.returncode not in (0, 1, 90, 99):
        return [f"plimsoll report: {read.returncode}: {first_line(read.stderr)}"]
    # A search or a ladder that could not continue may have no result, and reports that.
    if read.returncode == 1 and (document == "run.json" or traced.code in (0, 90, 99)):
        return [f"plimsoll report cannot read what {traced.code} left: {first_line(read.stderr)}"]
    return []


def check_files(folder, calls):
    wrong = []
    run = pathlib.Path(folder, "run")
    try:
        if "started:" not in (run / "log.txt").read_text(encoding="utf-8"):
            wrong.append("ended with 0, and log.txt says nothing of the start")
        for line in (run / "intervals.jsonl").read_text(encoding="utf-8").splitlines():
            json.loads(line)
        records = run / "requests.jsonl.zst"
        if records.exists():
            text = subprocess.run(["zstd", "-dcq", records], capture_output=True, check=False)
            if text.returncode or len(text.stdout.splitlines()) != calls:
                wrong.append(f"ended with 0, and requests.jsonl.zst has {len(text.stdout.splitlines())} of {calls} lines")
    except (OSError, ValueError) as error:
        wrong.append(f"ended with 0, and the run directory: {error}")
    return wrong


def check_documents(folder, names):
    ends = {".xml": "</testsuites>", ".html": "</html>", ".md": ""}
    wrong = []
    for name in names:
        path = pathlib.Path(folder, name)
        text = path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
        if not text or not text.endswith(ends[path.suffix]):
            wrong.append(f"ended with 0 without a whole {name}")
    return wrong


def first_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0] if lines else "nothing said")[:300]


def wait_for_port(port, is_over):
    end = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < end and not is_over():
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)


# --- Drawing and running faults -----------------------------------------------------------------

SCENARIO_NAMES = ["run", "paced", "processes", "tls", "find", "ladder", "shard", "report", "serve", "files", "relay"]
# How often a scenario is drawn; long ones are rare.
WEIGHTS = {"run": 24, "paced": 12, "processes": 12, "tls": 12, "find": 2, "ladder": 4, "shard": 1, "report": 12, "serve": 8,
           "files": 7, "relay": 8}


def failure_modes(kind):
    """Returns the ways in which a call of this kind can fail."""
    name = kind.split(":")[0]
    found = ERRNOS.get(kind, ERRNOS[name]).split() + ["SIGSTOP", "SIGINT", "SIGKILL"]
    # The program relies on epoll(7): a read of fewer bytes than requested has emptied the socket.
    is_socket_read = name == "recvfrom" or kind in ("read:socket", "readv:socket")
    if name in LENGTH_ARGUMENTS and not is_socket_read and not kind.endswith(":event"):
        found.append("short")
    if name in ("write", "pwrite64", "writev") and kind.endswith((":run", ":stdout", ":stderr")):
        found.append("SIGXFSZ")
    return found


def draw_faults(profiles, number, seed):
    chance = random.Random(seed)
    names = sorted(profiles)
    faults = []
    for _ in range(number):
        scenario = chance.choices(names, [WEIGHTS[name] for name in names])[0]
        kind = chance.choice(sorted(profiles[scenario]))
        how = chance.choice(failure_modes(kind))
        seen = profiles[scenario][kind]
        count = chance.choice([1, max(1, (seen + 1) // 2), max(1, seen * 9 // 10)])
        faults.append(Fault(scenario, kind, how, count))
    return faults


def run_scenario(scenarios, fault, name):
    """Returns the problems found in one scenario, whether the fault occurred, and the calls that were made."""
    folder = tempfile.mkdtemp(prefix="fault-")
    try:
        traced, wrong = getattr(scenarios, name)(folder, fault)
        shown = first_line(traced.text("err"))
        return wrong, traced.answer["fired"], traced.answer["counts"], traced.code, shown
    except Exception as error:  # pylint: disable=broad-except
        return [f"the harness: {error!r}"], False, {}, None, ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="plimsoll")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is drawn (the time)")
    parser.add_argument("--number", type=int, default=200, help="of faults (200)")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="faults at a time (two a processor)")
    parser.add_argument("--scenario", action="append", choices=SCENARIO_NAMES, help="only of this one; repeatable")
    parser.add_argument("--only", action="append", metavar="FAULT", help="this one, as a finding names it; repeatable")
    parser.add_argument("--list", action="store_true", help="print what each scenario calls")
    parser.add_argument("--results", type=pathlib.Path, help="write each fault and what came of it to this file")
    options = parser.parse_args()
    if os.uname().machine != "x86_64":
        sys.exit(f"tests/faults.py: {os.uname().machine}: only x86_64 is supported")
    program = options.program.resolve()
    # Disables backtraces, whose text would be taken for findings.
    os.environ["RUST_BACKTRACE"] = "0"
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        port = free_port()
        scenarios = Scenarios(str(program), f"127.0.0.1:{port}", f"{place}/certs")
        subprocess.run([program, "certs", "certs"], cwd=place, check=True, capture_output=True)
        with scenarios.server(place, ["http", "--listen", f"127.0.0.1:{port}"], port):
            subprocess.run([program, "http", f"http://127.0.0.1:{port}/bytes/100", "--clients", "4", "--calls", str(LOAD_CALLS),
                            "--out", "finished", "-q"], cwd=place, check=True, capture_output=True)
            return run_faults(options, scenarios)


def run_faults(options, scenarios):
    only = [parse_fault(text) for text in options.only or []]
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        if only:
            faults = only
        else:
            names = options.scenario or SCENARIO_NAMES
            profiles = {}
            for name, found in zip(names, pool.map(run_scenario, *zip(*[(scenarios, None, name) for name in names]))):
                wrong, _, profiles[name], code, shown = found
                unknown = sorted({kind.split(":")[0] for kind in profiles[name]} - set(ERRNOS))
                if unknown:
                    sys.exit(f"tests/faults.py: {name} calls {' '.join(unknown)}: add to SYSCALL_NUMBERS, and to ERRNOS what the manual lists")
                # Counting every call slows the program, so the load may be late.
                if wrong or code not in (0, 90):
                    sys.exit(f"tests/faults.py: {name} without a fault: {code}, {wrong}: {shown}")
                if options.list:
                    for kind, count in sorted(profiles[name].items()):
                        print(f"{name} {kind} {count}: {' '.join(failure_modes(kind))}")
            if options.list:
                return 0
            print(f"seed {options.seed}: {options.number} faults", flush=True)
            faults = draw_faults(profiles, options.number, options.seed)
        jobs = {pool.submit(run_scenario, scenarios, fault, fault.scenario): fault for fault in faults}
        happened, bad, codes = 0, 0, {}
        for job in concurrent.futures.as_completed(jobs):
            fault, (wrong, fired, _, code, shown) = jobs[job], job.result()
            happened += fired
            codes[code] = codes.get(code, 0) + 1
            bad += bool(wrong)
            for finding in wrong:
                print(f"{fault}: {finding}", flush=True)
            if only and not wrong:
                print(f"{fault}: no problem: {code}, {shown}" if fired else f"{fault}: the call was not reached")
            if options.results:
                with options.results.open("a", encoding="utf-8") as out:
                    print(json.dumps([str(fault), fired, code, wrong, shown]), file=out)
    ended = ", ".join(f"{code} {count}×" for code, count in sorted(codes.items(), key=lambda of: -of[1]))
    print(f"{len(faults)} faults, of which {happened} occurred; exit codes {ended}; {bad} with problems")
    return 1 if bad or happened < len(faults) / 2 else 0


def parse_fault(text):
    words = text.split()
    if len(words) != 4 or words[0] not in SCENARIO_NAMES or words[1].split(":")[0] not in SYSCALL_NUMBERS or not words[3].isdigit():
        raise SystemExit(f"tests/faults.py: --only '{text}': expected SCENARIO CALL HOW COUNT, as in 'run write:run ENOSPC 3'")
    return Fault(*words[:3], int(words[3]))


if __name__ == "__main__":
    sys.exit(main())
