"""Entry points that R calls.

R calls `invoke(name, args)` and gets an envelope of plain values. reticulate 1.28 drops the class
of an exception, so the envelope carries every `GpuKerasError` as fields. Any other exception is a
bug and propagates unchanged.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.accelerate import rows as keras_rows
from gpukeras.accelerate import switch
from gpukeras.backend import devices, env_vars, import_hook, runtime
from gpukeras.compression import distillation, pruning, quantization
from gpukeras.core import attached_process
from gpukeras.core.errors import GpuKerasError
from gpukeras.core.progress import OnEvent, heard_by
from gpukeras.data import arrays, builder
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.files import files
from gpukeras.data.loader import profile as loading_profile
from gpukeras.data.saved import writer
from gpukeras.diagnostics import check, fault_test, reproduce
from gpukeras.distributed import session
from gpukeras.distributed.launcher import launcher
from gpukeras.engine import schedules
from gpukeras.explain import effects, gradients, permutation
from gpukeras.export import archive, export, recipe_json, transfer
from gpukeras.many import ensemble, fit_many, fits
from gpukeras.models import compatibility, mlp
from gpukeras.models.families import build as family_build
from gpukeras.models.families import spec as families
from gpukeras.models.tabular import builder as tabular
from gpukeras.monitor import monitor
from gpukeras.profiler import profile
from gpukeras.profiler.cost import model_cost
from gpukeras.search import search
from gpukeras.serving import server
from gpukeras.tracking import tracking
from gpukeras.training import calibrate, evaluate, fit, model_summary, predict
from gpukeras.tuner import batch_size, lr_finder

_INT32_MAX = 2**31 - 1


def invoke(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Calls one entry point.

    Args:
        name: A key of `ENTRY_POINTS`.
        args: Its arguments by name: plain values or handles.

    Returns:
        `{"ok": True, "value": ...}`, or `{"ok": False, "code", "message", "hint", "details"}`. If
        an R function that Python called raised a condition, `condition` holds the condition's
        fields and `r_class`.
    """
    if not runtime.imported():  # which reads its variables once
        env_vars.sync_environment()  # those that Sys.setenv() changed in R since the last call
    session.wake()
    try:
        # R's empty list() arrives as a list, not as an empty mapping.
        return {"ok": True, "value": to_plain(ENTRY_POINTS[name](**dict(args)))}
    except GpuKerasError as error:
        return {
            "ok": False,
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "details": to_plain(error.details),
            **_find_condition(error),
        }
    except Exception as error:
        condition = _find_condition(error)
        if not condition:
            raise
        details = {"code": "generator", "message": str(error), "hint": "", "details": {}}
        return {"ok": False, **details, **condition}
    finally:
        session.rest()


