"""What searches, measures and keeps models does on JAX, in a process of its own: see `jax_runs`."""

import os
import sys
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import costed  # noqa: E402
import examples  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import varied  # noqa: E402
from jax_runs import report  # noqa: E402
from pictures import encode_bmp, write  # noqa: E402
from small_fits import make_dataset, make_model  # noqa: E402

from gpukeras.backend import keras_private, tensor_ops  # noqa: E402
from gpukeras.compression import (  # noqa: E402
    distillation,
    masks,
    pruning,
    quantization,
    separable,
    sparsity_schedule,
)
from gpukeras.core.errors import GpuKerasError  # noqa: E402
from gpukeras.data import builder  # noqa: E402
from gpukeras.data.loading.loader import open_loader  # noqa: E402
from gpukeras.distributed import session  # noqa: E402
from gpukeras.engine.optimizer import find_optimizer  # noqa: E402
from gpukeras.export import export, stablehlo, transfer  # noqa: E402
from gpukeras.models.builder import build_mlp  # noqa: E402
from gpukeras.profiler import profile  # noqa: E402
from gpukeras.profiler.cost import model_cost  # noqa: E402
from gpukeras.training import fit  # noqa: E402
from gpukeras.tuner import batch_size, lr_finder  # noqa: E402

ROWS = 200


def distance(ones, others):
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(ones, others, strict=True))


# Searches ----------------------------------------------------------------------------------------

STEPS = {"low": 1e-4, "high": 0.1, "steps": 10}


def rates():
    """The losses of a search against those of Keras' single steps at the same rates."""
    data, found = make_dataset(ROWS, shuffle=False), {}
    x, y = data.arrays
    for eager in (False, True):
        model, twin = make_model(optimizer="adam"), make_model(optimizer="adam")
        model.run_eagerly = eager
        search = lr_finder.find_learning_rate(model, data, STEPS)
        losses = []
        for step, rate in enumerate(np.geomspace(1e-4, 0.1, 10)):
            rows = slice(32 * (step % 6), 32 * (step % 6) + 32)
            twin.optimizer.learning_rate = rate
            losses.append(float(twin.train_on_batch(x[rows], y[rows])[0]))
            twin.reset_metrics()
        found[str(eager)] = distance(search.losses, losses)
    return found


