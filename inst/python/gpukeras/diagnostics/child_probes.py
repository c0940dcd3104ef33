"""Runs the probes in child processes: driver queries, TensorFlow's GPU list, a computation."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpukeras.backend import cuda_preload, xla_cache
from gpukeras.backend.jax_module import PREALLOCATE
from gpukeras.core.child_process import ChildEnd, run_child
from gpukeras.diagnostics.jax_log import parse_jax_log
from gpukeras.diagnostics.probes.compute import parse_stages
from gpukeras.diagnostics.tf_log import VERBOSE, parse_log
from gpukeras.system import packages
from gpukeras.system.environment import current_variables
from gpukeras.system.facts import Facts, list_jax_plugins, parse_facts

DRIVER_LIMIT_S = 20  # cuInit takes 0.1 to 3 s; a hanging driver never returns
LISTING_LIMIT_S = 60
# On a GPU newer than the build, compiling kernels at first use takes up to half an hour.
COMPUTE_LIMIT_S = 150
# Environment changes for the listing probe: the change that brings the GPU back shows the cause.
VARIATIONS: Mapping[str, Mapping[str, str | None]] = {
    "as it is": {cuda_preload.SWITCH: "false"},
    "preloaded": {cuda_preload.SWITCH: "true"},
    "without LD_LIBRARY_PATH": {cuda_preload.SWITCH: "false", "LD_LIBRARY_PATH": None},
    "without CUDA_VISIBLE_DEVICES": {cuda_preload.SWITCH: "true", "CUDA_VISIBLE_DEVICES": None},
}


@contextlib.contextmanager
def quiet_environment(backend: str = "tensorflow") -> Iterator[dict[str, str]]:
    """Yields a child environment: C's variables, with all output folders in a temporary folder.

    Args:
        backend: Backend of Keras in the child processes.
    """
    environment = current_variables() | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "KERAS_BACKEND": backend,
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # otherwise the child takes the whole card
        PREALLOCATE: "false",  # the same for JAX
        xla_cache.SWITCH: "off",
    }
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no writable temporary folder
            own = tempfile.TemporaryDirectory(prefix="gpukeras-", ignore_cleanup_errors=True)
            folder = stack.enter_context(own)
            names = ("TMPDIR", "KERAS_HOME", "CUDA_CACHE_PATH")
            environment |= dict.fromkeys(names, folder)
        yield environment


def run_probe(
    python: str,
    program: str,
    environment: Mapping[str, str],
    limit_s: float,
    *,
    arguments: tuple[str, ...] = (),
    changes: Mapping[str, str | None] | None = None,
) -> ChildEnd:
    """Runs a program of `probes`.

    Args:
        python: Path of Python.
        program: Module of `probes`, relative to `gpukeras`.
        environment: The child's environment.
        limit_s: Time limit in seconds.
        arguments: Command-line arguments.
        changes: Environment variables to set, or to remove if None.
    """
    merged = {**environment, **(changes or {})}
    own = {name: value for name, value in merged.items() if value is not None}
    return run_child(python, ("-m", f"gpukeras.{program}", *arguments), own, limit_s)


def parse_answer(end: ChildEnd) -> dict[str, Any]:
    """Returns the last JSON object that a probe printed, or `{"error": ...}` if there is none."""
    for line in reversed(end.stdout.splitlines()):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    return {"error": f"the child process gave no answer ({end.problem or 'no output'})"}


def find_python(facts: Mapping[str, Any]) -> str:
    """Returns the path of the recorded Python, else of this process's."""
    return parse_facts(facts).python.executable or sys.executable


def read_driver_answers(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Queries libcuda, NVML and cuDNN; libcuda again without CUDA_VISIBLE_DEVICES if it is set."""
    ask = partial(
        run_probe, find_python(facts), "diagnostics.probes.driver", environment, DRIVER_LIMIT_S
    )
    cudnn = tuple(path for path in (packages.find_cudnn(facts.get("build") or {}),) if path)
    end = ask(arguments=cudnn)
    answer = parse_answer(end)
    for part in ("cuda", "nvml", "cudnn"):
        part_facts = answer.get(part)
        facts[part] = part_facts if isinstance(part_facts, dict) else None
    if facts["cuda"] is None:
        said = answer.get("error")
        facts["unread"]["cuda"] = end.problem or (said if isinstance(said, str) else "no answer")
    facts["cuda_shown"] = None
    if "CUDA_VISIBLE_DEVICES" in environment:
        part_facts = parse_answer(ask(changes={"CUDA_VISIBLE_DEVICES": None})).get("cuda")
        facts["cuda_shown"] = part_facts if isinstance(part_facts, dict) else None


def read_listings(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Lists the backend's GPUs in new processes, one variation at a time until a GPU is listed."""
    known = parse_facts(facts)
    facts["listings"] = {}
    parse = parse_jax_log if known.backend == "jax" else parse_log
    for variation in plan_listings(known, environment):
        end = run_probe(
            find_python(facts),
            "diagnostics.probes.listing",
            environment,
            LISTING_LIMIT_S,
            changes={**VERBOSE, **VARIATIONS[variation]},
        )
        answer = parse_answer(end)
        facts["listings"][variation] = {
            "ok": None if end.problem else not answer.get("error"),
            "gpus": answer.get("gpus"),
            "version": answer.get("version", ""),
            "error": end.problem or answer.get("error", ""),
            "log": parse(end.stderr),
        }
        if answer.get("gpus"):
            break


def read_import_alone(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Imports the backend in a new process, which says whether an import ends its process.

    It is not done where the import went well here, or in the process that listed GPUs.
    """
    known = parse_facts(facts)
    if known.runtime.imported is True or known.listing("as it is").ok is not None:
        return
    program = f"import {known.backend}"
    end = run_child(find_python(facts), ("-c", program), environment, LISTING_LIMIT_S)
    facts["import_alone"] = end.problem


def plan_listings(facts: Facts, environment: Mapping[str, str]) -> list[str]:
    """Returns the variations that apply here, in order; each takes a process of 3 to 6 s."""
    cuda_build = facts.build.is_cuda_build is True
    has_cuda = cuda_build or bool(list_jax_plugins(facts))
    requested = {
        "as it is": True,
        "preloaded": cuda_build,
        "without LD_LIBRARY_PATH": has_cuda and bool(environment.get("LD_LIBRARY_PATH")),
        "without CUDA_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES" in environment,
    }
    return [variation for variation, worth in requested.items() if worth]


def list_visible(facts: Facts) -> list[str]:
    """Returns the GPUs that can compute: of this session, or of a new process if it has no list."""
    visible = facts.runtime.visible_gpus
    if visible is None:
        return [str(gpu.name) for gpu in facts.listing("as it is").gpus or ()]
    return list(visible)


def read_proof(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Runs a product, a convolution and a small training on the first visible GPU in a child."""
    device = list_visible(parse_facts(facts))[0]
    facts["proof"] = prove_device(device, find_python(facts), environment)


def prove_device(device: str, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Computes on a device in a child process, so that a crash becomes a fact.

    Args:
        device: Device name such as "GPU:0" or "CPU:0".
        python: Path of Python.
        environment: The child's environment.
    """
    end = run_probe(
        python,
        "diagnostics.probes.compute",
        environment,
        COMPUTE_LIMIT_S,
        arguments=(device,),
        changes={"TF_CPP_MIN_LOG_LEVEL": "0"},
    )
    stages = parse_stages(end.stdout)
    return {"device": device, **stages, "ended": end.problem, "log": parse_log(end.stderr)}
