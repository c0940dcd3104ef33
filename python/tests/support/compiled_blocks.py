"""A block of batches and the engines that train on it."""

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.data.loader.loader import Block
from gpukeras.engine.engine_cache import ENGINES
from gpukeras.models.variables import build_variables

BATCHES = 40


def make_block(batches=BATCHES, size=4, device="CPU:0"):
    x = np.random.default_rng(1).normal(size=(batches * size, 5)).astype(np.float32)
    arrays = (x, (x[:, 0] > 0).astype(np.int32))
    return Block(tuple(tensor_ops.put(array, device) for array in arrays), batches, size)


def make_engines(model, block, device="CPU:0", **options):
    build_variables(model, tuple(array[:4] for array in block.arrays))
    return ENGINES[runtime.backend()](model, "train", 4, device, **options)


def prepare(engines, block):
    """Waits for the programs of calls as long as the block; returns what runs them."""
    engines.batch_s = 0.0  # a call takes the whole block
    engines.prepare("compiled", block)
    engines._made["compiled"].wait()
    assert engines.prepare("compiled", block)
    return engines._made["compiled"]
