"""Joins the workers: they connect to the chief, which listens until all have joined."""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel.authentication import PROTOCOL, WORKER, AuthenticationError, Seal
from gpukeras.distributed.channel.errors import name_worker, worker_error
from gpukeras.distributed.channel.join_gate import (
    STRANGER_S,
    Hello,
    JoinGate,
    explain_strangers,
    wait_limit,
)
from gpukeras.distributed.channel.protocol import FrameKind
from gpukeras.distributed.channel.sockets import (
    BIND_S,
    PAUSE_S,
    check_shared,
    open_connection,
    open_listener,
    read_ip,
)
from gpukeras.distributed.channel.transport import Link, finish_links
from gpukeras.distributed.cluster_config import ClusterSpec

DETAILS = ("worker", "address", "reason", "differences")  # fields of a refusal
SLICE_S = 0.2  # seconds for which an interrupt may be delayed


def gather_workers(
    spec: ClusterSpec, description: Mapping[str, Any], limit_s: float
) -> tuple[dict[int, Link], str]:
    """Waits, as the chief, until all other workers have joined.

    Args:
        spec: The cluster; the chief listens on its `control` address only, and only until all
            have joined.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait.

    Returns:
        The links to workers 1, 2, ..., and a sentence about strangers that connected too, or "".

    Raises:
        ClusterError: if one differs or has not joined; those that joined receive the same error.
    """
    if len(spec.workers) == 1:
        return {}, ""
    tls = spec.credentials.open_server()
    check_shared(spec.control, spec.workers, read_ip(spec.control))
    listener = open_listener(spec.control, min(BIND_S, limit_s))
    own = _greet(spec, description)
    limits, secret = (limit_s, spec.timeout_s), spec.credentials.secret
    with JoinGate(listener, spec.workers, own, *limits, secret=secret, tls=tls) as gate:
        while not gate.decided:
            gate.step(SLICE_S)
        return gate.open_up(), explain_strangers(gate.strangers)


def reach_chief(spec: ClusterSpec, description: Mapping[str, Any], limit_s: float) -> Link:
    """Connects to the chief, as soon as it listens, and waits until all others have joined.

    Args:
        spec: The cluster.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait for the chief; its answer then holds how long it waits for others.

    Raises:
        ClusterError: if the chief cannot be reached, or refuses.
    """
    deadline = time.monotonic() + limit_s
    problem = "nothing answers there"
    tls = spec.credentials.open_client()
    while time.monotonic() < deadline:
        try:
            connection = open_connection(spec.control, tls)
            link = Link(connection, Seal(spec.credentials.secret, WORKER))
        except OSError as error:
            problem = error.strerror or str(error) or problem
        else:
            problem = _introduce(link, _greet(spec, description), deadline)
            if not problem:
                return link
        time.sleep(PAUSE_S)
    name = name_worker(0, spec.workers[0])
    text = f"has not been found at {spec.control} within {limit_s:g} s: {problem}"
    hint = "Start worker 1 too; a firewall must let workers through to that address."
    raise worker_error(0, name, text, hint, address=spec.control, reason=problem)


def _greet(spec: ClusterSpec, description: Mapping[str, Any]) -> Hello:
    alike = {"protocol": PROTOCOL, "workers": list(spec.workers), **description}
    return Hello(spec.index, alike)


def _introduce(link: Link, hello: Hello, deadline: float) -> str:
    # Returns why the chief has not decided about this worker; "" when it is welcome.
    problem = "it was not waited for"
    try:
        link.send_record(FrameKind.HELLO, hello.record())
        problem = _await_verdict(link, deadline)
    except AuthenticationError:
        problem = "what answers there is no chief"
    finally:
        if problem:
            finish_links([link], SLICE_S)
    return problem


def _await_verdict(link: Link, deadline: float) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        came = time.monotonic()
        while not link.ended and time.monotonic() < deadline:
            if not link.met and time.monotonic() - came > STRANGER_S:
                return "what answers there says nothing"
            link.flush()
            selector.select(SLICE_S)
            for frame in link.receive(time.monotonic(), at_most=1):
                if frame.kind is FrameKind.WELCOME:
                    return ""
                if frame.kind is not FrameKind.WAIT:
                    raise _explain_refusal(frame.record())
                deadline = max(deadline, time.monotonic() + wait_limit(frame))
    if link.stranger:
        raise AuthenticationError("no message of this program")
    if not link.ended:
        return "it has not decided"
    return "it ended the connection; its secret or its TLS may be others than this worker's"


def _explain_refusal(record: Mapping[str, Any]) -> ClusterError:
    message, details = record.get("message"), record.get("details")
    if not isinstance(message, str) or not isinstance(details, dict):
        raise AuthenticationError("a refusal without a reason")
    details = {name: value for name, value in details.items() if name in DETAILS}
    return ClusterError(message, hint=str(record.get("hint", "")), **details)
