import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
from children import needs_gpu, run_script
from conftest import make_model
from hypothesis import given
from hypothesis import strategies as st

from gpukeras import evidence, runtime, untouched, usage
from gpukeras.errors import DataError, ModelError, SpecError

CPU_UNREAD = {"numeric", "peak_rise_bytes", "capability", "cpu_only_ops"}


def make_sequences(rows=48, steps=6, columns=3):
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, steps, columns)).astype("float32")
    return x, random.integers(0, 2, rows).astype("float32")


def make_recurrent(*layers):
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((6, 3)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    return model


# A use of the CPU --------------------------------------------------------------------------------


@pytest.mark.tf
def test_the_use_of_the_cpu_is_told_in_full(dataset):
    model = make_model(optimizer="adam")
    use = usage.read_use(model, dataset, "CPU:0")
    assert set(use) == {*usage.FACTS, "device", "unread"}
    assert set(use["unread"]) == {name for name in usage.FACTS if use[name] is None}
    assert set(use["unread"]) <= CPU_UNREAD
    assert use["device"] == "CPU:0"
    assert use["variables"] == {"CPU:0": 4}
    assert set(use["placement"]) == {"CPU:0"}
    assert any("MatMul" in op for op in use["placement"]["CPU:0"])
    assert use["hard_placement_error"] == ""
    assert all(use[name] > 0 for name in ("first_s", "median_s", "repeated_s", "host_s", "steps"))
    assert use["retraces"] == 0
    assert (use["eager"], use["jit"], use["py_function"]) == (False, False, False)
    assert (use["policy"], use["input_dtypes"]) == ("float32", ["float32"])
    assert (use["rnn"], use["batch_size"]) == ([], 32)
    assert use["expected_bytes"] == 32 * 5 * 4 + 5 * 8 * 4  # the labels are int32
    if not runtime.physical_devices("GPU"):
        assert use["trace"]["kernels"] == 0
        assert use["trace"]["kernel_s"] == 0
        assert use["gpus"] == use["gpus_used"] == 0


@pytest.mark.tf
def test_plain_arrays_are_batches_too():
    random = np.random.default_rng(1)
    arrays = random.normal(size=(40, 5)), random.integers(0, 3, 40)
    use = usage.read_use(make_model(), arrays, "CPU:0", batch_size=16)
    assert use["input_dtypes"] == ["float64"]
    assert use["batch_size"] == 16
    assert use["steps"] > 0


@pytest.mark.tf
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_few_rows_are_enough(rows):
    arrays = np.zeros((rows, 5), "float32"), np.zeros(rows, "float32")
    use = usage.read_use(make_model(), arrays, "CPU:0")
    assert set(use["unread"]) <= CPU_UNREAD
    assert use["batch_size"] == min(32, rows)


@pytest.mark.tf
@pytest.mark.skipif("runtime.physical_devices('GPU')", reason="has a GPU")
def test_a_gpu_that_is_not_there_is_not_used(dataset):
    use = usage.read_use(make_model(), dataset, "GPU:0")
    assert use["variables"] == {"CPU:0": 4}
    assert set(use["placement"]) == {"CPU:0"}
    assert use["unread"]["hard_placement_error"] == "TensorFlow has no GPU:0"
    assert use["gpus_used"] == 0
    assert use["trace"]["kernels"] is None
    assert use["trace"]["kernel_s"] is None
    assert use["trace"]["error"] == "the profiler recorded no GPU"
    assert {"peak_rise_bytes", "numeric", "capability"} <= set(use["unread"])


@pytest.mark.tf
@pytest.mark.skipif("runtime.physical_devices('GPU')", reason="has a GPU")
def test_an_op_that_cannot_be_where_it_should_is_named(dataset):
    keras, tf = runtime.keras(), runtime.tensorflow()

    class Elsewhere(keras.layers.Layer):
        def call(self, x):
            with tf.device("/GPU:0"):
                return tf.roll(x, 1, 0, name="elsewhere")

    use = usage.read_use(make_model(layers=[Elsewhere()]), dataset, "CPU:0", batches=2)
    assert "elsewhere" in use["hard_placement_error"]
    assert use["placement"]["CPU:0"]["Roll"] == 2  # it and its gradient
    assert use["steps"] > 0


@pytest.mark.tf
def test_what_does_not_fit_is_refused(dataset):
    keras = runtime.keras()
    with pytest.raises(SpecError, match="must be a Keras 3 model"):
        usage.read_use(object(), dataset, "CPU:0")
    with pytest.raises(ModelError, match="not compiled"):
        usage.read_use(keras.Sequential([keras.layers.Dense(1)]), dataset, "CPU:0")
    with pytest.raises(ModelError, match="takes rows of shape"):
        usage.read_use(make_model(columns=9), dataset, "CPU:0")
    with pytest.raises(ModelError, match="cannot build"):
        usage.read_use(make_model(), (np.zeros((8, 9)), np.zeros(8)), "CPU:0")
    with pytest.raises(DataError, match="of one length"):
        usage.read_use(make_model(), (np.zeros((8, 5)), np.zeros(7)), "CPU:0")


# How a model is set ------------------------------------------------------------------------------


@pytest.mark.tf
def test_an_eager_model_is_told(dataset):
    model = make_model()
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert use["eager"] is True
    assert use["jit"] is False
    assert use["retraces"] is None
    assert use["steps"] > 0


@pytest.mark.tf
def test_xla_is_told(dataset):
    model = make_model()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert use["jit"] is True
    assert set(use["unread"]) <= CPU_UNREAD
    assert use["expected_bytes"] == 32 * 5 * 4


@pytest.mark.tf
@pytest.mark.parametrize("policy", ["float64", "mixed_bfloat16"])
def test_the_policy_of_the_weights_is_told(dataset, policy):
    keras = runtime.keras()
    layers = [keras.layers.Dense(32, dtype=policy), keras.layers.Dense(32, dtype=policy)]
    model = make_model(layers=layers)
    assert model.dtype_policy.name == "float32"
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert use["policy"] == policy


@pytest.mark.tf
def test_python_in_the_graph_is_told(dataset):
    keras, tf = runtime.keras(), runtime.tensorflow()

    class Slow(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.py_function(lambda v: v * 2, [x], tf.float32), x.shape)

    use = usage.read_use(make_model(layers=[Slow()]), dataset, "CPU:0", batches=2)
    assert use["py_function"] is True


@pytest.mark.tf
def test_retracing_is_counted(dataset):
    model, source = make_model(), usage.Source(dataset, "CPU:0")
    with untouched.untouched(model, source):
        reading = usage._Reading(model, source, "CPU:0", 2)
        reading._read_first()
        assert reading.tracings == 1
        reading._run([source.place(source.batch(rows)) for rows in (7, 9)])
        assert reading._read_speed()["retraces"] >= 1


# Recurrent layers --------------------------------------------------------------------------------


@pytest.mark.tf
def test_recurrent_layers_without_cudnn_are_named():
    layers = runtime.keras().layers
    model = make_recurrent(
        layers.LSTM(2, return_sequences=True, name="fine"),
        layers.LSTM(2, recurrent_dropout=0.2, return_sequences=True, name="slow"),
        layers.Bidirectional(layers.GRU(2, reset_after=False, return_sequences=True), name="both"),
        layers.RNN(layers.LSTMCell(2), return_sequences=True, name="own"),
        layers.TimeDistributed(layers.Dense(2)),
        layers.SimpleRNN(2, name="simple"),
    )
    found = {each["layer"]: (each["class"], each["argument"]) for each in evidence.read_rnn(model)}
    forward, backward = (f"{side}_gru" for side in ("forward", "backward"))
    sides = [name for name in found if name.startswith((forward, backward))]
    assert len(sides) == 2
    assert {found.pop(name) for name in sides} == {("GRU", "reset_after")}
    assert found == {
        "slow": ("LSTM", "recurrent_dropout"),
        "own": ("RNN", "cell"),
        "simple": ("SimpleRNN", "cell"),
    }


@pytest.mark.tf
@pytest.mark.parametrize(
    ("arguments", "forbids"),
    [
        ({}, ""),
        ({"dropout": 0.5}, ""),
        ({"activation": "relu"}, "activation"),
        ({"recurrent_activation": "hard_sigmoid"}, "recurrent_activation"),
        ({"unroll": True}, "unroll"),
        ({"use_bias": False}, "use_bias"),
        ({"recurrent_dropout": 0.1}, "recurrent_dropout"),
        ({"use_cudnn": False}, "use_cudnn"),
    ],
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_each_argument_that_forbids_cudnn_is_found(kind, arguments, forbids):
    layer = getattr(runtime.keras().layers, kind)(2, **arguments)
    found = evidence.read_rnn(make_recurrent(layer))
    assert [each["argument"] for each in found] == ([forbids] if forbids else [])


@pytest.mark.tf
def test_a_recurrent_model_is_read_whole():
    model = make_recurrent(runtime.keras().layers.LSTM(2, recurrent_dropout=0.2, name="slow"))
    use = usage.read_use(model, make_sequences(), "CPU:0", batches=2)
    assert use["rnn"] == [{"layer": "slow", "class": "LSTM", "argument": "recurrent_dropout"}]
    assert set(use["unread"]) <= CPU_UNREAD


# Two devices -------------------------------------------------------------------------------------

TWO_CPUS = """
import numpy as np
from gpukeras import evidence, runtime, usage
tf = runtime.tensorflow()
logical = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
keras = runtime.keras()
keras.utils.set_random_seed(1)
def make(*layers):
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model
rows = np.random.default_rng(1).normal(size=(64, 5)).astype("float32"), np.zeros(64, "float32")
"""


@pytest.mark.tf
def test_weights_on_another_device_show_up():
    script = TWO_CPUS + "with tf.device('/CPU:1'): model = make(keras.layers.Dense(8))\n"
    use = run_script(script + "answer = usage.read_use(model, rows, 'CPU:0', batches=2)")
    assert use["variables"] == {"CPU:1": 4}
    assert set(use["placement"]) == {"CPU:0", "CPU:1"}
    assert use["placement"]["CPU:1"]["ReadVariableOp"] > 0
    assert "_Send" in use["placement"]["CPU:1"]
    assert use["hard_placement_error"] == ""  # a variable is read where it is, which is no error


@pytest.mark.tf
def test_a_second_device_is_used_as_asked():
    script = TWO_CPUS + "with tf.device('/CPU:1'): model = make(keras.layers.Dense(8))\n"
    use = run_script(script + "answer = usage.read_use(model, rows, 'CPU:1', batches=2)")
    assert use["variables"] == {"CPU:1": 4}
    assert use["hard_placement_error"] == ""
    assert set(use["unread"]) <= CPU_UNREAD


@pytest.mark.tf
def test_outputs_of_two_devices_are_compared():
    # The check itself on two real devices: what a GPU and the CPU are is for the reading to know.
    script = (
        TWO_CPUS
        + """
layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(8)]
with tf.device('/CPU:1'): model = make(*layers)
source = usage.Source(rows, 'CPU:1')
reading = usage._Reading(model, source, 'CPU:1', 2)
reading.gpu = True
answer = [reading._read_numeric()['numeric']]
there, here = (reading._outputs(rows[0], place) for place in ('CPU:1', 'CPU:0'))
there[0] = there[0][::-1]  # each row's output for another row
answer.append(evidence.judge_outputs(there, here, ['float32']))
"""
    )
    right, wrong = run_script(script)
    assert right["ok"] is True
    assert right["deviation"] < 1e-5
    assert wrong["ok"] is False
    assert wrong["deviation"] > wrong["tolerance"]


# The model stays as it was -----------------------------------------------------------------------


def state_of(model):
    """Everything of a model that training could change, by value and by identity."""
    optimizer = model.optimizer
    variables = [*model.variables, *model.metrics_variables, *optimizer.variables]
    return {
        "variables": [id(each) for each in variables],
        "values": [each.numpy().tolist() for each in variables],
        "devices": runtime.variable_devices(model),
        "optimizer": (id(optimizer), optimizer.built, float(optimizer.iterations)),
        "metrics": [id(each) for each in model.metrics],
        "metrics_built": [each.built for each in model.metrics if hasattr(each, "built")],
        "loss_built": model._compile_loss.built,
        "functions": [model.train_function, model.test_function, model.predict_function],
        "settings": [model.stop_training, model.steps_per_execution, model.jit_compile],
        "own": sorted(vars(model)),
        "losses": len(model.losses),
        "seed": np.random.get_state()[1].tolist(),
        "soft": runtime.tensorflow().config.get_soft_device_placement(),
    }


def make_stateful():
    keras = runtime.keras()
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3)]
    layers.append(keras.layers.Dense(4, activity_regularizer="l2"))
    return make_model(optimizer=keras.optimizers.Adam(0.1), layers=layers)


