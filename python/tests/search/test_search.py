import json
import os
import signal
import warnings

import numpy as np
import pytest
from small_disks import BREAKING, small_disk
from small_fits import make_dataset
from trialled import SETTINGS, build, trace_of, tune

from gpukeras import CheckpointError, GeneratorError, PreemptedError, SpecError
from gpukeras.core.errors import NotSavedWarning
from gpukeras.core.preemption import REQUEUE_STATUS
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.search.search import judge
from gpukeras.search.trials import Outcome

GRID = [{"rate": 0.1, "units": 4}, {"rate": 0.5, "units": 4}, {"rate": 0.1, "units": 8}]


def refused(**given):
    """The error of a search whose builder may not be called."""

    def untouched(settings, seed):
        raise AssertionError("a model was built")

    with pytest.raises((SpecError, CheckpointError)) as caught:
        tune(**{"build": untouched, **given})
    return caught.value


@pytest.mark.tf
def test_a_search_finds_the_best_settings_and_says_how(tmp_path):
    heard = []
    tuning = tune(options={"folder": str(tmp_path / "study")}, on_event=heard.append)
    assert (tuning.stopped, tuning.metric, tuning.mode) == ("completed", "val_loss", "min")
    assert tuning.rungs == (1, 3)
    rows = {(row.trial, row.epochs): row for row in tuning.trace}
    assert [key for key in rows if key[1] == 1] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert 1 <= len(rows) - 4 <= 2
    values = {key: row.metrics["val_loss"] for key, row in rows.items()}
    best = tuning.best
    assert best.value == min(values.values()) == values[best.trial, best.epochs]
    assert best.settings == rows[best.trial, best.epochs].settings
    assert tuning.epochs_spent == 2 * sum(max(e for t, e in rows if t == n) for n in range(1, 5))
    told = [event for event in heard if event["kind"] == "trial"]
    assert [(event["trial"], event["epochs"]) for event in told] == _in_order(rows, told)
    assert told[-1]["best"] == best.value
    assert 2 * told[-1]["step"] == 2 * told[-1]["steps"] == tuning.epochs_spent
    assert not (tmp_path / "study" / "states").exists()  # nothing will go on
    again = tune(options={"folder": str(tmp_path / "study")})
    assert trace_of(again) == trace_of(tuning)
    assert again.found == 4


def _in_order(rows, told):
    """All rows, in the order in which a listener heard of them."""
    heard = [(event["trial"], event["epochs"]) for event in told]
    assert sorted(heard) == sorted(rows)
    return heard


# With seed 7 the best of three trials is another than the best of four.
@pytest.mark.varies
@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.tf
def test_a_search_that_was_ended_goes_on_as_if_it_had_not_been(tmp_path, seed):
    whole = tune(options={"seed": seed})
    folder, told = tmp_path / "study", []

    def stop_after(count):
        def listen(event):
            told.extend([(event["trial"], event["epochs"])] if event["kind"] == "trial" else [])
            return len(told) >= count

        return listen

    for count in (2, 3):
        ended = tune(options={"folder": str(folder), "seed": seed}, on_event=stop_after(count))
        assert ended.stopped == "interrupted"
        assert len(ended.trace) == count
    told.clear()
    last = tune(options={"folder": str(folder), "seed": None}, on_event=stop_after(99))
    assert trace_of(last) == trace_of(whole)
    assert len(told) == len(whole.trace) - 3  # nothing was trained again
    with pytest.raises(CheckpointError) as caught:
        tune(options={"folder": str(folder), "seed": seed, "metric": "accuracy"})
    assert '`metric` was "val_loss" and is "val_accuracy"' in caught.value.message
    with pytest.raises(CheckpointError, match="the rows of `data` changed"):
        tune(make_dataset(60, seed=2), options={"folder": str(folder), "seed": seed})
    with pytest.raises(CheckpointError, match="`resamples` changed"):
        tune(options={"folder": str(folder), "seed": seed}, resamples=3)
    with pytest.raises(CheckpointError, match="`builder` changed"):
        tune(options={"folder": str(folder), "seed": seed}, builder="function(rate) NULL")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.tf
def test_a_process_that_is_asked_to_end_is_no_failure_of_its_trial(tmp_path):
    whole, options = tune(options={"workers": 1}), {"folder": str(tmp_path / "study"), "workers": 1}
    waited, missed = [], []

    def ask(event):
        waited.extend([event] if event["kind"] == "waiting" else [])
        if len(waited) == 3 and event is waited[2]:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, _: missed.append(number))
    try:
        with pytest.raises(
            PreemptedError, match="its search is saved, .* s after SIGTERM"
        ) as ended:
            tune(options=options, on_event=ask)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert missed == []
    assert ended.value.details["checkpoint"] == options["folder"]
    again = tune(options=options)
    assert trace_of(again) == trace_of(whole)
    assert [row.error for row in again.trace if row.error] == []


