import numpy as np
import pytest
from nightly import few
from searched import assert_same, make_stream, state_of, stochastic_model, train_once
from small_fits import label_dataset, make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.backend import devices, runtime
from gpukeras.data.dataset import streams
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.tuner import batch_size
from gpukeras.tuner.batch_size import find_batch_size
from gpukeras.tuner.lr_finder import RateSearchSpec, find_learning_rate

SHORT = {"steps": 12, "low": 1e-4, "high": 0.1}


@pytest.mark.parametrize(
    ("options", "arg"),
    [
        ({"low": 0.0}, "from"),
        ({"low": "small"}, "from"),
        ({"high": -1.0}, "to"),
        ({"low": 1.0, "high": 1.0}, "to"),
        ({"steps": 9}, "steps"),
        ({"steps": 20.5}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"rates": 3}, "rates"),
    ],
)
def test_bad_options_are_refused_by_name(options, arg):
    with pytest.raises(SpecError) as caught:
        RateSearchSpec.from_dict(options)
    assert caught.value.details["arg"] == arg


@pytest.mark.tf
@pytest.mark.parametrize("eager", few([False, True], False))
def test_losses_and_rates_are_those_of_single_steps(eager):
    data = make_dataset(200, shuffle=False)
    model, twin = make_model(optimizer="adam"), make_model(optimizer="adam")
    model.run_eagerly = eager
    report = find_learning_rate(model, data, {**SHORT, "steps": 10})
    x, y = data.arrays
    for step, rate in enumerate(np.geomspace(1e-4, 0.1, 10)):
        at = 32 * (step % 6)  # six full batches an epoch; the short seventh is left out
        twin.optimizer.learning_rate = rate
        loss = twin.train_on_batch(x[at : at + 32], y[at : at + 32])[0]
        twin.reset_metrics()
        assert report.losses[step] == pytest.approx(float(loss), rel=1e-4)
        assert report.rates[step] == pytest.approx(rate, rel=1e-5)
    assert len(report.smoothed) == len(report.rates) == 10