@pytest.mark.tf
@pytest.mark.parametrize("trained", [False, True])
def test_the_model_is_as_before(dataset, trained):
    model = make_stateful()
    if trained:
        model.steps_per_execution = 3
        model.fit(*dataset.arrays, epochs=2, verbose=0)
        model.evaluate(*dataset.arrays, verbose=0)
        model.stop_training = True
    before = state_of(model)
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert use["steps"] > 0
    after = state_of(model)
    if trained:
        after["losses"] = before["losses"]  # of the last batch of an earlier step
    assert after == before


@pytest.mark.tf
def test_an_untrained_model_then_trains_as_if_nothing_had_been(dataset):
    plain, checked = make_stateful(), make_stateful()
    checked.set_weights(plain.get_weights())
    usage.read_use(checked, dataset, "CPU:0", batches=2)
    histories = [
        model.fit(*dataset.arrays, epochs=2, verbose=0, shuffle=False).history
        for model in (plain, checked)
    ]
    assert histories[0] == histories[1]
    for one, two in zip(plain.variables, checked.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


@pytest.mark.tf
def test_the_model_is_as_before_also_after_an_exception(dataset):
    model = make_stateful()
    before = state_of(model)

    class StopError(Exception):
        pass

    def train_and_stop():
        with untouched.untouched(model, usage.Source(dataset, "CPU:0")):
            model.make_train_function(force=True)
            model.train_function(iter([dataset.batch(32)]))
            assert model.optimizer.built
            raise StopError

    with pytest.raises(StopError):
        train_and_stop()
    assert state_of(model) == before


@pytest.mark.tf
def test_a_step_that_fails_is_told_and_leaves_the_model(dataset):
    keras, tf = runtime.keras(), runtime.tensorflow()

    class Failing(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                with tf.control_dependencies([tf.debugging.assert_less(x, -1e9)]):
                    return tf.identity(x)
            return x

    model = make_model(optimizer="adam", layers=[Failing()])
    before = state_of(model)
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert "InvalidArgumentError" in use["unread"]["first_s"]
    assert use["hard_placement_error"] is None
    assert use["first_s"] is use["median_s"] is use["trace"] is None
    assert use["variables"] == {"CPU:0": 4}
    assert state_of(model) == before


@pytest.mark.tf
def test_an_interrupt_goes_on_and_leaves_the_model(dataset):
    model = make_stateful()
    before = state_of(model)

    source = usage.Source(dataset, "CPU:0")

    def interrupt():
        with untouched.untouched(model, source):
            reading = usage._Reading(model, source, "CPU:0", 2)
            reading._read_first()
            reading._read("trace", lambda: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert state_of(model) == before


@pytest.mark.tf
@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [
        (lambda keras: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)), None),
        (lambda keras: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1), None),
        (lambda keras: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), None),
        (lambda keras: "adam", "mixed_float16"),
    ],
)
def test_any_optimizer_is_as_before(dataset, optimizer, policy):
    keras = runtime.keras()
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3, "softmax", dtype=policy)], name="small"
    )
    if policy:
        model.dtype_policy = policy
    metrics = ["accuracy", keras.metrics.SparseCategoricalAccuracy()]
    model.compile(optimizer(keras), "sparse_categorical_crossentropy", metrics=metrics)
    for _ in range(2):
        before = state_of(model)
        use = usage.read_use(model, dataset, "CPU:0", batches=2)
        assert set(use["unread"]) <= CPU_UNREAD
        assert state_of(model) == before
        model.fit(*dataset.arrays, verbose=0)


