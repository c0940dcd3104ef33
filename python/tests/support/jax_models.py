"""What a model costs and becomes on JAX, in a process of its own: see `jax_runs`."""

import functools
import tempfile
from pathlib import Path

import costed
import keras
import numpy as np
from small_fits import make_dataset, make_model

from gpukeras.backend import tensor_ops
from gpukeras.compression import (
    distillation,
    latency,
    masks,
    pruning,
    quantization,
    sparsity_schedule,
)
from gpukeras.core.errors import GpuKerasError
from gpukeras.export import export, stablehlo
from gpukeras.profiler.cost import model_cost
from gpukeras.training import fit

latency.BUDGET_S = 0.0  # the least runs
ROWS = 200
ROW = np.linspace(-1, 1, 5 * ROWS, dtype=np.float32).reshape(ROWS, 5)


def distance(ones, others):
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(ones, others, strict=True))


# Cost --------------------------------------------------------------------------------------------


def cost():
    """What models cost, and XLA's own count of their forward pass."""
    import jax

    found = costed.cost_all()
    for name, model in costed.build_models().items():
        state = [[one.value for one in model.trainable_variables]]
        state.append([one.value for one in model.non_trainable_variables])
        rows = jax.ShapeDtypeStruct((8, *model.input_shape[1:]), "float32")
        lowered = jax.jit(model.stateless_call).lower(*state, rows)
        found[name]["xla"] = lowered.compile().cost_analysis()["flops"] / 8
    return found


def open_cost():
    """The message for a model of series whose length is not known, and its cost for one."""
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(2)])
    try:
        model_cost.model_cost(model)
    except GpuKerasError as error:
        return [error.message, error.hint, model_cost.model_cost(model, input_shape=[5, 4]).flops]


# Export ------------------------------------------------------------------------------------------


def make_exported():
    """Models whose inputs, layers and open dimensions differ, by name."""
    layers = keras.layers
    one, other = keras.Input((4,), name="one"), keras.Input((3,), name="other")
    both = layers.Dense(2)(layers.Concatenate()([layers.Dense(3)(one), other]))
    text = keras.Input((None,), dtype="int32", name="words")
    seen = layers.Embedding(9, 8)(text)
    seen = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(seen, seen))
    image = [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()]
    return {
        "dense": make_model(),
        "images": keras.Sequential([*image, layers.MaxPooling2D(), layers.Flatten()]),
        "series": keras.Sequential([keras.Input((9, 4)), layers.LSTM(8), layers.Dense(1)]),
        "several": keras.Model({"one": one, "other": other}, [both, layers.Dense(1)(both)]),
        "open": keras.Model(text, layers.Dense(2)(seen)),
    }


def exported(names=("several",)):
    """Models as StableHLO files: how far the loaded program predicts from the model, by size."""
    found, folder = {}, Path(tempfile.mkdtemp())
    for name, model in make_exported().items():
        if name not in names:
            continue
        report = export.export_model(model, str(folder / f"{name}.stablehlo"))
        loaded, inputs = stablehlo.read_stablehlo(report.path)
        apart = []
        for rows in (1, 7):
            given = {
                tensor.name: np.ones(
                    (rows, *(size or 5 for size in tensor.shape[1:])), tensor.dtype
                )
                for tensor in model.inputs
            }
            known = model(given if len(given) > 1 else next(iter(given.values())))
            outputs = loaded.call(given)
            apart.append(distance(outputs, known if isinstance(known, list) else [known]))
        found[name] = [max(apart), report.max_difference, report.runner, inputs]
        if name == "open":  # as the report says
            exec("\n".join(report.code), {"rows": np.ones((2, 3), np.int32)})
    return found


def exported_more():
    """The others, which vary them (at night)."""
    return exported(("dense", "images", "series", "open"))


# Smaller models ----------------------------------------------------------------------------------


@functools.cache
def trained():
    """A model of which all that makes it smaller takes a copy."""
    model = make_model(optimizer="adam")
    fit.fit(model, make_dataset(ROWS), {"epochs": 5})
    return model


PRUNED = {
    "once": {"epochs": 0},
    "compiled": {"epochs": 4, "fit": {"engine": "compiled"}},
    "units": {"epochs": 1, "structured": True, "sparsity": 0.5},
}


def pruned(names=("once",)):
    """Models pruned in one step; at night by growing masks, and by whole units."""
    model, data, found = trained(), make_dataset(ROWS, validation=0.2), {}
    for name in names:
        made = pruning.prune(model, data, {"sparsity": 0.8, **PRUNED[name]})
        small, report = made["model"], made["report"]
        before = [np.count_nonzero(kernel) for kernel in small.get_weights()[::2]]
        fit.fit(small, data, {"epochs": 1})
        found[name] = {
            "zeros": 1 - sum(before) / sum(w.size for w in small.get_weights()[::2]),
            "stay": before == [np.count_nonzero(kernel) for kernel in small.get_weights()[::2]],
            "shapes": [list(w.shape) for w in small.get_weights()],
            "flops": [report.before.flops, report.after.flops],
            "runs": [one.runs for one in report.after.latency],
            "drop": report.drop,
            "variables": len(small.optimizer.variables),
        }
    return found


def pruned_more():
    """The other ways (at night)."""
    return pruned(("compiled", "units"))


def growing():
    """Masks that only the steps of a training have grown, with each engine."""
    found, weights = {}, []
    for engine in ("keras", "compiled"):
        model, data = make_model(optimizer="adam"), make_dataset(ROWS)
        kernels, optimizer = masks.list_kernels(model), model.optimizer
        ramp = sparsity_schedule.plan_ramp(14, 0.5)  # of 21 steps
        growth = sparsity_schedule.Growth(kernels, optimizer.iterations, ramp)
        with tensor_ops.stepping(optimizer, growth.state):
            fit.fit(model, data, {"epochs": 3, "engine": engine})
        kept = masks.read_masks(model)
        found[engine] = masks.sparsity(kept)
        weights.append(model.get_weights())
        found[f"{engine} zeros"] = all(
            not np.any(np.asarray(kernel.variable)[~kept[kernel.path]]) for kernel in kernels
        )
    return {**found, "apart": distance(*weights), "timed": time_dropout()}


def time_dropout():
    """How far what is timed is from a model's predictions, where training drops out."""
    model = make_model(layers=[keras.layers.Dropout(0.5)])
    return distance(latency.open_call(model, ROW)(), [model.predict(ROW, verbose=0)])


def quantized():
    """Models of fewer bits, and how far they predict from the original and from Keras' own."""
    model, data, found = trained(), make_dataset(ROWS, validation=0.2), {}
    for mode in ("int8", "int4", "float8"):
        made = quantization.quantize(model, data, {"mode": mode})
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        other.quantize(mode)
        small = made["model"].predict(ROW, verbose=0)
        found[mode] = {
            "original": distance([small], [model.predict(ROW, verbose=0)]),
            "keras": distance([small], [other.predict(ROW, verbose=0)]),
            "layers": len(made["report"].layers),
            "part": made["report"].after.part,
        }
    return found


def distilled():
    """A student: its units, its losses, and that its teacher stayed as it was."""
    teacher, data = trained(), make_dataset(ROWS, validation=0.2)
    before = teacher.get_weights()
    made = distillation.distill(teacher, data, {"epochs": 5, "width": 0.5})
    losses = made["report"].training.history["loss"]
    return {
        "units": made["model"].layers[0].units,
        "losses": losses,
        "changed": distance(before, teacher.get_weights()),
        "own": "compute_loss" in vars(made["model"]),
    }


def tell(name):
    return globals()[name]()