def _find_condition(error: BaseException) -> dict[str, Any]:
    """Returns the R condition behind an exception: `{"condition": fields}`, or an empty dict.

    reticulate (since 1.29) stores the condition's fields as attributes of the exception and its
    class as `r_class`. Keras and AutoGraph raise another exception in its place, so the original is
    found through `__cause__` or `__context__`.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        fields = vars(link)
        if "r_class" in fields:
            return {"condition": {name: fields[name] for name in fields if name[:2] != "__"}}
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return {}


def to_plain(value: Any) -> Any:
    """Converts a value to plain types for R: scalars, strings, lists, dicts and arrays.

    Dataclasses become dicts; handles pass unchanged. Integers beyond 32 bits become floats, because
    reticulate silently converts 2**40 to 0.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        return {name: to_plain(getattr(value, name)) for name in shown}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _INT32_MAX:
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def make_dataset(
    features: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    labels: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
    class_weight: str | Mapping[str, float] | None = None,
    recipe_of: Any = None,
    formula: str = "",
    arg: str = "x",
    augment: Mapping[str, Any] | None = None,
    map: Callable[..., Any] | None = None,  # noqa: A002 (R's name for it)
    text: Mapping[str, Any] | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Builds a dataset and returns it with its plan and description.

    Args:
        features: A mapping with a `kind`; see `registry.open_features()` and `streams`.
        options: Fields of `DatasetSpec`.
        labels: See `dataset.build_dataset()`.
        weights: One weight per row.
        class_weight: "balanced", or a weight for each level.
        recipe_of: A dataset, a trained model, or a saved recipe whose encoding is applied.
        formula: R's formula as text.
        arg: The user's name for the features, for messages.
        augment: Fields of `AugmentSpec`, or None.
        map: The user's function on a block's features on the device, see `map_fn`.
        text: The text columns and their encoding, see `text_vectorization.TextSpec`.
        on_event: Called with the rows that passes over them have done, see `count_pass()`.
    """
    recipe = recipe_json.recipes_from(recipe_of)
    if features["kind"] == "py_dataset":
        features = keras_rows.generator_of(features["dataset"], features["steps"])
    with heard_by(on_event), session.sharing_files(options) as (options, shard):
        data = builder.assemble(
            features,
            options,
            labels,
            weights=weights,
            class_weight=class_weight,
            recipe=recipe,
            formula=formula,
            arg=arg,
            augment=augment,
            map=map,
            text=text,
            shard=shard,
        )
    plan = data.plan(devices.current().device)
    return {"handle": data, "plan": plan, **_describe_dataset(data)}


def _describe_dataset(data: Dataset) -> dict[str, Any]:
    return {
        **recipe_json.describe_recipe(data.recipe),
        "rows": data.size,
        "weighted": len(data.sources) > 2,
        "augment": builder.explain_varied(data),
        "notes": data.notes,
    }


def describe_records(features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kind of rows that TFRecord files hold."""
    # Imports pyarrow, which takes 0.3 s.
    from gpukeras.data.reader.tfrecord import source as record_features

    return record_features.describe_records(features)


ENTRY_POINTS: dict[str, Callable[..., Any]] = {
    "prepare": import_hook.await_tensorflow,
    "accelerate": switch.switch,
    "accelerate_report": switch.describe,
    "devices": devices.read_devices,
    "memory": devices.read_memory,
    "setup": devices.setup,
    "enter_device": devices.enter_device,
    "exit_device": devices.exit_device,
    "check": check.check,
    "report": check.report,
    "dataset": make_dataset,
    "close_stores": files.close_stores,
    "split_rows": arrays.split_rows,
    "cost": loading_profile.measure_costs,
    "describe_records": describe_records,
    "save_dataset": writer.save_dataset,
    "save_model": transfer.save_model,
    "marshal_model": transfer.marshal_model,
    "load_model": transfer.load_model,
    "save_archive": archive.save_archive,
    "load_archive": archive.load_archive,
    "export_model": export.export_model,
    "feeding_of": transfer.feeding_of,
    "carry_recipe": recipe_json.carry_recipe,
    "tie_recipe": recipe_json.tie_recipe,
    "mlp": mlp.build_mlp,
    "family": families.describe_family,
    "explain_labels": family_build.explain_labels,
    "tabular": tabular.build_tabular,
    "take_rows": builder.take_rows,
    "model_parts": compatibility.read_parts,
    "recipe": recipe_json.describe_model,
    "takes_text": compatibility.takes_text,
    "fit": fit.fit,
    "reproduce": reproduce.reproduce,
    "open_tracking": tracking.open_tracking,
    "close_tracking": tracking.close_tracking,
    "join_cluster": session.join_cluster,
    "leave_cluster": session.leave_cluster,
    "cluster_test": fault_test.run_fault_test,
    "launch": launcher.launch,
    "launch_status": launcher.launch_status,
    "launch_wait": launcher.launch_wait,
    "launch_stop": launcher.launch_stop,
    "launch_log": launcher.launch_log,
    "monitor_start": monitor.monitor_start,
    "monitor_stop": monitor.monitor_stop,
    "profile": profile.profile,
    "model_cost": model_cost.model_cost,
    "start_server": server.start_server,
    "stop_server": attached_process.stop_server,
    "server_runs": attached_process.server_runs,
    "prune": pruning.prune,
    "quantize": quantization.quantize,
    "distill": distillation.distill,
    "schedule": schedules.describe_schedule,
    "draw_rates": schedules.draw_schedule,
    "find_batch_size": batch_size.find_batch_size,
    "find_learning_rate": lr_finder.find_learning_rate,
    "fit_many": fit_many.fit_many,
    "fits_table": fits.read_table,
    "fits_model": fits.read_model,
    "fits_held_out": fits.read_held_out,
    "fits_predict": ensemble.predict_many,
    "search": search.search,
    "evaluate": evaluate.evaluate,
    "predict": predict.predict,
    "predict_interval": calibrate.predict_interval,
    "calibrate": calibrate.calibrate,
    "summary": model_summary.summarise_model,
    "terms": model_summary.read_terms,
    "residuals": model_summary.read_residuals,
    "importance": permutation.measure_importance,
    "effects": effects.measure_effects,
    "attribute": gradients.attribute,
}


def contract() -> dict[str, dict[str, list[str]]]:
    """Returns the entry points with the names of their required and optional arguments.

    The file `contract.json` holds this; the R and the Python test suite compare against it.
    """
    return {name: _arguments(ENTRY_POINTS[name]) for name in sorted(ENTRY_POINTS)}


def _arguments(function: Callable[..., Any]) -> dict[str, list[str]]:
    parameters: Sequence[inspect.Parameter] = list(inspect.signature(function).parameters.values())
    return {
        "required": [p.name for p in parameters if p.default is inspect.Parameter.empty],
        "optional": [p.name for p in parameters if p.default is not inspect.Parameter.empty],
    }
