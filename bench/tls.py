#!/usr/bin/env python3
"""TLS handshakes and bulk side by side: client CPU, ours against `openssl s_time`.

Every client fetches the same file from the same server (`plimsoll serve files`, TLS 1.3, ECDSA P-256 and
X25519 unless a row names others), one after the other in every repetition; the figures are medians.
The CPU is that of the whole client process, user and system, from its start to its end. Rows with ML-KEM or
ML-DSA are for OpenSSL 3.5 and newer.

    bench/tls.py                                    everything
    bench/tls.py --quick                            two short repetitions
    bench/tls.py --rows full,resumed --reps 8
    bench/tls.py --openssl /opt/openssl/bin/openssl another openssl beside the system's
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys

import side_by_side as bench

SUITES = {
    "aes128": "TLS_AES_128_GCM_SHA256",
    "aes256": "TLS_AES_256_GCM_SHA384",
    "chacha": "TLS_CHACHA20_POLY1305_SHA256",
}
GROUP, KIND = "X25519", "ecdsa-p256"
HYBRID, ML_DSA = "X25519MLKEM768", "ml-dsa-65"
SMALL, LARGE = "1KiB", "64MiB"
SIZES = {SMALL: 1 << 10, "1MiB": 1 << 20, LARGE: 64 << 20}


class Row:
    """A measurement (mode, suite, size, algorithms) and its goals.

    `most`: µs of client CPU per handshake. `least`: GB of bulk data per client-CPU-second.
    `times`: ratio of our throughput per CPU-second to that of s_time.
    """

    def __init__(self, mode, suite, size, most=None, least=None, times=None, group=GROUP, kind=KIND):
        self.mode, self.suite, self.size = mode, suite, size
        self.group, self.kind = group, kind
        self.is_new = (group, kind) != (GROUP, KIND)
        self.most, self.least, self.times = most, least, times
        self.is_bulk = least is not None or size == LARGE


ROWS = {
    "full": Row("new", "aes128", SMALL, most=150, times=2.5),
    "full-checked": Row("checked", "aes128", SMALL),
    "resumed": Row("resumed", "aes128", SMALL, most=110, times=2.0),
    # Our client may cost at most 0.6 of OpenSSL's with the same algorithms.
    "full-mlkem": Row("new", "aes128", SMALL, times=1 / 0.6, group=HYBRID),
    "full-mldsa": Row("new", "aes128", SMALL, times=1 / 0.6, kind=ML_DSA),
    "full-both": Row("new", "aes128", SMALL, times=1 / 0.6, group=HYBRID, kind=ML_DSA),
    "resumed-both": Row("resumed", "aes128", SMALL, times=1 / 0.6, group=HYBRID, kind=ML_DSA),
    "bulk-aes128": Row("new", "aes128", LARGE, least=4.5, times=1.7),
    "bulk-aes256": Row("new", "aes256", LARGE, least=4.5, times=1.7),
    "bulk-chacha": Row("new", "chacha", LARGE, times=1.05),
    # s_time fetches one file per connection, so only our client is measured here.
    "kept-1MiB": Row("reused", "aes128", "1MiB", least=4.5),
}
WORDS = {
    "full": "full handshake + 1 KiB, chain checked once",
    "full-checked": "the same, chain checked every time",
    "resumed": "resumed handshake + 1 KiB",
    "full-mlkem": f"full handshake + 1 KiB, {HYBRID}",
    "full-mldsa": f"full handshake + 1 KiB, {ML_DSA}",
    "full-both": f"full handshake + 1 KiB, {HYBRID} and {ML_DSA}",
    "resumed-both": f"resumed handshake + 1 KiB, {HYBRID} and {ML_DSA}",
    "bulk-aes128": "64 MiB, AES-128-GCM",
    "bulk-aes256": "64 MiB, AES-256-GCM",
    "bulk-chacha": "64 MiB, ChaCha20-Poly1305",
    "kept-1MiB": "1 MiB on kept connections, AES-128-GCM",
}


class PlimsollClient:
    name = "plimsoll"

    def __init__(self, scratch, certs):
        self.scratch, self.certs, self.runs = scratch, certs, 0

    def command(self, row, address, seconds):
        self.runs += 1
        self.folder = self.scratch / f"run{self.runs}"
        mode = "new" if row.mode == "checked" else row.mode
        # One loop on one core and one file at a time in bulk, like s_time; but many handshakes in
        # flight, which s_time does not support.
        clients = ["--fleet" if row.mode == "reused" else "--clients", 1 if row.is_bulk or row.mode == "reused" else 16]
        return [
            bench.plimsoll(), "fetch", f"https://{address}/bytes/{SIZES[row.size]}",
            "--ca", self.certs[row.kind] / "ca.crt", "--mode", mode, "--duration", f"{seconds}s", "--workers", 1, *clients,
            "--suite", SUITES[row.suite], "--group", row.group, "--chain", "each" if row.mode == "checked" else "once",
            *(["--warmup", "300ms"] if mode == "resumed" else []), "--out", self.folder, "--json", "-q",
        ]

    def takes_part(self, _row):
        return True

    def counted(self, row, _measured):
        """Returns (connections or bytes, the problem or None)."""
        record = bench.run_record(self.folder)
        stages, total = record["stages"], record["total"]
        made = {key: sum(stage[f"connections_{key}"] for stage in stages) for key in ("full", "resumed")}
        if record["state"] != "complete" or total["errors"] or total["not_started"]:
            return 0, f"{record['state']}, {total['errors']} errors: {record['details'][:1]}"
        if total["ok"] * SIZES[row.size] != total["bytes_received"]:
            return 0, "a body of another size"
        if row.mode == "resumed" and (total["connections_full"] or not total["connections_resumed"]):
            return 0, f"{total['connections_full']} full handshakes among the resumed"
        if row.is_bulk:
            return sum(stage["bytes_received"] for stage in stages), None
        return made["full"] + made["resumed"], None


class STimeClient:
    def __init__(self, openssl):
        self.openssl = str(openssl)
        said = subprocess.run([self.openssl, "version"], capture_output=True, text=True, check=True).stdout
        self.name = "s_time " + said.split()[1]
        self.version = tuple(int(part) for part in re.findall(r"\d+", said.split()[1])[:2])

    def takes_part(self, row):
        """Returns whether s_time supports the row: it never reuses or verifies, and new algorithms need 3.5."""
        return row.mode not in ("reused", "checked") and (not row.is_new or self.version >= (3, 5))

    def command(self, row, address, seconds):
        return [
            self.openssl, "s_time", "-connect", address, "-www", f"/bytes/{SIZES[row.size]}", "-tls1_3",
            "-ciphersuites", SUITES[row.suite], "-reuse" if row.mode == "resumed" else "-new", "-time", seconds,
        ]

    def counted(self, row, measured):
        found = re.search(r"(\d+) connections in [\d.]+s; \S+ connections/user sec, bytes read (\d+)", measured.out)
        if not found:
            return 0, "no result line"
        connections, total = int(found.group(1)), int(found.group(2))
        if total < connections * SIZES[row.size]:
            return 0, "bodies too short"
        resumed = measured.out.count("r", measured.out.find("starting\n") + 9, found.start())
        if row.mode == "resumed" and resumed != connections:
            return 0, f"{resumed} of {connections} resumed"
        return (total if row.is_bulk else connections), None


def pin_group(scratch, group):
    """Pins the group by a configuration file, as s_time has no flag and may default to a post-quantum one."""
    path = scratch / f"{group}.cnf"
    path.write_text(f"openssl_conf = all\n[all]\nssl_conf = tls\n[tls]\nsystem_default = link\n[link]\nGroups = {group}\n")
    os.environ["OPENSSL_CONF"] = str(path)


def serve(certs):
    """Returns `serve files` with these certificates."""
    words = ["serve", "files", "--listen", "127.0.0.1:0", "--tls-cert", certs / "server.crt", "--tls-key", certs / "server.key"]
    return bench.Server([bench.plimsoll(), *words])


def run_once(client, row, address, seconds):
    """Returns (µs of CPU per connection or GB per CPU-second, the problem)."""
    measured = bench.measure(client.command(row, address, seconds))
    try:
        count, problem = client.counted(row, measured)
    except (OSError, ValueError, KeyError) as unreadable:
        count, problem = 0, f"{type(unreadable).__name__}: {unreadable}"
    if measured.exit != 0 or problem or not count:
        said = " / ".join((measured.errors.strip() or measured.out.strip()).splitlines()[-2:])
        return None, f"exit {measured.exit}: {problem or 'nothing fetched'}: {said[-200:]}"
    return (count / measured.cpu / 1e9 if row.is_bulk else measured.cpu / count * 1e6), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement (4)")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--openssl", action="append", default=[], metavar="PATH", help="another openssl to compare with; repeatable")
    parser.add_argument("--quick", action="store_true", help="two repetitions of two seconds")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed or a row is invalid")
    parser.add_argument("--json", metavar="FILE", help="write every repetition's figures")
    args = parser.parse_args()
    reps, seconds = (2, 2) if args.quick else (args.reps, args.seconds)
    rows = args.rows.split(",")
    for word in rows:
        if word not in ROWS:
            parser.error(f"unknown '{word}': expected one of {', '.join(ROWS)}")
    bench.warn_if_busy()

    figures, wrong = {}, {}
    with bench.Scratch() as scratch:
        kinds = sorted({ROWS[word].kind for word in rows})
        certs = {kind: bench.make_certificates(scratch / kind, kind) for kind in kinds}
        crew = [PlimsollClient(scratch, certs), *(STimeClient(path) for path in [bench.tool("openssl"), bench.tool("openssl-newer"), *args.openssl])]
        for rep in range(reps):
            with contextlib.ExitStack() as running:
                servers = {kind: running.enter_context(serve(certs[kind])) for kind in kinds}
                for word in rows:
                    row = ROWS[word]
                    pin_group(scratch, row.group)
                    # The order rotates with each repetition.
                    turn = rep % len(crew)
                    for client in crew[turn:] + crew[:turn]:
                        if not client.takes_part(row):
                            continue
                        figure, problem = run_once(client, row, servers[row.kind].address, seconds)
                        if problem:
                            wrong.setdefault((client.name, word), []).append(problem)
                        else:
                            figures.setdefault((client.name, word), []).append(figure)
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)
        names = [client.name for client in crew]
    missed = report(reps, rows, names, figures, wrong)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            table = [{"client": client, "row": word, "figures": values} for (client, word), values in figures.items()]
            json.dump({"machine": bench.machine(), "rows": table, "invalid": [[*key, said] for key, said in wrong.items()]}, file, indent=1)
    return 1 if args.gate and (missed or wrong) else 0


def report(reps, rows, names, figures, wrong):
    """Prints the table and returns the number of missed goals."""
    print(f"\nTLS 1.3, {KIND} and {GROUP} where no others are named, closed loop, medians of {reps} interleaved repetitions; {bench.machine()}")
    print("µs of client CPU per connection, or GB per client-CPU-second; and how many times more Plimsoll does in a CPU-second (lowest–highest repetition; goal)\n")
    table, counts = [], {True: 0, False: 0}

    def judge(held, goal):
        counts[held] += 1
        return f"; {goal} {'met' if held else 'MISSED'}"

    for word in rows:
        row = ROWS[word]
        ours = figures.get((names[0], word))
        cell = "invalid"
        if ours:
            middle = bench.median(ours)
            cell = f"{middle:.2f} GB/s" if row.is_bulk else f"{middle:.0f} µs"
            if row.most:
                cell += judge(middle <= row.most, f"≤ {row.most}")
            if row.least:
                cell += judge(middle >= row.least, f"≥ {row.least}")
        line = [WORDS[word], cell]
        for name in names[1:]:
            theirs = figures.get((name, word))
            if not theirs:
                line.append("invalid" if (name, word) in wrong else "–")
                continue
            middle = bench.median(theirs)
            cell = f"{middle:.2f} GB/s" if row.is_bulk else f"{middle:.0f} µs"
            if ours:
                each = [a / b if row.is_bulk else b / a for a, b in zip(ours, theirs)]
                ratio = bench.median(ours) / middle if row.is_bulk else middle / bench.median(ours)
                cell += f" = {ratio:.2f}× ({min(each):.2f}–{max(each):.2f}"
                if row.times:
                    cell += judge(ratio >= row.times, f"≥ {row.times:.2f}")
                cell += ")"
            line.append(cell)
        table.append(line)
    bench.print_table(["row", *names], table)
    for key, said in wrong.items():
        print(f"\ninvalid: {' '.join(key)}: {said[-1]}")
    print(f"\ngoals: {counts[True]} met, {counts[False]} missed")
    return counts[False]


if __name__ == "__main__":
    sys.exit(main())
