"""Workers of bench_scale.py as processes:  scale_group.py WORKERS MBIT_PER_S PROGRAM ARGUMENTS

Starts WORKERS processes of the program beside this one, and prints the list of the records that
they print last, as JSON. MBIT_PER_S limits what each sends, and 0 does not; a limit needs a network
namespace of its own around this program, see `run_group()`. A worker that fails ends the others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "inst" / "python"
LIMIT_S = 240.0
FREE = 0  # a limit that is none
LOOPBACK = ("dev", "lo")


def run_group(workers: int, mbit_per_s: int, program: str, *arguments: Any) -> list[Any]:
    """The records of all workers; a limited network is that of a namespace of its own."""
    command = [sys.executable, __file__, str(workers), str(mbit_per_s), program]
    apart = [] if mbit_per_s == FREE else ["unshare", "--map-root-user", "--net", "--"]
    done = subprocess.run(
        [*apart, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 30,
    )
    if done.returncode:
        raise RuntimeError(f"{program} on {workers} workers failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def explain_no_limit() -> str:
    """Why links cannot be limited here, or ""."""
    try:
        command = ["unshare", "--map-root-user", "--net", "--", sys.executable, __file__, "try"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as error:
        return str(error)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def limit_links(workers: int, mbit_per_s: int) -> None:
    """Limits what each worker's address sends, in this process's own network namespace.

    A worker's gradients are fetched by its neighbour, so they leave from the worker's address.
    """
    _call("ip", "link", "set", "lo", "up")
    _call("tc", "qdisc", "add", *LOOPBACK, "root", "handle", "1:", "htb", "r2q", "1000")
    for worker in range(1, workers + 1):
        rate = ["htb", "rate", f"{mbit_per_s}mbit", "burst", "2k", "cburst", "2k"]
        _call("tc", "class", "add", *LOOPBACK, "parent", "1:", "classid", f"1:{worker}", *rate)
        source = ["u32", "match", "ip", "src", f"127.0.0.{worker}/32", "flowid", f"1:{worker}"]
        _call("tc", "filter", "add", *LOOPBACK, "parent", "1:", "protocol", "ip", *source)


def start_workers(
    command: list[str], addresses: list[str], logs: list[IO[str]]
) -> list[subprocess.Popen[str]]:
    """A process for each address, in groups of their own."""
    return [
        subprocess.Popen(
            command,
            env=make_environment(addresses, place),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for place, log in enumerate(logs)
    ]


def make_environment(addresses: list[str], place: int) -> dict[str, str]:
    """What a worker must find; one alone finds no TF_CONFIG."""
    found = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    found.update(PYTHONPATH=str(CORE), TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
    if len(addresses) > 1:
        task = {"type": "worker", "index": place}
        found["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    return found


def choose_addresses(hosts: list[str]) -> list[str]:
    """Each host with a port that is free now; all are held at once, so that they differ."""
    with ExitStack() as held:
        found = []
        for host in hosts:
            listener = held.enter_context(socket.socket())
            listener.bind((host, 0))
            found.append(f"{host}:{listener.getsockname()[1]}")
        return found


def wait_all(processes: list[subprocess.Popen[str]]) -> None:
    """Waits until all have ended well.

    Raises:
        RuntimeError: if one failed, or it took too long.
    """
    until, ends = time.monotonic() + LIMIT_S, [None]
    while None in ends and not any(ends) and time.monotonic() < until:
        time.sleep(0.05)
        ends = [process.poll() for process in processes]
    failed = [f"worker {place} ended with {end}" for place, end in enumerate(ends, 1) if end]
    if failed or None in ends:
        raise RuntimeError("; ".join(failed) or f"did not end within {LIMIT_S:.0f} s")


def main(workers: int, mbit_per_s: int, program: str, arguments: list[str]) -> None:
    """Runs the group and prints its records."""
    hosts = ["127.0.0.1"] * workers
    if mbit_per_s != FREE:
        limit_links(workers, mbit_per_s)
        hosts = [f"127.0.0.{worker}" for worker in range(1, workers + 1)]
    command = [sys.executable, str(HERE / program), *arguments]
    with ExitStack() as files:
        logs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in hosts]
        processes = start_workers(command, choose_addresses(hosts), logs)
        try:
            wait_all(processes)
        except RuntimeError:
            print("\n".join(_read(log)[-2000:] for log in logs), file=sys.stderr)
            raise
        finally:
            _end(processes)
        print(json.dumps([json.loads(_read(log).splitlines()[-1]) for log in logs]))


def _call(*command: str) -> None:
    subprocess.run(command, check=True)


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "try":
        limit_links(1, 100)
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