@pytest.mark.tf
def test_looked_up_rows_are_as_before():
    keras = runtime.keras()
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    random = np.random.default_rng(1)
    arrays = random.integers(0, 50, (40, 3)).astype("float32"), random.normal(size=40)
    model.fit(*arrays, verbose=0)
    before = state_of(model)
    use = usage.read_use(model, arrays, "CPU:0", batches=2)
    assert use["expected_bytes"] == 32 * (3 * 4 + 8)  # no gradient is as large as the table
    assert state_of(model) == before


@pytest.mark.tf
def test_an_optimizer_without_a_config_is_no_obstacle(dataset):
    keras = runtime.keras()

    class Own(keras.optimizers.SGD):
        def get_config(self):
            raise NotImplementedError

    model = make_model(optimizer=Own(0.1))
    weights = model.get_weights()
    use = usage.read_use(model, dataset, "CPU:0", batches=2)
    assert use["steps"] > 0
    assert float(model.optimizer.iterations) == 0
    for one, two in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.tf
def test_a_model_without_weights_gets_them_as_fit_would_make_them(dataset):
    keras = runtime.keras()

    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    plain, checked = make(), make()
    plain.build((None, 5))
    usage.read_use(checked, dataset, "CPU:0", batches=2)
    for one, two in zip(plain.get_weights(), checked.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.tf
def test_nothing_is_left_behind(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usage.read_use(make_model(), dataset, "CPU:0", batches=2)
    assert list(Path(tmp_path).iterdir()) == []
    gc.collect()
    with runtime.collect_graphs() as graphs:
        pass
    assert graphs == []


# Pure parts --------------------------------------------------------------------------------------

KERNELS = {
    "MatMul": {"CPU", "GPU"},
    "UniqueV2": {"CPU"},
    "StringSplitV2": {"CPU", "XLA_CPU"},
    "NoOp": {"DEFAULT"},
    "Shape": {"CPU", "DEFAULT"},
    "CudnnRNNV3": {"GPU"},
}


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([], []),
        (["MatMul", "NoOp", "Shape", "CudnnRNNV3"], []),
        (["UniqueV2", "MatMul", "StringSplitV2", "UniqueV2"], ["StringSplitV2", "UniqueV2"]),
        (["__inference_step_12"], []),
    ],
)
def test_ops_without_a_gpu_kernel_are_chosen(ops, found):
    assert evidence.choose_cpu_only(ops, KERNELS) == found


