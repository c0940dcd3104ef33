import contextlib
import json
import math

import numpy as np
import pytest
from keras_fits import OPTIMIZERS, optimizer_class
from nightly import few

from gpukeras import ModelError, SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.engine import optimizer as engine_optimizer
from gpukeras.engine.optimizer import check_clipping, hold_clipping, override_schedule, read_rate
from gpukeras.engine.schedules import draw_rates, parse_schedule
from gpukeras.training import fit

pytestmark = pytest.mark.tf

ONE_CYCLE = parse_schedule({"kind": "one_cycle"})
CONSTANT = parse_schedule({"kind": "constant"})
STEPS, EPOCHS = 12, 2  # steps of an epoch, epochs


def a_recorder(optimizer=None, **compiled):
    """A linear model whose weight k, after a batch of the unit vector k, is minus that step's rate.

    The loss is the prediction itself, so the gradient of weight k is 1 and of all others 0.
    """
    keras = runtime.keras()
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((STEPS * EPOCHS,)), dense])
    optimizer = optimizer or keras.optimizers.SGD(0.5)
    model.compile(optimizer, lambda y, prediction: runtime.keras().ops.mean(prediction), **compiled)
    model.optimizer.build(model.trainable_variables)
    return model


def recorded(model):
    return -model.get_weights()[0][:, 0]


def units(first=0, last=STEPS * EPOCHS):
    x = np.eye(STEPS * EPOCHS, dtype=np.float32)
    return [(x[k : k + 1], np.zeros((1, 1), np.float32)) for k in range(first, last)]


def train(model, batches, jit=False):
    """Trains step by step, in one graph a step; eagerly with `jit = None`."""
    tf = runtime.tensorflow()
    step = model.train_step if jit is None else tf.function(model.train_step, jit_compile=jit)
    for batch in batches:
        step(tuple(tf.constant(array) for array in batch))


def expected(spec=ONE_CYCLE, base=0.5):
    return draw_rates(spec, base, STEPS * EPOCHS, STEPS)


def names_of(optimizer):
    return [(variable.path, id(variable)) for variable in optimizer.variables]


# Rates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
def test_each_step_uses_the_tables_rate(jit):
    model = a_recorder()
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS) as rates:
        train(model, units(last=4), jit)
        assert (read_rate(model, -1), read_rate(model)) == tuple(expected()[3:5])
        train(model, units(first=4), jit)
        assert rates.current() == expected()[-1]  # beyond the end the last one holds
    np.testing.assert_array_equal(recorded(model), expected())


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_each_step_of_a_loop_inside_a_graph_uses_the_tables_rate(jit):
    tf, model = runtime.tensorflow(), a_recorder()
    x, y = (np.concatenate(arrays)[:, None] for arrays in zip(*units(), strict=True))

    @tf.function(jit_compile=jit)
    def loop(x, y):
        def body(k):
            model.train_step((x[k], y[k]))
            return (k + 1,)

        tf.while_loop(lambda k: k < len(x), body, (0,))

    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS):
        loop(tf.constant(x), tf.constant(y))
    np.testing.assert_array_equal(recorded(model), expected())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["keras", "graph_loop", "compiled"])
def test_each_engine_uses_the_tables_rates(engine):
    model = a_recorder()
    x, y = np.eye(STEPS * EPOCHS), np.zeros(STEPS * EPOCHS)
    data = map_dataset.build_dataset(
        {"kind": "array", "values": x},
        {"batch_size": 1, "shuffle": False},
        {"kind": "number", "values": y},
    )
    with override_schedule(model, ONE_CYCLE, STEPS * EPOCHS, 1):
        fit.fit(model, data, {"epochs": 1, "engine": engine})
    np.testing.assert_array_equal(
        recorded(model), draw_rates(ONE_CYCLE, 0.5, STEPS * EPOCHS, STEPS * EPOCHS)
    )