WAYS = {
    "between two trials": ("trial", {"most": 1, "workers": 1}),
    "in a stack": ("waiting", {"workers": 1}),
    "while workers train": ("waiting", {"most": 1, "workers": 2}),
}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("way", WAYS)
def test_a_search_that_is_asked_to_end_goes_on_where_it_was(tmp_path, way):
    kind, options = WAYS[way]
    whole, told = tune(options=options), []

    def ask(event):
        if event["kind"] == kind and not told:
            told.append(event)
            signal.raise_signal(signal.SIGUSR1)

    options = {**options, "folder": str(tmp_path / "study")}
    with pytest.raises(PreemptedError, match="its search is saved") as refused:
        tune(options=options, on_event=ask)
    assert refused.value.details["status"] == REQUEUE_STATUS
    assert told
    again = tune(options=options)
    assert again.stopped == "completed"
    assert [row[:3] for row in trace_of(again)] == [row[:3] for row in trace_of(whole)]
    assert [row.error for row in again.trace if row.error] == []


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("most", [1, 8])
def test_a_save_is_measured_before_a_trial_trains_where_there_is_a_grace_period(tmp_path, most):
    told, study = [], tmp_path / "study"
    options = {"most": most, "workers": 1}
    folder = {"folder": str(study), "grace_s": 1}
    with pytest.raises(SpecError, match=r"twice the .* a save of this search") as refused:
        tune(options={**options, "folder": folder}, on_event=told.append)
    assert (refused.value.details["arg"], told) == ("grace_s", [])
    assert sorted(os.listdir(study)) == ["lock", "states", "study.json", "trials"]
    assert not any((study / "trials").iterdir())
    assert not any((study / "states").iterdir())
    again = tune(options={**options, "folder": {**folder, "grace_s": 60}})
    assert trace_of(again) == trace_of(tune(options=options))


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        (3, "`folder` must be the path of a folder, not 3"),
        ({"grace_s": 60}, '`folder` must be the path of a folder, not ""'),
        ({"folder": "study", "grace_s": -1}, "`grace_s` must be a number of at least 0, not -1"),
        ({"folder": "study", "keep": 2}, "Unknown option `keep`"),
    ],
)
def test_options_of_the_folder_are_refused_by_name(folder, says):
    assert refused(options={"folder": folder}).message.startswith(says)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.tf
def test_a_search_without_a_folder_ends_as_the_signal_has_it():
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        tuning = tune(on_event=lambda event: got or signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tuning.stopped, got) == ("completed", [signal.SIGTERM])


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("breaking", BREAKING)
def test_a_search_goes_on_without_its_disk_and_says_so_at_once_and_at_the_end(tmp_path, breaking):
    whole = tune()
    told = []
    with small_disk(tmp_path / "disk") as disk:
        study = disk.folder / "study"

        def listen(event):
            told.extend([event] if event["kind"] == "trial" else [])
            if len(told) == 1 and event is told[0]:
                getattr(disk, breaking)()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NotSavedWarning)
            found = tune(options={"folder": str(study)}, on_event=listen)
        warned = [str(one.message) for one in caught if one.category is NotSavedWarning]
        assert sum("The search is not saved any more, and goes on" in one for one in warned) == 1
        assert trace_of(found) == trace_of(whole)
        assert found.stopped == "completed"
        assert found.unsaved.startswith("`folder` cannot be written: ")
        if breaking == "vanish":
            return
        kept = {path.name: json.loads(path.read_text()) for path in study.glob("trials/*")}
        assert list(kept) == [f"{told[0]['trial']:04d}.json"]
        assert not list(study.rglob("*.partial"))
        if breaking == "fill":
            disk.empty()
            again = tune(options={"folder": str(study)})
            assert (trace_of(again), again.unsaved) == (trace_of(whole), "")
            assert again.found == 1


@pytest.mark.slow
@pytest.mark.tf
def test_more_trials_join_those_that_are_there(tmp_path):
    options = {"folder": str(tmp_path), "trials": 2, "epochs": 1}
    first = tune(options=options)
    more = tune(options={**options, "trials": 4})
    assert trace_of(more)[:2] == trace_of(first)
    assert (more.trials, more.found, len(more.trace)) == (4, 2, 4)
    fewer = tune(options=options)
    assert trace_of(fewer) == trace_of(more)