@given(st.lists(st.text(max_size=4)), st.dictionaries(st.text(max_size=4), st.sets(st.text())))
def test_chosen_ops_are_among_those_given(ops, kernels):
    assert set(evidence.choose_cpu_only(ops, kernels)) <= set(ops) & set(kernels)


@pytest.mark.tf
def test_the_kernels_of_this_build_are_known():
    kernels = runtime.registered_kernels()
    assert "CPU" in kernels["MatMul"]
    assert "CPU" in kernels["StringSplitV2"]
    assert "GPU" not in kernels["StringSplitV2"]


@pytest.mark.parametrize(
    ("there", "here", "dtype", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.0], "float32", True),
        ([1.0, 2.01], [1.0, 2.0], "float32", True),
        ([1.0, 2.01], [1.0, 2.0], "float64", False),
        ([1.0, 3.0], [1.0, 2.0], "float32", False),
        ([1.0, 2.3], [1.0, 2.0], "bfloat16", True),
        ([0.0, 0.0], [0.0, 0.0], "float32", True),
        ([0.0, 1.0], [0.0, 0.0], "float32", False),
        ([1.0, np.nan], [1.0, 2.0], "float32", False),
        ([1.0], [1.0, 2.0], "float32", False),
    ],
)
def test_outputs_are_judged(there, here, dtype, ok):
    found = evidence.judge_outputs([np.array(there)], [np.array(here)], [dtype])
    assert found["ok"] is ok


