"""The program of a training without rows: its shapes, its bytes, and the memory that it takes."""

import pytest
from children import run_script

pytestmark = pytest.mark.jax

# A layer whose activations are large, while its weights and rows are small.
MAKE = """
    import gc, resource
    import keras, numpy as np
    from gpukeras.backend.jax_module import jax
    from gpukeras.data.dataset.map_dataset import build_dataset
    from gpukeras.data.loader.loader import sample_rows
    from gpukeras.profiler.aot.compile import read_memory
    from gpukeras.profiler.aot.training_loop import describe_rows, take_loop

    SIZE, BATCHES = {size}, {batches}

    def make():
        wide = keras.layers.Dense(8192, "tanh")
        model = keras.Sequential([keras.Input((8,)), wide, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x, y = np.zeros((BATCHES * SIZE, 8), np.float32), np.zeros(BATCHES * SIZE, np.float32)
    labels = {{"kind": "number", "values": y, "levels": []}}
    options = {{"batch_size": SIZE, "seed": 1}}
    data = build_dataset({{"kind": "array", "values": x}}, options, labels)
    rows = describe_rows(sample_rows(data, 2))
    program, arguments = take_loop(make(), rows, SIZE, BATCHES)
    memory = read_memory(program.lower(*arguments).compile())
    state, _, arrays, *_ = arguments
    count = lambda leaves: sum(one.size * one.dtype.itemsize for one in jax().tree.leaves(leaves))
"""
# Trains once, and again with room for `factor` of what the card's memory is reckoned to hold.
TRAIN = """
    from dataclasses import replace
    from gpukeras.core.errors import OutOfMemoryError
    from gpukeras.profiler.aot.child import TrainingProgram
    from gpukeras.profiler.cost.card_cost import LIBRARY_BYTES, CardFacts, judge_card
    from gpukeras.system.cards import choose_card
    from gpukeras.training.fit import fit

    def held():
        gc.collect()
        (line,) = [one for one in open("/proc/self/status") if one.startswith("VmData:")]
        return 1024 * int(line.split()[1])

    made = TrainingProgram(
        count(state), count(arrays), memory.arguments, memory.outputs, memory.aliased,
        memory.temporary, None, None, 0, 0, 0, 0, 0.0,
    )
    stored = float(x.nbytes + y.nbytes)
    facts = CardFacts(choose_card("T4"), "float32", True, 0, SIZE, None, stored, 0.0, 2, 0.0, 0.0, made)
    total = next(one.value for one in judge_card(facts).figures if one.name == "total_bytes")
    room = int({factor} * (total - LIBRARY_BYTES))
    card = replace(facts.card, memory_mib=(LIBRARY_BYTES + room) // 2**20)
    fits = judge_card(replace(facts, card=card)).fits

    asked = {{"engine": "compiled", "epochs": 1, "on_oom": "stop"}}
    model = make()
    fit(model, data, asked)
    here = held() - int(stored) - count(state)  # rows and state are there already
    resource.setrlimit(resource.RLIMIT_DATA, (here + room, here + room))
    try:
        fit(model, data, asked)
        answer = [fits, True]
    except OutOfMemoryError:
        answer = [fits, False]
"""  # noqa: E501


@pytest.mark.slow
def test_arguments_and_outputs_are_the_bytes_of_the_arrays():
    found = run_script(
        MAKE.format(size=32, batches=4)
        + """
    answer = [rows, vars(memory), count(state), count(arrays)]
    """,
        KERAS_BACKEND="jax",
    )
    rows, memory, state, arrays = found
    assert rows == ["float32[8]", "float32[]"]
    assert arrays == 4 * 32 * (8 + 1) * 4
    # Two layers; SGD's rate and count; the loss's two numbers; the monitor's two.
    assert state == 4 * (8 * 8192 + 8192 + 8192 + 1 + 2 + 2 + 2)
    numbers = 4 * 2  # the first batch, and the number of them, which are no arrays
    assert state + arrays <= memory["arguments"] <= state + arrays + numbers
    assert memory["aliased"] == state
    assert state <= memory["outputs"] <= state + 128  # logs, and the tuple's pointers


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "fits"), [(0.95, False), (1.1, True)])
def test_what_fits_trains_and_what_does_not_runs_out_of_memory(factor, fits):
    # One call: on a CPU, JAX keeps a call's memory until the next one has taken its own.
    script = MAKE.format(size=16384, batches=1) + TRAIN.format(factor=factor)
    assert run_script(script, KERAS_BACKEND="jax", GPUKERAS_XLA_CACHE="off") == [fits, fits]
