"""Profiles of real trainings: verdict, shares, advice; and the model as it was."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from lazy_modules import keras, layers
from profiled import SlowFunction, make_sleepy_model
from small_fits import make_dataset, make_model

from gpukeras import OutOfMemoryError, SpecError, api
from gpukeras.backend import runtime, tensor_ops, tracing
from gpukeras.core.errors import ModelError
from gpukeras.profiler.benchmark import StepTimes
from gpukeras.profiler.bottleneck import judge
from gpukeras.profiler.profile import (
    ProfileSpec,
    choose_engine,
    explain_cheap_ops,
    price_input,
    profile,
)
from gpukeras.profiler.report import PARTS
from gpukeras.training import fit

tf = pytest.mark.tf


def advice_of(report):
    return {one.id: one for one in report.advice}


def make_big_model(columns=64, units=1024):
    model = keras.Sequential(
        [keras.Input((columns,)), layers.Dense(units), layers.Dense(units), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


# Without TensorFlow ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arg"),
    [
        ({"engine": "fast"}, "engine"),
        ({"steps": 0}, "steps"),
        ({"steps": 1001}, "steps"),
        ({"batch_size": -1}, "batch_size"),
        ({"verify": 1}, "verify"),
        ({"log_dir": ""}, "log_dir"),
        ({"log_dir": 3}, "log_dir"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_options_are_checked(options, arg):
    with pytest.raises(SpecError) as caught:
        ProfileSpec.from_dict(options)
    assert caught.value.details["arg"] == arg


def test_options_of_r_are_normalised():
    spec = ProfileSpec(steps=10.0, batch_size="auto")
    assert (spec.steps, spec.batch_size) == (10, None)


def own_step(step):
    """A model whose own training step does something first."""

    class Own(keras.Sequential):
        def train_step(self, data):
            step()
            return super().train_step(data)

    model = Own([keras.Input((5,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize(
    ("names", "alone", "trained", "engine", "why"),
    [
        (("keras",), "as asked", "graph_loop", "keras", "as asked"),
        (("graph_loop", "keras"), "", "keras", "keras", "trained the model last"),
        (("graph_loop", "keras"), "", "compiled", "graph_loop", "tries"),
        (("graph_loop", "keras", "compiled"), "", "", "graph_loop", "tries"),
    ],
)
def test_the_engine_is_the_one_that_would_train(names, alone, trained, engine, why):
    found, reason = choose_engine(names, alone, trained)
    assert found == engine
    assert why in reason


def test_free_input_is_worth_the_waiting():
    cost = price_input(StepTimes(0.4, 0.3, 0.09), 0.31, ())
    assert cost.speedup_if_free == pytest.approx(4)
    assert (cost.real_s, cost.repeated_s, cost.alone_s) == (0.4, 0.09, 0.31)


def test_ops_that_are_too_short_for_a_trace_are_told():
    row = SimpleNamespace(layer="dense", total_s=1.0)
    update = SimpleNamespace(layer="optimizer", total_s=1.0)
    assert "not in the trace" in explain_cheap_ops([row], "CPU:0")[0]
    assert explain_cheap_ops([row, update], "CPU:0") == explain_cheap_ops([row], "GPU:0") == []
    assert explain_cheap_ops([], "CPU:0") == []


# Verdicts ----------------------------------------------------------------------------------------


@tf
def test_slow_input_is_input_bound_with_its_share():
    # It sleeps 20 times as long as the model: what a busy computer adds is little beside that.
    data = SlowFunction(0.4).dataset(steps=12)
    report = profile(make_sleepy_model(0.02), data, {"steps": 4})
    assert report.verdict == "input-bound"
    waited_s = report.shares["input"] * report.step_s
    assert waited_s >= 0.4 * (1 - 1e-9)
    assert sum(report.shares.values()) == pytest.approx(1)
    assert report.decided_by.value == pytest.approx(report.shares["input"])
    assert report.input.speedup_if_free > 1
    assert report.input.stages[0].stage == "read"
    assert "cache = TRUE" in advice_of(report)["input"].text


@pytest.mark.slow
@tf
def test_the_layers_of_a_big_dense_model_sum_to_the_computing_of_its_step():
    data = make_dataset(rows=4096, columns=64)
    report = profile(make_big_model(), data, {"steps": 6, "batch_size": 512})
    assert report.verdict == judge(report.shares).verdict
    assert report.batch_size == 512
    computing_s = report.shares["kernels"] * report.step_s
    assert sum(row.total_s for row in report.layers) == pytest.approx(computing_s)
    largest = max(report.layers, key=lambda row: row.total_s)
    assert largest.kind == "Dense"
    assert largest.backward_s > 0
    assert any(op.type.endswith("MatMul") for op in report.ops[:3])
    assert report.samples_per_s == pytest.approx(512 / report.step_s)
    assert report.kernels == ()
    assert report.bytes is None


@pytest.mark.slow
@tf
def test_the_advice_to_a_tiny_model_with_a_call_a_batch_is_tried():
    model = make_model(optimizer="adam")
    before = state_of(model)
    report = profile(model, make_dataset(rows=4000), {"engine": "keras", "verify": True})
    assert state_of(model) == before
    assert report.verdict == judge(report.shares).verdict
    assert (report.engine, report.reason) == ("keras", "as asked")
    advice = advice_of(report)
    assert advice["engine"].apply == {"engine": "auto"}
    assert all(advice[name].measured > 0 for name in ("engine", "batch_size"))  # both were tried
    gains = [one.gain for one in report.advice]
    assert gains == sorted(gains, reverse=True)


# The record --------------------------------------------------------------------------------------


@pytest.mark.slow
@tf
def test_a_report_crosses_the_border_as_plain_values(tmp_path):
    report = profile(make_model(), make_dataset(), {"steps": 5, "log_dir": str(tmp_path)})
    plain = api.to_plain(report)
    assert json.loads(json.dumps(plain))["shares"].keys() == set(PARTS)
    assert plain["steps"] == 5
    assert plain["trace"] == str(tmp_path)
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1  # for TensorBoard
    assert plain["timeline"]
    assert {bar["kind"] for bar in plain["timeline"]} <= {"kernel", "transfer", "host"}


@tf
def test_a_file_is_no_folder_for_the_trace(tmp_path):
    file = tmp_path / "taken"
    file.write_text("x")
    with pytest.raises(SpecError, match="`log_dir`: the folder taken cannot be made"):
        profile(make_model(), make_dataset(), {"log_dir": str(file)})


@pytest.mark.slow
@tf
def test_a_profiler_that_is_already_running_leaves_the_verdict_open(tmp_path):
    import tensorflow

    with tracing.profile(str(tmp_path)):
        report = profile(make_model(), make_dataset(rows=2000), {"steps": 2})
    assert report.verdict == "undetermined"
    assert "Another profiler is running" in report.sentence
    assert report.shares["kernels"] is None
    assert report.layers == report.ops == report.timeline == ()
    assert report.step_s > 0
    tensorflow.profiler.experimental.start(str(tmp_path))  # ours left nothing running
    tensorflow.profiler.experimental.stop(save=False)


# The engine --------------------------------------------------------------------------------------


@pytest.mark.slow
@tf
def test_the_engine_that_trained_last_is_profiled_and_the_trace_is_temporary(dataset):
    model = make_model()
    fit.fit(model, dataset, {"epochs": 1, "engine": "keras"})
    report = profile(model, dataset, {"steps": 2})
    assert (report.engine, report.reason) == ("keras", "it trained the model last")
    assert report.trace == ""


@pytest.mark.slow
@tf
def test_a_model_that_fits_into_no_loop_is_profiled_with_keras(dataset):
    def refuse_loops():
        if "while" in runtime.tensorflow().compat.v1.get_default_graph().name:
            raise NotImplementedError("not in a loop")

    model = own_step(refuse_loops)
    report = profile(model, dataset, {"steps": 2})
    assert report.engine == "keras"
    assert report.reason == '"graph_loop" cannot run this model: not in a loop'
    with pytest.raises(ModelError, match="not in a loop"):
        profile(model, dataset, {"steps": 2, "engine": "graph_loop"})


@tf
def test_memory_that_does_not_suffice_is_told_with_the_batch_size(dataset):
    def run_out():
        raise runtime.tensorflow().errors.ResourceExhaustedError(None, None, "OOM")

    with pytest.raises(OutOfMemoryError, match="at batch size 32"):
        profile(own_step(run_out), dataset, {})


# The model ---------------------------------------------------------------------------------------


def state_of(model):
    optimizer = model.optimizer
    return {
        "values": [each.numpy().tolist() for each in [*model.variables, *optimizer.variables]],
        "optimizer": (id(optimizer), optimizer.built),
        "metrics": [each.built for each in model.metrics if hasattr(each, "built")],
        "functions": [model.train_function, model.test_function, model.predict_function],
        "settings": [model.stop_training, model.steps_per_execution, model.jit_compile],
        "own": sorted(vars(model)),
        "random": [each.numpy().tolist() for each in tensor_ops.global_seed_state()],
        "numpy": np.random.get_state()[1].tolist(),
    }


@pytest.mark.slow
@tf
def test_who_listens_may_end_it_and_the_model_is_as_before(dataset):
    def listen(event):
        kinds.append(event["kind"])
        return event["kind"] == "tracing"

    kinds, model = [], make_model()
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        profile(model, dataset, {}, listen)
    assert state_of(model) == before
    assert {"starting", "measuring", "draining the input", "tracing"} == set(kinds)