def test_the_least_exact_layer_decides():
    there, here = [np.array([1.0, 2.15])], [np.array([1.0, 2.0])]
    assert evidence.judge_outputs(there, here, {"float64", "float16"})["ok"] is True
    assert evidence.judge_outputs(there, here, {"float64", "float32"})["ok"] is False
    assert evidence.judge_outputs(there, here, {"float32"})["tolerance"] == 0.05


def test_no_outputs_prove_nothing():
    assert evidence.judge_outputs([], [], ["float32"])["ok"] is False


@pytest.mark.parametrize(
    ("batch", "gradients", "expected"),
    [
        ([np.zeros(4, "float32")], [], 16.0),
        ([np.zeros(4, "float32"), np.zeros(4, "int32")], [100, 40], 116.0),
        ([], [], 0.0),
    ],
)
def test_the_least_a_step_adds_to_the_memory(batch, gradients, expected):
    assert evidence.choose_expected_bytes(batch, gradients) == expected


@pytest.mark.parametrize(
    ("step_s", "most", "count"), [(0.0, 8, 8), (0.01, 8, 8), (0.1, 8, 2), (0.05, 2, 2), (9.0, 8, 1)]
)
def test_slow_steps_are_few(step_s, most, count):
    assert evidence.choose_count(step_s, most) == count


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Graph execution error:\n\nCannot assign a device for operation x: GPU", "Cannot assign"),
        ("a\nno device here\nCould not satisfy b", "Could not satisfy"),
        ("first\nsecond", "first"),
        ("", "InvalidArgumentError"),
    ],
)
def test_the_telling_line_of_an_error_is_chosen(text, line):
    assert evidence.choose_line(text).startswith(line)


# A real GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.tf
@needs_gpu
def test_the_use_of_a_real_gpu_is_proven(dataset):
    use = usage.read_use(make_model(optimizer="adam"), dataset, "GPU:0")
    assert set(use["variables"]) == {"GPU:0"}
    assert use["hard_placement_error"] == ""
    assert use["numeric"]["ok"] is True
    assert use["peak_rise_bytes"] >= use["expected_bytes"]
    assert use["trace"]["kernels"] is None or use["trace"]["kernels"] > 0
    assert use["gpus_used"] == 1
    assert use["cpu_only_ops"] == []