def test_a_traced_program_sees_the_factor_and_the_start_change():
    tf, model = runtime.tensorflow(), a_recorder()
    step = tf.function(model.train_step, jit_compile=True)
    batches = [tuple(tf.constant(array) for array in batch) for batch in units()]
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS) as rates:
        step(batches[0])
        assert rates.reduce(0.5)
        step(batches[1])
        rates.set_state({"start": -5, "factor": 0.25}, {})
        step(batches[2])
        assert step.experimental_get_tracing_count() == 1
    table = expected()
    np.testing.assert_allclose(
        recorded(model)[:3], [table[0], table[1] / 2, table[7] / 4], rtol=1e-6
    )


def test_a_second_training_starts_its_table_anew_and_a_resumed_one_goes_on():
    model = a_recorder()
    for first in (0, 6):  # interrupted after six steps
        with override_schedule(model, ONE_CYCLE, 6, EPOCHS, start=0):
            train(model, units(first, first + 6))
    with override_schedule(model, ONE_CYCLE, 6, EPOCHS):
        train(model, units(12, 24))
    table = draw_rates(ONE_CYCLE, 0.5, 12, 6)
    np.testing.assert_array_equal(recorded(model), [*table, *table])


def test_the_state_is_plain_and_brings_the_rates_back():
    model = a_recorder()
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS, start=-3) as rates:
        rates.reduce(0.5)
        state, rate = json.loads(json.dumps(rates.get_state()[0])), rates.current()
    assert state == {"start": -3, "factor": 0.5}
    assert rate == expected()[3] / 2
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS) as rates:
        assert rates.current() == expected()[0]
        rates.set_state(state, {})
        assert rates.current() == rate
        assert rates.get_state() == (state, {})


def test_rates_are_reduced_to_the_lowest_and_never_raised():
    model = a_recorder()
    with override_schedule(model, CONSTANT, STEPS, EPOCHS) as rates:
        assert [rates.reduce(0.5, 0.1) for _ in range(4)] == [True, True, True, False]
        assert rates.current() == np.float32(0.1)
        assert not rates.reduce(0.5, 0.4)
        assert rates.current() == np.float32(0.1)


def test_a_long_training_has_a_table_of_bounded_size(monkeypatch):
    monkeypatch.setattr(engine_optimizer, "LONGEST_TABLE", 9)
    model = a_recorder()
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS):
        train(model, units())
    np.testing.assert_array_equal(recorded(model), np.repeat(expected()[::3], 3))


def test_a_schedule_that_needs_a_length_is_refused_without_one():
    model = a_recorder()
    with (
        pytest.raises(SpecError, match="how many batches"),
        override_schedule(model, ONE_CYCLE, None, 2),
    ):
        raise AssertionError
    with override_schedule(model, CONSTANT, None, 2) as rates:
        train(model, units())
        assert rates.current() == 0.5
    assert (recorded(model) == 0.5).all()


# The optimizer's own -----------------------------------------------------------------------------


def test_the_optimizers_own_rate_is_back_afterwards_also_after_an_error():
    model = a_recorder()
    own, before = model.optimizer._learning_rate, names_of(model.optimizer)
    stop = contextlib.ExitStack()
    stop.enter_context(override_schedule(model, ONE_CYCLE, STEPS, EPOCHS))
    assert names_of(model.optimizer) == before
    with pytest.raises(KeyboardInterrupt), stop:
        raise KeyboardInterrupt
    assert model.optimizer._learning_rate is own
    assert "get_config" not in vars(model.optimizer)
    assert names_of(model.optimizer) == before
    assert read_rate(model) == 0.5
    model.optimizer.learning_rate = 0.25
    assert read_rate(model) == 0.25


@pytest.mark.float32(reason="reads the inner optimizer")
def test_a_schedule_of_the_optimizers_own_gives_the_base_and_is_back_afterwards():
    keras = runtime.keras()
    own = keras.optimizers.schedules.ExponentialDecay(0.5, 6, 0.5, staircase=True)
    model = a_recorder(keras.optimizers.SGD(own))
    train(model, units(0, 6))
    with override_schedule(model, CONSTANT, STEPS, EPOCHS) as rates:
        assert rates.base == 0.25
        train(model, units(6, 9))
    assert model.optimizer._learning_rate is own
    train(model, units(9, 15))
    np.testing.assert_array_equal(recorded(model)[:15], [0.5] * 6 + [0.25] * 6 + [0.125] * 3)
    with override_schedule(model, CONSTANT, STEPS, EPOCHS, start=0) as rates:
        assert rates.base == 0.5  # what it was when the training began


