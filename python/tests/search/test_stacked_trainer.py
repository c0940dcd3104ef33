"""Trials that are stacked have the results of trials that are trained one after another."""

from contextlib import ExitStack

import pytest
from nightly import few
from small_fits import make_dataset
from trialled import build

from gpukeras.core.errors import CheckpointError
from gpukeras.many.resamples import open_resamples
from gpukeras.search.alone_trainer import AloneTrainer
from gpukeras.search.stacked_trainer import (
    FIRST,
    MOST_MODELS,
    StackedTrainer,
    find_batch_size,
    is_worth,
)
from gpukeras.search.stopper import Stopper
from gpukeras.search.trial_models import TrialModels
from gpukeras.search.trials import Trial

pytestmark = pytest.mark.tf

TRIALS = [
    Trial(1, {"units": 4, "rate": 0.1}, seed=3),
    Trial(2, {"units": 4, "rate": 0.5}, seed=8),
    Trial(3, {"units": 3, "rate": 0.2, "batch_size": 10.0}, seed=1),
]


def make_alone(states=None, builder=build, stopper=None, folds=2, **options):
    data = make_dataset(60)
    resamples = open_resamples(data, folds)
    options = {"engine": "compiled", **options}
    models = TrialModels(builder, data, resamples, options, states, stopper or Stopper())
    return AloneTrainer(models, "auto", ExitStack())


def make_stacked(*args, most="auto", **options):
    return StackedTrainer(make_alone(*args, **options), most=most)


@pytest.fixture
def stacked_always(monkeypatch):
    """Stacks also where compiling takes longer than these small trainings."""
    monkeypatch.setattr("gpukeras.many.plan.COMPILE_S", 0.0)


def by_number(outcomes):
    return {outcome.trial: outcome for outcome in outcomes}


def assert_alike(one, other):
    assert (one.epochs, one.error) == (other.epochs, other.error)
    assert one.metrics.keys() == other.metrics.keys()
    for name, values in one.metrics.items():
        assert values == pytest.approx(other.metrics[name], abs=1e-5)
        assert one.history[name] == pytest.approx(other.history[name], abs=1e-5)


