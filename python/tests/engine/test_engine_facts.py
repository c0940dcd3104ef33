"""Which models are known to gain by XLA's loop on a CPU, and their FLOPs."""

import math
from dataclasses import replace

import pytest
from small_fits import make_model

from gpukeras.engine.autotune import CONVOLVES, REPEATS, choose_candidates
from gpukeras.engine.engine_facts import count_dense_flops, read_engine_facts

WEIGHTS = 5 * 8 + 8 + 8 * 3 + 3  # of make_model()


def build(*layers, shape=(5,)):
    import keras

    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile("sgd", "mse")
    return model


@pytest.mark.tf
@pytest.mark.float32(reason="only the FLOPs of float32 are counted")
def test_flops_are_those_of_three_matrix_products():
    assert count_dense_flops(make_model(), 32, "CPU:0") == 6 * WEIGHTS * 32
    assert read_engine_facts(make_model(), "auto", (), 32, "CPU:0").dense_flops == 6 * WEIGHTS * 32


@pytest.mark.tf
@pytest.mark.tensorflow
def test_a_repeatable_engine_is_chosen_without_measuring():
    facts = read_engine_facts(make_model(), "repeatable")
    assert (facts.requested, facts.repeats) == ("auto", True)
    assert choose_candidates(facts) == (("graph_loop", "keras", "compiled"), REPEATS)
    assert choose_candidates(replace(facts, available=("keras", "compiled")))[0] == ("compiled",)


@pytest.mark.tf
@pytest.mark.cpu(reason="the session computes on a CPU")
def test_convolutions_on_a_cpu_are_no_loop_on_jax():
    import keras

    model = build(keras.layers.Conv1D(2, 3), shape=(5, 1))
    facts = replace(read_engine_facts(model, "auto"), available=("keras", "compiled"))
    assert choose_candidates(facts) == (("keras",), CONVOLVES)
    assert not read_engine_facts(make_model(), "auto").convolves


@pytest.mark.tf
@pytest.mark.float32(reason="only the FLOPs of float32 are counted")
def test_layers_that_were_measured_count():
    import keras

    layers = [
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Rescaling(2.0),
        build(keras.layers.Dense(4), shape=(4,)),
    ]
    assert count_dense_flops(build(*layers), 1, "CPU:0") == 6 * (5 * 4 + 4 + 8 + 4 * 4 + 4)


def make_others():
    import keras

    class Dense(keras.layers.Dense):  # a class of the user's own
        pass

    yield build(Dense(3))
    yield build(keras.layers.Dense(3), shape=(4, 5))
    yield build(keras.layers.Conv1D(2, 3), shape=(5, 1))
    yield build(keras.layers.LSTM(2), shape=(5, 1))
    yield build(keras.layers.Dense(3, dtype="mixed_bfloat16"))


@pytest.mark.tf
def test_other_layers_and_dtypes_are_not_dense():
    assert [count_dense_flops(model, 1, "CPU:0") for model in make_others()] == [math.inf] * 5


@pytest.mark.tf
@pytest.mark.parametrize(("batch_size", "device"), [(32, "GPU:0"), (None, "CPU:0")])
def test_only_trainings_on_a_cpu_are_known(batch_size, device):
    assert read_engine_facts(make_model(), "auto", (), batch_size, device).dense_flops == math.inf