@pytest.mark.tf
def test_a_model_that_can_learn_gets_a_rate_that_trains_it():
    data = make_dataset(3200)
    model = make_model(optimizer="adam")
    report = find_learning_rate(model, data, {})
    assert report.device == devices.current().device
    assert report.batch_size == 32
    assert report.current == pytest.approx(0.001)
    assert report.recommended == min(report.steepest, report.minimum_tenth)
    trained = make_model(optimizer="adam")
    trained.optimizer.learning_rate = report.recommended
    losses = trained.fit(*data.arrays, batch_size=32, epochs=2, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * report.losses[0]


def with_schedule():
    schedules = runtime.keras().optimizers.schedules
    return runtime.keras().optimizers.Adam(schedules.ExponentialDecay(0.01, 100, 0.5))


def with_function():
    return runtime.keras().optimizers.SGD(lambda: 0.25)


def with_loss_scaling():
    optimizers = runtime.keras().optimizers
    return optimizers.LossScaleOptimizer(optimizers.Adam(0.003))


def with_loss_scaling_and_schedule():
    return runtime.keras().optimizers.LossScaleOptimizer(with_schedule())


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize(
    "make",
    few(
        [lambda: "adam", with_schedule, with_function, with_loss_scaling,
         with_loss_scaling_and_schedule],
        with_function, with_loss_scaling_and_schedule,
    ),
    ids=["rate", "schedule", "function", "loss scaling", "loss scaling, schedule"],
)  # fmt: skip
def test_rates_reach_the_weights_and_the_optimizer_is_left_as_it_was(make):
    model, data = stochastic_model(), make_dataset(200)
    model.compile(make(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    train_once(model, data)
    before = state_of(model)
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    own, names = inner._learning_rate, [v.path for v in model.optimizer.variables]
    moved = []

    def listen(event):
        if event["kind"] == "rates" and not moved:
            now = state_of(model)
            moved.extend(np.abs(now[name] - before[name]).max() for name in before)

    options = {"low": 1e3, "high": 1e4, "steps": 10}
    find_learning_rate(model, data, options, listen)
    assert max(moved) > 10  # a step at the model's own rate would not move a weight so far
    assert_same(model, before)
    assert inner._learning_rate is own
    assert [v.path for v in model.optimizer.variables] == names


@pytest.mark.slow
@pytest.mark.tf
def test_the_model_is_left_as_it_was_after_an_error_and_an_interrupt():
    model, data = stochastic_model(), make_dataset(300)
    model.compile(with_schedule(), "sparse_categorical_crossentropy")
    train_once(model, data)
    before, own = state_of(model), model.optimizer._learning_rate
    for failure in (KeyboardInterrupt(), RuntimeError("broken")):

        def fail(event, failure=failure):
            raise failure

        with pytest.raises(type(failure)):
            find_learning_rate(model, data, SHORT, fail)
        assert_same(model, before)
        assert model.optimizer._learning_rate is own


@pytest.mark.tf
def test_the_listener_ends_a_search_without_a_suggestion(model):
    report = find_learning_rate(model, make_dataset(), SHORT, lambda event: event["step"] >= 2)
    assert report.stopped == "interrupted"
    assert 2 <= len(report.rates) == len(report.losses) < 12
    assert (report.recommended, report.reason) == (None, "the search was interrupted")


@pytest.mark.tf
def test_a_loss_that_diverges_ends_the_search():
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mean_squared_error")
    rows = label_dataset("numeric", np.linspace(0, 3, 400), shape=(400, 5))
    report = find_learning_rate(model, rows, {"low": 1e-3, "high": 1e6})
    assert report.stopped in ("diverged", "non_finite")
    assert len(report.rates) < 100
    assert np.isfinite(report.losses).all()


@pytest.mark.tensorflow
@pytest.mark.tf
def test_labels_that_cannot_be_learned_give_no_rate():
    rng = np.random.default_rng(1)
    data = make_dataset(3200)
    rng.shuffle(data.sources[1].array)
    report = find_learning_rate(make_model(), data, {})
    assert report.recommended is None
    assert "never fell by more than its noise" in report.reason


@pytest.mark.slow
@pytest.mark.tf
def test_the_batch_size_found_is_taken_as_far_as_there_are_rows(monkeypatch):
    monkeypatch.setattr(batch_size, "MEASURE_S", 0.01)
    model = make_model()
    found = find_batch_size(model, make_dataset(2000), {"low": 64, "high": 64})
    assert found.recommended == 64
    assert find_learning_rate(model, make_dataset(), SHORT).batch_size == 64
    assert find_learning_rate(model, make_dataset(40), SHORT).batch_size == 40
    assert find_learning_rate(model, make_dataset(), {**SHORT, "batch_size": 16}).batch_size == 16


@pytest.mark.tensorflow
@pytest.mark.tf
def test_a_step_of_the_users_own_is_taken():
    class Doubling(runtime.keras().Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            return {"loss": 2 * logs["loss"]}

    class Silent(runtime.keras().Sequential):
        def train_step(self, data):
            super().train_step(data)
            return {}

    reports = []
    for kind in (runtime.keras().Sequential, Doubling):
        runtime.keras().utils.set_random_seed(1)
        model = kind([runtime.keras().layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        reports.append(find_learning_rate(model, make_dataset(), SHORT))
    np.testing.assert_allclose(reports[1].losses, 2 * np.array(reports[0].losses), rtol=1e-4)
    model = Silent([runtime.keras().layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ModelError, match="gives no `loss`"):
        find_learning_rate(model, make_dataset(), SHORT)


@pytest.mark.tf
def test_a_stream_is_asked_for_its_rows(model):
    calls = []
    report = find_learning_rate(model, make_stream(calls), {**SHORT, "batch_size": 10})
    assert len(report.losses) == 12
    assert len(calls) >= 6  # 20 rows each


@pytest.mark.tf
def test_a_stream_without_a_full_batch_is_refused(model):
    def call(epoch, batch):
        if batch == 2:
            return None
        features = {"kind": "array", "values": np.zeros((20, 5), order="F"), "names": []}
        labels = {
            "name": "y",
            "kind": "factor",
            "values": np.repeat([1, 2], 10),
            "levels": [*"abc"],
        }
        return {"features": features, "labels": labels, "weights": None}

    data = streams.build_stream({"kind": "generator", "call": call, "steps": None}, Request({}))
    with pytest.raises(DataError, match="fewer rows than a batch of 32"):
        find_learning_rate(model, data, {**SHORT, "batch_size": 32})


@pytest.mark.tf
def test_what_cannot_be_trained_on_is_refused(model):
    with pytest.raises(SpecError, match="must be a Keras 3 model"):
        find_learning_rate(3, make_dataset(), {})
    with pytest.raises(ModelError, match="takes rows of shape"):
        find_learning_rate(model, make_dataset(columns=4), {})
