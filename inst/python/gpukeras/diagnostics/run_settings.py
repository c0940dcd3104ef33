"""Reads the settings that decide whether two trainings give the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpukeras.backend import devices, runtime
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.system import environment

VARIABLES = ("TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


@dataclass(frozen=True)
class RunSetting:
    """A setting.

    Args:
        name: Its name.
        value: Its value as text; "not set" for a missing environment variable.
        effect: What it means for trainings that are to repeat.
    """

    name: str
    value: str
    effect: str


def read_run_settings(model: Model, data: Dataset) -> list[RunSetting]:
    """Returns the settings in effect, with what each means."""
    facts = devices.read_setup_facts()
    gpu = bool(facts.visible_gpus)
    seed = getattr(data.spec, "seed", None)
    found = [
        _deterministic(facts.deterministic, gpu),
        RunSetting("seed of the dataset", _text(seed), _explain_seed(seed)),
        RunSetting("shuffle", _text(data.spec.shuffle), "the order follows the dataset's seed"),
        RunSetting("dtype policy", model.dtype_policy.name, "another one gives other numbers"),
        RunSetting("threads", _threads(facts.threads), "sums in another order differ in last bits"),
    ]
    if gpu:
        text = "float32 products have 10 bits of mantissa" if facts.tf32 else "float32 is exact"
        found.append(RunSetting("TF32", _text(facts.tf32), text))
    found += [_variable(name) for name in VARIABLES]
    versions = {"keras": runtime.keras().__version__, **runtime.backend_version()}
    return found + [RunSetting(k, str(v), "another one may differ") for k, v in versions.items()]


def _deterministic(on: bool, gpu: bool) -> RunSetting:
    if on:
        effect = "operations that cannot repeat are refused"
    elif gpu:
        effect = "kernels of a GPU may differ: gpu_setup(deterministic = TRUE) forbids it"
    else:
        effect = "needed on a GPU only"
    return RunSetting("deterministic kernels", _text(on), effect)


def _explain_seed(seed: Any) -> str:
    return "the order differs in each session" if seed is None else "the order repeats"


def _threads(threads: tuple[int, int]) -> str:
    return ", ".join("automatic" if count == 0 else str(count) for count in threads)


def _variable(name: str) -> RunSetting:
    value = environment.c_variable(name)
    return RunSetting(name, "not set" if value is None else value, "read when TensorFlow starts")


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value).upper() if isinstance(value, bool) else str(value)