@pytest.mark.tf
def test_a_grid_is_all_trials_with_the_settings_that_are_fixed():
    batch = {"batch_size": {"kind": "values", "values": [20.0]}}
    tuning = tune(
        make_dataset(60, validation=0.2),
        grid=GRID,
        settings=batch,
        resamples=None,
        options={"epochs": 1, "trials": None},
    )
    assert [row.settings for row in tuning.trace] == [{"batch_size": 20.0, **row} for row in GRID]
    assert tuning.best.std_err is None
    assert tuning.resamples == ("validation",)


@pytest.mark.tf
def test_trials_that_fail_are_told_of_and_the_search_goes_on():
    def builder(settings, seed):
        if settings["units"] == 8:
            return {"failed": True, "message": "too wide"}
        return build(settings, seed)

    grid = [GRID[2], *GRID[:2]]
    tuning = tune(build=builder, grid=grid, settings={}, options={"epochs": 1, "trials": None})
    assert [row.error for row in tuning.trace] == ["`builder` failed: too wide", "", ""]
    assert tuning.failed == 1
    assert tuning.notes == ("1 trial failed, first trial 1: `builder` failed: too wide.",)
    assert tuning.best.trial in (2, 3)


@pytest.mark.tf
def test_a_metric_that_does_not_exist_is_named_before_anything_trains():
    heard = []
    with pytest.raises(SpecError) as caught:
        tune(options={"metric": "auc"}, on_event=heard.append)
    assert caught.value.message == ("`metric` is `val_auc`, and the model of trial 1 has no such.")
    assert caught.value.hint == "It has val_loss, val_accuracy."
    assert heard == []


@pytest.mark.tf
def test_a_metric_that_belies_its_name_is_refused_unless_it_is_said_what_is_better():
    import keras

    def named(settings, seed):
        made = build(settings, seed)
        metrics = [keras.metrics.SparseCategoricalAccuracy(name="hit_error")]
        made["model"].compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
        return made

    with pytest.raises(SpecError, match="better by its name, but not by its class") as caught:
        tune(build=named, options={"metric": "hit_error"})
    assert caught.value.hint.startswith("Say it: `maximize = TRUE`")
    options = {"metric": "hit_error", "maximize": True, "epochs": 1}
    assert tune(build=named, options=options).mode == "max"


@pytest.mark.tf
def test_a_builder_that_never_works_is_an_error():
    calls = []

    def fails(settings, seed):
        calls.append(settings)
        return {"failed": True, "message": "no such layer"}

    with pytest.raises(GeneratorError, match="no such layer"):
        tune(build=fails)
    assert len(calls) == 4
    with pytest.raises(GeneratorInterrupt):
        tune(build=lambda settings, seed: {"interrupted": True})


@pytest.mark.tf
def test_what_cannot_be_is_refused_before_a_model_is_built(tmp_path):
    assert refused(settings={}).details["arg"] == "..."
    assert refused(grid=[]).details["arg"] == "grid"
    assert refused(settings={"rate": {"kind": "range", "low": 1, "high": 0}}).details["arg"] == (
        "rate"
    )
    assert refused(resamples=[[1, 100]]).details["arg"] == "resamples"
    assert refused(groups=np.arange(60) // 7 % 2, resamples=[[1, 2]]).details["arg"] == "resamples"
    assert refused(fit={"epochs": 3}).details["arg"] == "fit"
    assert refused(options={"trials": -1}).details["arg"] == "trials"
    sizes = {**SETTINGS, "batch_size": {"kind": "values", "values": [0.5, 16.0]}}
    assert refused(settings=sizes).details["arg"] == "batch_size"
    (tmp_path / "mine.txt").write_text("mine")
    assert refused(options={"folder": str(tmp_path)}).details["arg"] == "folder"


@pytest.mark.tf
def test_settings_of_few_combinations_are_all_tried():
    settings = {
        "rate": {"kind": "values", "values": [0.1, 0.5]},
        "units": {"kind": "values", "values": [4.0]},
    }
    tuning = tune(settings=settings, options={"epochs": 1})
    assert tuning.trials == 2
    assert tuning.notes == ("The settings have 2 combinations: all of them are trials.",)


def test_an_outcome_without_a_number_for_the_metric_is_a_failure():
    known = Outcome(1, 3, {"val_loss": [0.5, 0.7]})
    assert judge(known, "val_loss") is known
    assert judge(known, "val_auc").error == "the model has no metric `val_auc`"
    missing = Outcome(1, 3, {"val_loss": [0.5, float("nan")]})
    assert judge(missing, "val_loss").error == "`val_loss` is not finite"
    failed = Outcome(1, 3, error="no such layer")
    assert judge(failed, "val_loss") is failed