def rates_of_optimizers():
    """A search leaves any optimizer and the weights as they were, and moves them meanwhile."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.5)
    made = {
        "rate": "adam",
        "schedule": keras.optimizers.Adam(schedule),
        "scaling": keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.003)),
    }
    found = {}
    for name, optimizer in made.items():
        model, moved = make_model(optimizer=optimizer), []
        before = model.get_weights()
        own = keras_private.learning_rate(find_optimizer(model, "rate"))

        def listen(event, model=model, before=before, moved=moved):
            if event["kind"] == "rates":
                moved.append(distance(before, model.get_weights()))

        options = {"low": 1e3, "high": 1e4, "steps": 10}
        lr_finder.find_learning_rate(model, make_dataset(ROWS), options, listen)
        same = keras_private.learning_rate(find_optimizer(model, "rate")) is own
        found[name] = [max(moved), distance(before, model.get_weights()), same]
    return found


def sizes():
    """A search of the batch size."""
    model = make_model()
    before = model.get_weights()
    found = batch_size.find_batch_size(model, make_dataset(2000), {"seconds": 1.0})
    return {
        "sizes": [point.batch_size for point in found.points],
        "rates": [point.rows_per_s for point in found.points],
        "recommended": found.recommended,
        "engine": found.engine,
        "changed": distance(before, model.get_weights()),
    }


# Rows that TensorFlow reads ----------------------------------------------------------------------


def labels_of(codes, *levels):
    return {"name": "y", "kind": "factor", "values": codes, "levels": list(levels)}


def images():
    """Files of images, decoded with and without cropping: their levels, and a training on them."""
    folder, found = Path(tempfile.mkdtemp()), {}
    for number in range(8):
        image = np.full((9, 7, 3), 60 + 120 * (number % 2), np.uint8)
        write(folder / ("cat", "dog")[number % 2] / f"{number}.bmp", encode_bmp(image))
    for crop in (False, True):
        features = {"kind": "images", "paths": str(folder), "image_size": [8, 8]}
        features["crop_to_aspect_ratio"] = crop
        data = builder.build_dataset(features, {"batch_size": 4, "shuffle": False})
        block = next(open_loader(data, data.plan("CPU:0")).epoch(0))
        levels, labels = (np.asarray(array) for array in block.arrays)
        stack = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(stack)
        model.compile("adam", "sparse_categorical_crossentropy")
        history = fit.fit(model, data, {"epochs": 2}).history
        spread = float(np.ptp(levels, axis=(1, 2, 3)).max())
        means = levels.mean(axis=(1, 2, 3)).tolist()
        found[str(crop)] = [means, labels.tolist(), spread, len(history["loss"])]
    return {**found, "gpus": len(sys.modules["tensorflow"].config.get_visible_devices("GPU"))}


def texts():
    """A column of texts."""
    words = ["good fine", "bad poor", "fine", "poor bad bad"]
    codes = np.arange(40, dtype=np.int32) % 4
    column = {"name": "said", "kind": "factor", "values": 1 + codes, "levels": words}
    features = {"kind": "columns", "columns": [column]}
    labels = labels_of(1 + codes % 2, "good", "bad")
    text = {"columns": "said"}
    data = builder.build_dataset(features, {"batch_size": 8}, labels, text=text)
    model = build_mlp(data, {"units": [8], "learning_rate": 0.05})
    return fit.fit(model, data, {"epochs": 10}).history["accuracy"][-1]


def records():
    """Files of TFRecord: their labels, and a training on them."""
    path = Path(tempfile.mkdtemp()) / "rows.tfrecord"
    rows = [{"age": 0.5 + place % 7, "label": place % 2} for place in range(24)]
    examples.write(path, rows)
    described = {"age": "float32", "label": "factor"}
    features = {"kind": "records", "paths": str(path), "description": described, "label": "label"}
    data = builder.assemble(features, {"batch_size": 8, "shuffle": False})
    labels = [
        np.asarray(block.arrays[1]) for block in open_loader(data, data.plan("CPU:0")).epoch(0)
    ]
    model = build_mlp(data, {"units": [8]})
    history = fit.fit(model, data, {"epochs": 2}).history
    return {"labels": np.concatenate(labels)[:24].tolist(), "losses": history["loss"]}


def board():
    """TensorBoard's files: the losses in them, and those of the history."""
    folder, model = tempfile.mkdtemp(), make_model()
    spec = {"folder": folder, "histograms": 1}
    report = fit.fit(model, make_dataset(ROWS), {"epochs": 2, "tensorboard": spec})
    import tensorflow as tf

    found, names = [], set()
    for path in Path(folder).glob("train/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                names.add(value.tag)
                if value.tag == "epoch_loss":
                    found.append(float(tf.make_ndarray(value.tensor)))
    histograms = sum(name.endswith("/histogram") for name in names)
    return {"files": found, "history": report.history["loss"], "histograms": histograms}


def refused():
    """The messages where TensorFlow alone can do the work."""
    codes = np.arange(16, dtype=np.int32) % 4
    labels = labels_of(1 + codes % 2, "a", "b")
    texts = {"kind": "strings", "values": 1 + codes[:, None], "levels": ["a", "b", "c", "d"]}
    data, model, folder = make_dataset(ROWS), make_model(), tempfile.mkdtemp()
    array = {"kind": "array", "values": np.zeros((16, 8, 8, 3), order="F"), "names": []}
    given = {
        "cluster": lambda: session.join_cluster({"workers": ["127.0.0.1:9001"], "index": 1}),
        "devices": lambda: fit.fit(model, data, {}, devices=2),
        "litert": lambda: export.export_model(model, f"{folder}/model.tflite"),
        "map": lambda: builder.assemble(array, {}, labels, map=lambda rows: rows),
        "onnx": lambda: export.export_model(model, f"{folder}/model.onnx"),
        "pipeline": lambda: builder.assemble({"kind": "tfdata", "dataset": None}, {}),
        "savedmodel": lambda: export.export_model(model, f"{folder}/model"),
        "texts": lambda: builder.assemble(texts, {}, labels),
    }
    found = {}
    for name, call in given.items():
        try:
            call()
            found[name] = ["", ""]
        except GpuKerasError as error:
            found[name] = [type(error).__name__, error.message, error.hint]
    return found


def precision():
    """Half precision, with the scaled loss of float16, against Keras' own `fit()`."""
    data, found = make_dataset(ROWS, shuffle=False), {}
    x, y = data.arrays
    for policy in ("mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        one, other = make_model(optimizer="adam"), make_model(optimizer="adam")
        keras.config.set_dtype_policy("float32")
        one.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
        fit.fit(other, data, {"epochs": 2})
        kind = type(other.optimizer).__name__
        found[policy] = [kind, distance(one.get_weights(), other.get_weights())]
    return found


def interrupted():
    """A training that its listener ends, as R's interrupt does."""
    model = make_model()
    found = fit.fit(model, make_dataset(ROWS), {"epochs": 500}, on_event=lambda event: True)
    return {"stopped": found.stopped, "epochs": len(found.history["loss"])}


# Between backends --------------------------------------------------------------------------------

ROW = np.linspace(-1, 1, 5 * ROWS, dtype=np.float32).reshape(ROWS, 5)


def written():
    """A model's file, and what it predicts where it was trained."""
    model, path = make_model(optimizer="adam"), os.environ["MOVED_MODEL"]
    fit.fit(model, make_dataset(ROWS), {"epochs": 2})
    transfer.save_model(model, path)
    return model.predict(ROW, verbose=0).tolist()


# Measurements ------------------------------------------------------------------------------------


def profiled():
    """A profile with the kernels of the layers, of one in another too."""
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, name="deep")], name="inner")
    stack = [keras.Input((5,)), keras.layers.Dense(8, name="first"), inner]
    model = keras.Sequential([*stack, keras.layers.Dense(3, "softmax", name="last")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    before = model.get_weights()
    found = profile.profile(model, make_dataset(2000), {})
    return {
        "verdict": found.verdict,
        "sum": sum(share for share in found.shares.values() if share),
        "layers": {row.layer: [row.forward_s, row.backward_s] for row in found.layers},
        "notes": found.notes,
        "changed": distance(before, model.get_weights()),
    }


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


# Images ------------------------------------------------------------------------------------------


def augmented():
    """Pictures varied in each way, from the same rows as on TensorFlow; see `varied`."""
    return {name: varied.vary(name).tolist() for name in varied.CASES}


def augmented_fit():
    """A training on varied images, with each engine."""
    rng, found = np.random.default_rng(1), {}
    values = np.asfortranarray(rng.random((40, 8, 8, 3)))
    labels = labels_of(1 + np.arange(40, dtype=np.int32) % 2, "a", "b")
    augment = {"flip": "both", "rotation": 0.1, "brightness": 0.2, "value_range": [0, 1]}
    for engine in ("keras", "compiled"):
        keras.utils.set_random_seed(1)
        features = {"kind": "array", "values": values, "names": []}
        data = builder.assemble(features, {"batch_size": 8, "seed": 1}, labels, augment=augment)
        stack = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(stack)
        model.compile("adam", "sparse_categorical_crossentropy")
        found[engine] = fit.fit(model, data, {"epochs": 2, "engine": engine}).history["loss"]
    return found


# Export ------------------------------------------------------------------------------------------


def exported():
    """Models as StableHLO files: how far the loaded program predicts from the model, by size."""
    layers, found, folder = keras.layers, {}, Path(tempfile.mkdtemp())
    one, other = keras.Input((4,), name="one"), keras.Input((3,), name="other")
    both = layers.Dense(2)(layers.Concatenate()([layers.Dense(3)(one), other]))
    text = keras.Input((None,), dtype="int32", name="words")
    seen = layers.Embedding(9, 8)(text)
    seen = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(seen, seen))
    image = [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()]
    made = {
        "dense": make_model(),
        "images": keras.Sequential([*image, layers.MaxPooling2D(), layers.Flatten()]),
        "series": keras.Sequential([keras.Input((9, 4)), layers.LSTM(8), layers.Dense(1)]),
        "several": keras.Model({"one": one, "other": other}, [both, layers.Dense(1)(both)]),
        "open": keras.Model(text, layers.Dense(2)(seen)),
    }
    for name, model in made.items():
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
    exec("\n".join(report.code), {"rows": np.ones((2, 3), np.int32)})  # as the report says
    return found


# Smaller models ----------------------------------------------------------------------------------


def trained(**options):
    model = make_model(optimizer="adam")
    fit.fit(model, make_dataset(ROWS), {"epochs": 5, **options})
    return model


def pruned():
    """Models pruned in one step, by growing masks with each engine, and by whole units."""
    model, data, found = trained(), make_dataset(ROWS, validation=0.2), {}
    for name, options in {
        "once": {"epochs": 0},
        "keras": {"epochs": 4, "fit": {"engine": "keras"}},
        "compiled": {"epochs": 4, "fit": {"engine": "compiled"}},
        "units": {"epochs": 1, "structured": True, "sparsity": 0.5},
    }.items():
        made = pruning.prune(model, data, {"sparsity": 0.8, **options})
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
    return {**found, "apart": distance(*weights)}


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


def separated():
    """A convolution replaced: its kind and the FLOPs."""
    keras.utils.set_random_seed(1)
    stack = [keras.Input((8, 8, 4)), keras.layers.Conv2D(16, 3), keras.layers.Flatten()]
    model = keras.Sequential([*stack, keras.layers.Dense(2, "softmax")])
    made = separable.separate(model)
    kinds = [type(layer).__name__ for layer in made["model"].layers]
    return {"kinds": kinds, "flops": [made["report"].before.flops, made["report"].after.flops]}


if __name__ == "__main__":
    report(lambda name: globals()[name](), sys.argv[1:])
