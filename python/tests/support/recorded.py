"""Recorded facts: a healthy computer, and what each cause changes in it (facts/*.json).

A case is `{"name", "origin", "base", "changes", "root" or "finding", "evidence"}`. `origin` says
where its values are from: "run" (this program on a computer), "stub" (TensorFlow's real wheel over
a driver that is simulated), "source" (a log, an issue or documentation). `base` is "healthy" (a GPU
that works) or "unlisted" (the same computer, where TensorFlow lists no GPU), or the same with Keras
on JAX: "jax" and "jax unlisted", of which no part was recorded on a GPU. `changes` are merged into
it.
"""

import json
from pathlib import Path

from gpukeras.diagnostics.verdict import diagnose
from gpukeras.system.facts import parse_facts

FOLDER = Path(__file__).parent / "facts"
HEALTHY = json.loads((FOLDER / "healthy.json").read_text())
UNLISTED_CHANGES = {
    "tensorflow": {"physical_gpus": [], "visible_gpus": []},
    "listings": {"as it is": {"gpus": []}},
    "proof": None,
    "use": None,
}


def change(facts, *changes):
    """Facts with parts replaced; dicts are merged, all else takes the old one's place."""
    changed = dict(facts)
    for parts in changes:
        for name, part in parts.items():
            merge = isinstance(part, dict) and isinstance(changed.get(name), dict)
            changed[name] = change(changed[name], part) if merge else part
    return changed


UNLISTED = change(HEALTHY, UNLISTED_CHANGES)
JAX = change(HEALTHY, json.loads((FOLDER / "healthy_jax.json").read_text()))
JAX_UNLISTED = change(JAX, {"listings": {"as it is": {"gpus": []}}, "proof": None, "use": None})
BASES = {"healthy": HEALTHY, "unlisted": UNLISTED, "jax": JAX, "jax unlisted": JAX_UNLISTED}


def build_facts(case):
    """The whole facts of a case."""
    return change(BASES[case["base"]], case.get("changes", {}))


def judge(facts):
    """What `gpu_check()` makes of facts."""
    return diagnose(parse_facts(facts))


def read_cases():
    """All cases of all families."""
    files = sorted(path for path in FOLDER.glob("*.json") if not path.stem.startswith("healthy"))
    return [case for path in files for case in json.loads(path.read_text())]


CASES = read_cases()