@pytest.mark.usefixtures("stacked_always")
def test_trials_end_as_each_alone_also_after_a_kill(tmp_path):
    whole = by_number(make_alone().train(TRIALS, 3))
    stacks = make_stacked(tmp_path)
    first = by_number(stacks.train(TRIALS, 1))
    assert sorted(first) == [1, 2, 3]
    assert stacks.reason == "3 trials in stacks of up to 4 models"
    later = make_stacked(tmp_path)  # of another process
    for number, outcome in by_number(later.train(TRIALS[:2], 3)).items():
        assert_alike(outcome, whole[number])
    for number, outcome in by_number(make_stacked(tmp_path).train(TRIALS[:2], 3)).items():
        assert_alike(outcome, whole[number])  # the outcomes had been lost, not the states
    later.drop(TRIALS[:1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0002", "0003"]


@pytest.mark.slow
@pytest.mark.usefixtures("stacked_always")
def test_what_cannot_be_stacked_is_trained_alone(tmp_path):
    def builder(settings, seed):
        made = build(settings, seed)
        made["model"].run_eagerly = settings["units"] == 3
        return made

    stacks = make_stacked(tmp_path, builder, engine="auto")
    found = by_number(stacks.train(TRIALS, 1))
    whole = by_number(make_alone(None, builder, engine="auto").train(TRIALS, 1))
    for number, outcome in found.items():
        assert_alike(outcome, whole[number])
    assert stacks.reason == "2 trials in stacks of up to 4 models; 1 alone: it runs eagerly"
    on = by_number(make_stacked(tmp_path, engine="auto").train(TRIALS[2:], 2))  # eager no more
    assert on[3].error == ""


@pytest.mark.parametrize(
    ("options", "most", "why"),
    few(
        [
            ({"engine": "keras"}, "auto", "the engine is Keras'"),
            ({"clip_norm": 1.0}, "auto", "gradients are clipped"),
            ({}, 1, "as asked"),
        ],
        ({"engine": "keras"}, "auto", "the engine is Keras'"),
        ({}, 1, "as asked"),
    ),
)
def test_trainings_that_stacks_do_not_do_are_done_in_turns(options, most, why):
    stacks = make_stacked(None, most=most, **options)
    assert sorted(by_number(stacks.train(TRIALS[:2], 1))) == [1, 2]
    assert stacks.reason == f"one model after another: {why}"


@pytest.mark.nightly  # eager models train alone in each run; the next test has the reason
@pytest.mark.usefixtures("stacked_always")
def test_a_structure_of_one_model_trains_alone():
    stacks = make_stacked(folds=[[1.0, 2.0, 3.0]])
    assert sorted(by_number(stacks.train(TRIALS, 1))) == [1, 2, 3]
    assert stacks.reason.endswith("of up to 2 models; 1 alone: too few models have its structure")


def test_few_models_are_worth_a_program_only_if_they_train_long():
    assert not is_worth(2, 10)
    assert is_worth(2, 20_000)
    assert is_worth(20, 10)
    assert not is_worth(1, 1_000_000)
    stacks = make_stacked()
    list(stacks.train(TRIALS[:2], 1))
    assert stacks.reason == "one model after another: too few models have its structure"


@pytest.mark.usefixtures("stacked_always")
def test_what_fails_is_an_outcome_and_the_others_go_on():
    def builder(settings, seed):
        if settings["units"] == 5:
            return {"failed": True, "message": "no such layer"}
        return build(settings, seed)

    wild = Trial(4, {"units": 4, "rate": 1e30}, seed=1)
    wrong = Trial(5, {"units": 5, "rate": 0.1}, seed=1)
    found = by_number(make_stacked(None, builder).train([wild, wrong, TRIALS[0]], 2))
    assert found[4].error == "the loss or a weight is not finite in epoch 2"
    assert found[5].error == "`builder` failed: no such layer"
    assert found[1].error == ""


@pytest.mark.slow
@pytest.mark.usefixtures("stacked_always")
def test_a_stack_that_fails_leaves_its_trials_to_turns(tmp_path):
    import keras
    import tensorflow as tf

    def plain(x):
        return x + tf.ensure_shape(tf.numpy_function(lambda x: x, [x], x.dtype), x.shape)

    def builder(settings, seed):
        made = build(settings, seed)["model"]
        layers = (
            [keras.layers.Lambda(plain), *made.layers] if settings["units"] == 3 else made.layers
        )
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return {"model": model}

    stacks = make_stacked(tmp_path, builder, engine="auto")
    found = by_number(stacks.train(TRIALS, 1))
    assert [found[number].error for number in (1, 2, 3)] == ["", "", ""]
    assert "; 1 alone: a stack of them failed: " in stacks.reason
    list(stacks.train(TRIALS[2:], 2))
    assert "; 1 alone: a stack of them failed: " in stacks.reason  # not that it began alone


@pytest.mark.usefixtures("stacked_always")
def test_an_interrupt_ends_the_search():
    def on_event(event):
        raise KeyboardInterrupt

    stacks = make_stacked(stopper=Stopper(None, on_event))
    assert list(stacks.train(TRIALS[:2], 2)) == []
    assert stacks.models.stopper.stopped == "interrupted"


@pytest.mark.usefixtures("stacked_always")
def test_outcomes_are_told_before_a_state_that_cannot_be_written_ends_the_search(tmp_path):
    (tmp_path / "0001" / "stack").mkdir(parents=True)
    (tmp_path / "0001" / "stack" / "mine.txt").write_text("keep")
    outcomes = make_stacked(tmp_path).train(TRIALS[:2], 1)
    assert [next(outcomes).trial, next(outcomes).trial] == [1, 2]
    with pytest.raises(CheckpointError, match="holds other files"):
        next(outcomes)


@pytest.mark.usefixtures("stacked_always")
def test_a_search_that_is_to_end_keeps_what_was_trained(tmp_path):
    heard = []

    def on_event(event):
        heard.append(event)
        return len(heard) == 2

    stacks = make_stacked(tmp_path, stopper=Stopper(None, on_event))
    assert list(stacks.train(TRIALS[:2], 3)) == []
    assert stacks.models.stopper.stopped == "interrupted"
    whole = by_number(make_alone().train(TRIALS[:2], 3))
    for number, outcome in by_number(make_stacked(tmp_path).train(TRIALS[:2], 3)).items():
        assert_alike(outcome, whole[number])


@pytest.mark.slow
def test_a_search_with_little_time_trains_few_trials_at_first():
    many = [Trial(number, {"units": 4, "rate": 0.1}, seed=number) for number in range(1, 9)]
    stacks = make_stacked(stopper=Stopper(3600.0))
    assert sorted(by_number(stacks.train(many, 1))) == list(range(1, FIRST + 1))
    assert len(by_number(stacks.train(many, 1))) == len(many)
    assert make_stacked(folds=4).width == MOST_MODELS // 4


def test_batches_are_those_of_a_model_alone():
    models = make_alone().models
    sizes = [find_batch_size(trial, models.resamples[0], models.data) for trial in TRIALS]
    assert sizes == [30, 30, 10]  # a fold trains on 30 rows
