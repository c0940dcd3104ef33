import numpy as np
import pytest
from children import needs_gpu, run_script
from lazy_modules import keras, layers, tf
from nightly import few
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.diagnostics import usage
from gpukeras.profiler import placement
from gpukeras.training import model_guard

pytestmark = pytest.mark.tf

CPU_UNREAD = {"numeric", "peak_rise_bytes", "capability", "card", "cpu_only_ops"}


def make_sequences(rows=48, steps=6, columns=3):
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, steps, columns)).astype("float32")
    return x, random.integers(0, 2, rows).astype("float32")


def make_recurrent(*layers):
    model = keras.Sequential([keras.Input((6, 3)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    return model


# A use of the CPU --------------------------------------------------------------------------------


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


def test_plain_arrays_are_batches_too():
    random = np.random.default_rng(1)
    arrays = random.normal(size=(40, 5)), random.integers(0, 3, 40)
    use = usage.read_use(make_model(), arrays, "CPU:0", batch_size=16)
    assert use["input_dtypes"] == ["float64"]
    assert use["batch_size"] == 16
    assert use["steps"] > 0


@pytest.mark.parametrize("rows", few([1, 3, 33], 3))
def test_few_rows_are_enough(rows):
    arrays = np.zeros((rows, 5), "float32"), np.zeros(rows, "float32")
    use = usage.read_use(make_model(), arrays, "CPU:0")
    assert set(use["unread"]) <= CPU_UNREAD
    assert use["batch_size"] == min(32, rows)


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


@pytest.mark.skipif("runtime.physical_devices('GPU')", reason="has a GPU")
def test_an_op_that_cannot_be_where_it_should_is_named(dataset):
    class Elsewhere(keras.layers.Layer):
        def call(self, x):
            with tf.device("/GPU:0"):
                return tf.roll(x, 1, 0, name="elsewhere")

    use = usage.read_use(make_model(layers=[Elsewhere()]), dataset, "CPU:0", batches=2)
    assert "elsewhere" in use["hard_placement_error"]
    assert use["placement"]["CPU:0"]["Roll"] == 2  # it and its gradient
    assert use["steps"] > 0


def test_what_does_not_fit_is_refused(dataset):
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


def compiled(**options):
    model = make_model()
    model.compile("sgd", "sparse_categorical_crossentropy", **options)
    return model


def of_policy(policy):
    return make_model(layers=[keras.layers.Dense(32, dtype=policy) for _ in range(2)])


def with_python():
    class Slow(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.py_function(lambda v: v * 2, [x], tf.float32), x.shape)

    return make_model(layers=[Slow()])


MODELS = {
    "Python in the graph": (with_python, {"py_function": True}),
    "eager": (
        lambda: compiled(run_eagerly=True),
        {"eager": True, "jit": False, "retraces": None},
    ),
    "XLA": (lambda: compiled(jit_compile=True), {"jit": True, "expected_bytes": 32 * 5 * 4}),
    "float64": (lambda: of_policy("float64"), {"policy": "float64"}),
    "bfloat16": (lambda: of_policy("mixed_bfloat16"), {"policy": "mixed_bfloat16"}),
}


@pytest.mark.varies
@pytest.mark.parametrize("name", MODELS)
def test_how_a_model_is_set_is_told(dataset, name):
    make, expected = MODELS[name]
    use = usage.read_use(make(), dataset, "CPU:0", batches=2)
    assert {fact: use[fact] for fact in expected} == expected
    assert use["steps"] > 0
    assert set(use["unread"]) <= CPU_UNREAD | {fact for fact in expected if use[fact] is None}


def test_retracing_is_counted(dataset):
    model, source = make_model(), usage.Source(dataset, "CPU:0")
    with model_guard.untouched(model, source.batch):
        reading = usage._Reading(model, source, "CPU:0", 2)
        reading._read_first()
        assert reading.tracings == 1
        reading._run([source.place(source.batch(rows)) for rows in (7, 9)])
        reading._read_speed()
        assert reading.use["retraces"] >= 1


# Recurrent layers --------------------------------------------------------------------------------


def test_recurrent_layers_without_cudnn_are_named():
    model = make_recurrent(
        layers.LSTM(2, return_sequences=True, name="fine"),
        layers.LSTM(2, recurrent_dropout=0.2, return_sequences=True, name="slow"),
        layers.Bidirectional(layers.GRU(2, reset_after=False, return_sequences=True), name="both"),
        layers.RNN(layers.LSTMCell(2), return_sequences=True, name="own"),
        layers.TimeDistributed(layers.Dense(2)),
        layers.SimpleRNN(2, name="simple"),
    )
    found = {each["layer"]: (each["class"], each["argument"]) for each in placement.read_rnn(model)}
    forward, backward = (f"{side}_gru" for side in ("forward", "backward"))
    sides = [name for name in found if name.startswith((forward, backward))]
    assert len(sides) == 2
    assert {found.pop(name) for name in sides} == {("GRU", "reset_after")}
    assert found == {
        "slow": ("LSTM", "recurrent_dropout"),
        "own": ("RNN", "cell"),
        "simple": ("SimpleRNN", "cell"),
    }


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
    layer = getattr(keras.layers, kind)(2, **arguments)
    found = placement.read_rnn(make_recurrent(layer))
    assert [each["argument"] for each in found] == ([forbids] if forbids else [])


@pytest.mark.slow
def test_a_recurrent_model_is_read_whole():
    model = make_recurrent(keras.layers.LSTM(2, recurrent_dropout=0.2, name="slow"))
    use = usage.read_use(model, make_sequences(), "CPU:0", batches=2)
    assert use["rnn"] == [{"layer": "slow", "class": "LSTM", "argument": "recurrent_dropout"}]
    assert set(use["unread"]) <= CPU_UNREAD


# Two devices -------------------------------------------------------------------------------------

TWO_CPUS = """
import numpy as np
from gpukeras.profiler import placement as evidence
from gpukeras.backend import runtime
from gpukeras.diagnostics import usage
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
answer = {}
for device in ("CPU:0", "CPU:1"):
    with tf.device("/CPU:1"):
        model = make(keras.layers.Dense(8))
    answer[device] = usage.read_use(model, rows, device, batches=2)

layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(8)]
with tf.device("/CPU:1"):
    model = make(*layers)
source = usage.Source(rows, "CPU:1")
reading = usage._Reading(model, source, "CPU:1", 2)
reading.gpu = True
answer["numeric"] = [reading._read_numeric()]
there, here = (evidence.read_outputs(model, rows[0], place) for place in ("CPU:1", "CPU:0"))
there[0] = there[0][::-1]  # each row's output for another row
answer["numeric"].append(evidence.judge_outputs(there, here, ["float32"]))
"""


@pytest.fixture(scope="module")
def two_cpus():
    return run_script(TWO_CPUS, fork=True)


@pytest.mark.slow
def test_weights_on_another_device_show_up(two_cpus):
    use = two_cpus["CPU:0"]
    assert use["variables"] == {"CPU:1": 4}
    assert set(use["placement"]) == {"CPU:0", "CPU:1"}
    assert use["placement"]["CPU:1"]["ReadVariableOp"] > 0
    assert "_Send" in use["placement"]["CPU:1"]
    assert use["hard_placement_error"] == ""  # a variable is read where it is, which is no error


def test_a_second_device_is_used_as_asked(two_cpus):
    use = two_cpus["CPU:1"]
    assert use["variables"] == {"CPU:1": 4}
    assert use["hard_placement_error"] == ""
    assert set(use["unread"]) <= CPU_UNREAD


def test_outputs_of_two_devices_are_compared(two_cpus):
    # The check itself on two real devices: what a GPU and the CPU are is for the reading to know.
    right, wrong = two_cpus["numeric"]
    assert right["ok"] is True
    assert right["deviation"] < 1e-5
    assert wrong["ok"] is False
    assert wrong["deviation"] > wrong["tolerance"]


# A real GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
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