def test_a_rate_that_is_a_function_gives_the_base_and_is_back_afterwards():
    model = a_recorder(runtime.keras().optimizers.SGD(lambda: 0.125))
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS) as rates:
        assert rates.base == 0.125
        assert float(model.optimizer.learning_rate) == rates.current() == read_rate(model)
    assert read_rate(model) == 0.125


def test_under_loss_scaling_the_inner_optimizer_is_held():
    keras = runtime.keras()
    model = a_recorder(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)))
    own, before = model.optimizer.inner_optimizer._learning_rate, names_of(model.optimizer)
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS), hold_clipping(model, clip_norm=0.5):
        assert names_of(model.optimizer) == before
        train(model, units(), jit=True)
    np.testing.assert_array_equal(recorded(model), expected() / 2)
    assert model.optimizer.inner_optimizer._learning_rate is own
    assert model.optimizer.inner_optimizer.clipnorm is None
    assert read_rate(model) == 0.5


def test_a_mixed_precision_model_trains_by_a_schedule():
    keras = runtime.keras()
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_float16")
        model = a_recorder()
    finally:
        keras.config.set_dtype_policy(before)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    with override_schedule(model, ONE_CYCLE, STEPS, EPOCHS):
        train(model, units(), jit=True)
    np.testing.assert_allclose(recorded(model), expected(), rtol=1e-3)


def test_an_optimizer_made_of_several_is_refused():
    keras, make = runtime.keras(), optimizer_class("MultiOptimizer")
    model = a_recorder(make(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5))))
    for arg, held in {
        "schedule": override_schedule(model, ONE_CYCLE, STEPS, EPOCHS),
        "clip_value": hold_clipping(model, clip_value=1),
    }.items():
        with pytest.raises(ModelError, match=f"`{arg}` needs a model with one optimizer"), held:
            raise AssertionError
    assert math.isnan(read_rate(model))


# Every optimizer ---------------------------------------------------------------------------------


def a_model(optimizer):
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def a_batch(rows=32, seed=1, scale=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 6)).astype("f"), scale * rng.normal(size=(rows, 3)).astype("f")


def test_all_of_keras_optimizers_are_tested():
    keras = runtime.keras()
    found = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    assert found - {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"} <= set(OPTIMIZERS)


@pytest.mark.varies
@pytest.mark.parametrize("name", few(OPTIMIZERS, "Adam", "Muon"))
def test_every_optimizer_keeps_its_variables_and_its_files(name, tmp_path):
    keras = runtime.keras()
    model = a_model(optimizer_class(name)(0.01))
    before = names_of(model.optimizer)
    with override_schedule(model, ONE_CYCLE, 3, 2), hold_clipping(model, clip_global_norm=1.0):
        train(model, [a_batch(seed=seed) for seed in range(3)], jit=True)
        assert names_of(model.optimizer) == before
        model.save(tmp_path / "inside.keras")
        inside = [variable.numpy() for variable in model.optimizer.variables]
        train(model, [a_batch(seed=seed) for seed in range(3)], jit=None)
    assert names_of(model.optimizer) == before
    assert read_rate(model) == np.float32(0.01)
    model.save(tmp_path / "after.keras")
    outside = [variable.numpy() for variable in model.optimizer.variables]
    for file, values in {"inside": inside, "after": outside}.items():
        loaded = keras.models.load_model(tmp_path / f"{file}.keras")
        for variable, value in zip(loaded.optimizer.variables, values, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
        assert loaded.optimizer.global_clipnorm is None
    assert [len(w) for w in loaded.get_weights()] == [len(w) for w in model.get_weights()]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(OPTIMIZERS, "Adam", "Adafactor", "Muon"))
def test_a_constant_table_of_an_optimizers_own_rate_changes_nothing(name):
    # Without a schedule, Adafactor lowers the rate that it is given by the number of steps.
    options = {"relative_step": False} if name == "Adafactor" else {}
    results = []
    for held in (False, True):
        model = a_model(optimizer_class(name)(0.01, **options))
        with override_schedule(model, CONSTANT, 2, 1) if held else contextlib.nullcontext():
            train(model, [a_batch(seed=seed) for seed in range(2)], jit=None)
        results.append(model.get_weights())
    for alone, under_schedule in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, under_schedule)


