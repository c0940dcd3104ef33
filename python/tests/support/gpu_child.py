"""What the core promises of a device, seen on that device: gpu_child.py DEVICE PART...

DEVICE is "gpu", or "cpu" to try these parts where there is no GPU. Each part prints a line of JSON:
its name and what it found, or the error that it ended with. Parts that limit or split the device's
memory must come alone, because TensorFlow takes such things once. Keras runs on KERAS_BACKEND.
"""

import json
import os
import sys
import time
import traceback

import numpy as np
from compiled_blocks import make_block, make_engines, prepare
from small_fits import make_dataset, make_model

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.data.loader import loader
from gpukeras.monitor.monitor import start_monitor
from gpukeras.profiler.profile import profile
from gpukeras.system import host
from gpukeras.training import fit as training_fit

KIND = sys.argv[1]
LIMIT_MIB = 1500  # less than a batch of `memory_child` takes, more than half of one
ROWS, BATCH = 4096, 64
BUSY_S = 2.0  # NVML tells the utilization of up to the last second


def set_up(**options):
    return devices.setup(device=KIND, **options)


def fit(engine="", data=None, model=None, **more):
    engine = engine or runtime.engine_names()[0]
    model = make_model() if model is None else model
    data = make_dataset(ROWS, batch_size=BATCH) if data is None else data
    report = training_fit.fit(model, data, {"epochs": 3, "engine": engine}, **more)
    return {
        "loss": report.history["loss"],
        "engine": report.engine.engine,
        "device": report.device,
        "devices": list(report.devices),
        "replicas": report.replicas,
        "variables": report.variables,
        "precision": report.precision,
        "peak_bytes": report.peak_bytes,
        "mode": report.plan.mode,
    }


def placement():
    """A setup, and a training that follows it."""
    set_up()
    return {"device": devices.current().device, **fit()}


def growth():
    """What the GPU has lost to this process, beside all of its memory."""
    record = set_up()
    found = fit()
    gpus = host.read_nvml() or []
    return {
        "settings": {one.name: one.value for one in record.settings},
        "peak_bytes": found["peak_bytes"],
        "taken": [1 - gpu.free_bytes / gpu.total_bytes for gpu in gpus],
    }


def precision():
    """Trainings in each precision, and the one that is chosen for the device."""
    found = {}
    for name in ("float32", "mixed_bfloat16", "mixed_float16", "auto"):
        record = set_up(precision=name)
        model = make_model()
        found[name] = fit(model=model) | {
            "chosen": record.precision,
            "computes": model.layers[0].compute_dtype,
            "keeps": str(model.layers[0].variable_dtype),
        }
    labels = [one.compute_capability for one in devices.read_devices() if one.kind == "GPU"]
    return found | {"capabilities": labels}


def xla():
    """The same training by each engine, products in full float32."""
    set_up(tf32=False, seed=1)
    return {engine: fit(engine) for engine in runtime.engine_names()}


def loops():
    """The same steps by programs that know their trip counts, and by one that does not."""
    set_up(tf32=False)
    found = {}
    for name, static in (("known", True), ("asked", False)):
        device, model = devices.current().device, make_model()
        block = make_block(device=device)
        engines = make_engines(model, block, device, static=static)
        engines.batch_s = 0.0  # a call takes the whole block
        program = prepare(engines, block) if runtime.backend() == "tensorflow" else None
        engines.run("compiled", block, 0, block.batches)
        weights = [float(value) for weight in model.get_weights() for value in weight.ravel()]
        sizes = getattr(program, "sizes", ())
        found[name] = {"sizes": sizes, "batches": block.batches, "weights": weights}
    return found


def prefetch():
    """Where the blocks of each mode are when they reach the engine."""
    set_up()
    found = {}
    for cache in ("auto", "host", "device"):
        data = make_dataset(ROWS, batch_size=BATCH, cache=cache)
        plan = data.plan(devices.current().device)
        blocks = list(loader.open_loader(data, plan).epoch(0))
        places = {tensor_ops.place_of(array) for block in blocks for array in block.arrays}
        rows = sum(block.batches * BATCH for block in blocks)
        found[cache] = {"mode": plan.mode, "ahead": plan.ahead, "places": sorted(places)}
        found[cache]["rows"] = rows
    return found


def monitor():
    """Samples while the device multiplies matrices."""
    set_up()
    size = 4096 if KIND == "gpu" else 256
    matrix = np.random.default_rng(1).normal(size=(size, size)).astype(np.float32)
    matrix = tensor_ops.put(matrix, devices.current().device)
    running = start_monitor(0.1)
    end = time.monotonic() + (BUSY_S if KIND == "gpu" else 0.2)
    while time.monotonic() < end:
        tensor_ops.wait(runtime.keras().ops.matmul(matrix, matrix)[0, 0])
    record = running.finish()
    columns = ("utilization_percent", "memory_bytes", "power_w", "temperature_c")
    gpus = [
        {name: float(np.nanmax(one.samples[name])) for name in columns} | {"name": one.name}
        for one in record.devices
    ]
    return {"samples": len(record.samples["time_s"]), "gpus": gpus, "verdict": record.verdict}


def profiled():
    """A profile's kernels and shares."""
    set_up()
    report = profile(make_model(), make_dataset(ROWS, batch_size=BATCH), {"steps": 20})
    return {
        "verdict": report.verdict,
        "device": report.device,
        "shares": report.shares,
        "kernels": [one.name for one in report.kernels],
        "kernel_s": sum(one.total_s for one in report.kernels),
        "bytes": report.bytes,
        "layers": [one.layer for one in report.layers],
    }


def mirrored():
    """One device by itself, as all there are, and Keras' own fit() in a strategy of one."""
    set_up()
    device = devices.current().device
    tf = runtime.tensorflow()
    named, every = fit(devices=[device]), fit(devices="all")
    with tf.distribute.MirroredStrategy([device]).scope():
        model = make_model()
    data = make_dataset(ROWS, batch_size=BATCH)
    x, y = data.arrays[:2]
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history
    return {"named": named, "all": every, "strategy": history["loss"]}


def split():
    """Two replicas, on halves of one device."""
    tf, kind = runtime.tensorflow(), KIND.upper()
    limit = {"memory_limit": 2048} if KIND == "gpu" else {}
    halves = [tf.config.LogicalDeviceConfiguration(**limit) for _ in range(2)]
    physical = tf.config.list_physical_devices(kind)[0]
    tf.config.set_logical_device_configuration(physical, halves)
    return {"one": fit(), "two": fit(devices=[f"{kind}:0", f"{kind}:1"])}


def memory():
    """Trainings of a model that needs more memory than there may be; for a GPU, see `test_job`."""
    from memory_child import BATCH, train

    set_up(memory=LIMIT_MIB)
    narrow = train("graph_loop", 10)
    stopped, halved = train("graph_loop", on_oom="stop"), train("graph_loop")
    return {"narrow": narrow, "stopped": stopped, "halved": halved, "batch": BATCH}


SHARED = (placement, growth, precision, xla, loops, prefetch, monitor, profiled, mirrored)
PARTS = (*SHARED, split, memory)


def main(names):
    if KIND == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    known = {part.__name__: part for part in PARTS}
    for name in names:
        try:
            told = {"found": known[name]()}
        except Exception:
            told = {"failed": traceback.format_exc()}
        print("\n" + json.dumps({"part": name, **told}), flush=True)


if __name__ == "__main__":
    main(sys.argv[2:])
