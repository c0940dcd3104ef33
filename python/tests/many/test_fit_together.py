"""Models with rows of their own, trained together, end as `fit()` trains each alone."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from children import PATHS
from small_fits import make_dataset, make_model

from gpukeras import SpecError
from gpukeras.data.dataset.map_dataset import build_dataset

FEW = "too few of a structure, or too short, for a program of their own"
SCHEDULE = {"kind": "exponential", "rate": 0.05, "decay": 0.8}


@pytest.fixture(autouse=True)
def _at_no_cost(monkeypatch):
    """Lets small stacks train as such, whose compiling costs more than they save."""
    monkeypatch.setattr("gpukeras.many.plan.COMPILE_S", 0.0)


def make_numbers(rows=90, seed=1, columns=3, **options):
    """Rows whose means and standard deviations, and those of their labels, depend on the seed."""
    rng = np.random.default_rng(seed)
    x = np.asfortranarray(rng.normal(seed, seed, size=(rows, columns)))
    labels = {"kind": "number", "values": 10 * seed + x[:, 0] + rng.normal(size=rows)}
    options = {"batch_size": 16, "seed": seed, "scale": True, **options}
    return build_dataset({"kind": "array", "values": x}, options, labels)


def make_mlp(data, seed, **options):
    from gpukeras.models.mlp import build_mlp

    options = {"units": [4], "optimizer": "sgd", "seed": seed, **options}
    return build_mlp(data, options)


def fit_together(models, datasets, seeds, options, **more):
    from gpukeras.many.fit_together import fit_together

    return fit_together(models, datasets, seeds, options, **more)


def fit_alone(model, data, seed, options):
    from gpukeras.training.fit import fit

    rows = copy.copy(data)
    rows.spec = replace(rows.spec, seed=seed)
    return fit(model, rows, {**options, "engine": "graph_loop"})


def assert_as_alone(cases, models, trained, options):
    for (data, seed, given), mine, one, own in zip(cases, models, trained, options, strict=True):
        other = make_mlp(data, seed, **given)
        alone = fit_alone(other, data, seed, own)
        for weights, expected in zip(mine.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_allclose(weights, expected, atol=1e-5)
        report = one.report
        assert (report.epochs, report.stopped, report.best_epoch, report.rows) == (
            alone.epochs,
            alone.stopped,
            alone.best_epoch,
            alone.rows,
        )
        np.testing.assert_allclose(report.learning_rate, alone.learning_rate, rtol=1e-6)
        for name, values in alone.history.items():
            np.testing.assert_allclose(report.history[name], values, rtol=1e-4)


@pytest.mark.tf
def test_each_ends_as_alone():
    options = {"epochs": 6, "schedule": SCHEDULE, "early_stopping": {"patience": 1}}
    first = make_numbers(rows=90, seed=1, validation=0.25)
    second = make_numbers(rows=77, seed=2, validation=0.25)
    assert first.recipe != second.recipe
    cases = [
        (first, 5, {"penalty": 0.01}),
        (second, 6, {"penalty": 0.1, "learning_rate": 0.05}),
    ]
    models = [make_mlp(data, seed, **given) for data, seed, given in cases]
    datasets, seeds = [data for data, *_ in cases], [seed for _, seed, _ in cases]
    trained = fit_together(models, datasets, seeds, [options] * 2)
    assert_as_alone(cases, models, trained, [options] * 2)
    for one in trained:
        assert one.report.engine.reason == "2 models of one structure trained as one program"


@pytest.mark.tf
def test_models_keep_the_encoding_of_their_own_rows():
    from gpukeras.training.predict import predict

    datasets = [make_numbers(seed=1), make_numbers(seed=4)]
    models = [make_mlp(data, 3) for data in datasets]
    fit_together(models, datasets, [1, 1], [{"epochs": 1}] * 2)
    rows = {"kind": "array", "values": np.full((2, 3), 4.0)}
    for model, data in zip(models, datasets, strict=True):
        encoded = np.subtract(4.0, data.recipe.features.center) / data.recipe.features.scale
        expected = model.predict(np.tile(encoded, (2, 1)).astype(np.float32), verbose=0)
        np.testing.assert_allclose(predict(model, rows)["values"], expected[:, 0], rtol=1e-6)


@pytest.mark.tf
def test_what_cannot_share_is_left_alone():
    numbers, wide, classes = make_numbers(), make_numbers(columns=4), make_dataset()
    datasets = [numbers, numbers, wide, classes, numbers]
    models = [make_mlp(numbers, 1), make_mlp(numbers, 2), make_mlp(wide, 3), make_model()]
    models.append(make_mlp(numbers, 4))
    models[4].run_eagerly = True
    before = [model.get_weights()[0] for model in models]
    trained = fit_together(models, datasets, [1] * 5, [{"epochs": 1}] * 5)
    eager = "it runs eagerly"
    assert [one.refused for one in trained] == ["", "", FEW, FEW, eager]
    moved = [
        bool((model.get_weights()[0] != weights).any())
        for model, weights in zip(models, before, strict=True)
    ]
    assert moved == [one.report is not None for one in trained] == [True, True, False, False, False]


@pytest.mark.tf
def test_a_few_short_trainings_are_left_alone(monkeypatch):
    monkeypatch.undo()
    data = make_numbers()
    models = [make_mlp(data, seed) for seed in (1, 2)]
    trained = fit_together(models, [data, data], [1, 2], [{"epochs": 1}] * 2)
    assert [one.refused for one in trained] == [FEW, FEW]


@pytest.mark.slow
@pytest.mark.tf
def test_models_that_do_not_stack_train_in_workers(monkeypatch):
    monkeypatch.undo()  # too few of a structure
    monkeypatch.setenv("PYTHONPATH", PATHS)
    first = make_numbers(rows=90, seed=1, validation=0.25)
    second = make_numbers(rows=77, seed=2, validation=0.25)
    cases = [(first, 5, {}), (second, 6, {"units": [3]}), (second, 7, {"units": [2]})]
    stopped = {"epochs": 6, "early_stopping": {"patience": 1}}
    options = [stopped, {"epochs": 3, "schedule": SCHEDULE}, {"epochs": 2}]
    models = [make_mlp(data, seed, **given) for data, seed, given in cases]
    given = [data for data, *_ in cases], [seed for _, seed, _ in cases], options
    trained = fit_together(models, *given, workers=2)
    assert_as_alone(cases, models, trained, options)
    for one in trained:
        assert one.report.engine.engine == "graph_loop"
        assert one.report.engine.reason == "3 models in 2 worker processes with 1 thread each"


@pytest.mark.tf
def test_what_no_worker_trains_is_left_alone(monkeypatch):
    monkeypatch.setattr("gpukeras.many.workers.pool.PROGRAM", "gpukeras.no_such_module")
    numbers, wide = make_numbers(), make_numbers(columns=4)
    models = [make_mlp(numbers, 1), make_mlp(numbers, 2, units=[2]), make_mlp(wide, 3)]
    given = [numbers, numbers, wide], [1, 1, 1], [{"epochs": 1}] * 3
    one, other, third = (each.refused for each in fit_together(models, *given, workers=2))
    assert one == other
    assert one.startswith(f"{FEW}; one after another, as no worker could train them: a worker")
    assert third == f"{FEW}; there is one model to train"


@pytest.mark.slow
@pytest.mark.tf
def test_the_user_ends_the_training_in_workers(monkeypatch):
    monkeypatch.setattr("gpukeras.training.listener.EVENT_S", -1.0)
    data = make_numbers()
    models = [make_mlp(data, 1), make_mlp(data, 2, units=[2])]
    before = [model.get_weights()[0] for model in models]
    given = [data, data], [1, 2], [{"epochs": 2, "schedule": SCHEDULE}] * 2
    trained = fit_together(models, *given, workers=2, on_event=lambda event: True)
    assert [one.report.stopped for one in trained] == ["interrupted"] * 2
    for model, weights in zip(models, before, strict=True):
        np.testing.assert_array_equal(model.get_weights()[0], weights)


@pytest.mark.parametrize("workers", [0, "two", 1.5])
def test_workers_are_auto_or_a_number(workers):
    with pytest.raises(SpecError, match="`workers` must be a whole number of at least 1"):
        fit_together([], [], [], [], workers=workers)


@pytest.mark.tf
def test_options_that_fit_refuses_are_left_to_it():
    data = make_numbers()
    models = [make_mlp(data, seed) for seed in (1, 2)]
    (one, _) = fit_together(models, [data, data], [1, 2], [{"epochs": 0}, {"epochs": 1}])
    assert one.refused.startswith("`epochs` must be")


@pytest.mark.float32(reason="loss scaling leaves such steps out")
@pytest.mark.tf
def test_a_loss_that_is_no_number_ends_one_model_alone():
    data = make_numbers()
    models = [make_mlp(data, 1, learning_rate=rate) for rate in (0.01, 500.0)]
    good, bad = fit_together(models, [data, data], [1, 1], [{"epochs": 2}] * 2)
    assert (good.report.stopped, bad.report.stopped) == ("completed", "non_finite")
    (note,) = bad.report.notes
    assert note.startswith(
        "Stopped: the loss was no finite number in epoch 1. The model has the weights that it began"
    )
    assert np.isfinite(models[1].get_weights()[0]).all()


def test_rows_of_a_dataset_are_joined_once():
    from gpukeras.many.fit_together import join_rows

    first, second = make_numbers(rows=5), make_numbers(rows=7, seed=2)
    joined, starts = join_rows([first, second, first])
    assert (len(joined), starts) == (12, [0, 5, 0])
    for start, data in ((0, first), (5, second)):
        for source, own in zip(joined.sources, data.sources, strict=True):
            mine = source.gather(slice(start, start + len(data)))
            np.testing.assert_array_equal(mine, own.gather(slice(None)))
    assert join_rows([first, first]) == (first, [0, 0])