# Clipping ----------------------------------------------------------------------------------------


def steps_of(clipping, jit=None, **compiled):
    """How far each variable goes in one step of SGD at rate 1 from a loss that is far too high."""
    model = a_model(runtime.keras().optimizers.SGD(1.0, **compiled))
    before = model.get_weights()
    with hold_clipping(model, **clipping):
        train(model, [a_batch(scale=1e4)], jit)
    assert (model.optimizer.clipnorm, model.optimizer.clipvalue) == (
        compiled.get("clipnorm"),
        compiled.get("clipvalue"),
    )
    assert "get_config" not in vars(model.optimizer)
    return [after - start for start, after in zip(before, model.get_weights(), strict=True)]


@pytest.mark.float32(reason="loss scaling leaves out the only step")
def test_steps_that_are_not_clipped_are_far_longer():
    assert min(np.linalg.norm(step) for step in steps_of({})) > 5


@pytest.mark.float32(reason="loss scaling leaves out the only step")
@pytest.mark.parametrize("jit", few([None, False, True], None, False))
def test_clipping_bounds_what_a_step_changes(jit):
    for step in steps_of({"clip_norm": 0.5}, jit):
        np.testing.assert_allclose(np.linalg.norm(step), 0.5, rtol=1e-4)
    largest = max(np.abs(step).max() for step in steps_of({"clip_value": 0.25}, jit))
    np.testing.assert_allclose(largest, 0.25, rtol=1e-4)
    together = np.concatenate([step.ravel() for step in steps_of({"clip_global_norm": 2}, jit)])
    np.testing.assert_allclose(np.linalg.norm(together), 2, rtol=1e-4)


@pytest.mark.float32(reason="loss scaling leaves out the only step")
def test_clipping_in_the_models_own_way_takes_the_place_of_its_bound():
    for step in steps_of({"clip_norm": 0.5}, clipnorm=0.1):
        np.testing.assert_allclose(np.linalg.norm(step), 0.5, rtol=1e-4)


def test_clipping_in_another_way_than_the_model_was_compiled_with_is_refused():
    model = a_model(runtime.keras().optimizers.Adam(clipvalue=1.0))
    with pytest.raises(SpecError, match="`clip_norm` is given, but .* `clipvalue`") as error:
        hold_clipping(model, clip_norm=1).__enter__()
    assert error.value.details == {"arg": "clip_norm"}


@pytest.mark.parametrize(
    ("given", "message", "arg"),
    [
        ((1, 2, None), "`clip_norm` and `clip_value` are given", "clip_norm"),
        ((None, 1, 2), "`clip_value` and `clip_global_norm` are given", "clip_value"),
        ((0, None, None), "`clip_norm` must be above 0, not 0", "clip_norm"),
        ((None, "1", None), '`clip_value` must be a number, not "1"', "clip_value"),
        ((None, None, float("inf")), "`clip_global_norm` must be a number", "clip_global_norm"),
    ],
)
def test_bad_clipping_is_refused(given, message, arg):
    with pytest.raises(SpecError, match=message) as error:
        check_clipping(*given)
    assert error.value.details == {"arg": arg}


def test_the_one_way_to_clip_is_told():
    assert check_clipping(None, None, None) == {}
    assert check_clipping(None, 2, None) == {"clip_value": 2.0}
