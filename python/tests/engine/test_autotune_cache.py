"""A later training of an equal model starts with the engine that won, if the file is sound."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from children import run_script
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.backend import xla_cache
from gpukeras.engine import autotune_cache
from gpukeras.engine.autotune import REPEATS, EngineChoice, EngineFacts, Trial
from gpukeras.engine.autotune_cache import CachedChoice

SUPPORT = Path(__file__).parents[1] / "support"
KNOWN = CachedChoice("compiled", 6e-5, "graph_loop", 5e-4, 2.0)
THREE = ("graph_loop", "keras", "compiled")
SLOW, FAST = Trial("graph_loop", 0.4, 5e-4), Trial("compiled", 2.0, 6e-5)
LASTING = autotune_cache.LASTING  # no test but the last keeps it


class Engines:
    """Engines of a model that is described by a word, or by nothing."""

    def __init__(self, identity="one"):
        self.identity, self.started_s = identity, 0.0
        self.batch_s = 0.5


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(autotune_cache, "LASTING", ("compiled",))
    monkeypatch.setattr(autotune_cache, "_find_file", lambda: tmp_path / autotune_cache.FILE)
    monkeypatch.setattr(autotune_cache, "_given", {})
    autotune_cache._choices.cache_clear()
    yield tmp_path / autotune_cache.FILE
    autotune_cache._choices.cache_clear()


def open_new(engines, batches=10**5, candidates=THREE):
    """As in a new session."""
    autotune_cache._choices.cache_clear()
    autotune_cache._given.clear()
    return autotune_cache.open_autotuner(engines, candidates, batches, "", EngineFacts())


def open_again(engines, batches):
    """As in the same session."""
    return autotune_cache.open_autotuner(engines, THREE, batches, "", EngineFacts())


@pytest.mark.parametrize(
    ("engine", "trials", "found"),
    [
        ("compiled", (SLOW, FAST), KNOWN),
        ("compiled", (SLOW, Trial("keras", 0.0, None, "refused"), FAST), KNOWN),
        ("compiled", (FAST,), None),  # nothing to compare it with
        ("graph_loop", (SLOW, Trial("compiled", 2.0, 9e-4)), None),  # is tried first anyway
        ("keras", (SLOW, FAST), None),  # settled for another reason
        ("compiled", (), None),
    ],
)
def test_only_a_measured_victory_of_the_slow_starter_is_remembered(file, engine, trials, found):
    assert autotune_cache.to_cached(EngineChoice(engine, "", trials)) == found


def test_a_later_session_starts_with_the_winner_and_says_why(file):
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    chooser = open_new(Engines())
    assert chooser.engine == "compiled"
    chooser.record(1, 0.3)
    assert chooser.choice.engine == "compiled"
    assert chooser.choice.reason == (
        "measured fastest in an earlier training on this computer: 60 us a batch against 500 us "
        "(graph_loop)"
    )
    assert not file.parent.joinpath("autotune-cache.json.new").exists()
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("engines", "batches", "candidates"),
    [
        (Engines("another"), 10**5, THREE),
        (Engines(None), 10**5, THREE),  # a model with code of the user's
        (Engines(), 1000, THREE),  # saves 0.44 s, and its start takes 1 s
        (Engines(), 10**5, THREE[:2]),  # XLA is not allowed
    ],
)
def test_what_does_not_apply_is_not_used(file, engines, batches, candidates):
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    assert open_new(engines, batches, candidates).engine == "graph_loop"


def test_what_is_to_be_equal_to_keras_starts_with_what_rounds_as_keras_does(file):
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    facts = EngineFacts(as_keras=True, dense_flops=1e6)
    chooser = autotune_cache.open_autotuner(Engines(), THREE, 10**5, "", facts)
    assert chooser.engine == "graph_loop"


def train(engines, batches, batch_s=5e-4, start_s=0.5):
    """Runs a training of a fixed time a batch; returns the engines that it tried, or prepared."""
    chooser, tried = open_again(engines, batches), set()
    while batches:
        count, first = chooser.count(batches), not tried
        tried |= {chooser.engine, chooser.preparing} - {""}
        chooser.record(count, count * batch_s + first * start_s)
        batches -= count
    return tried


@pytest.mark.usefixtures("file")
def test_short_trainings_of_equal_models_pay_together_for_the_slow_starter():
    # 1,000 batches take 0.5 s, and compiling is expected to take 1.5 s: tried above 2.25 s.
    tried = [train(Engines(), 1000) for _ in range(6)]
    assert tried == [{"graph_loop"}] * 4 + [{"graph_loop", "compiled"}] * 2
    assert train(Engines("another"), 1000) == {"graph_loop"}
    assert train(Engines(None), 1000) == {"graph_loop"}


def test_short_trainings_start_with_the_winner_once_they_have_paid_for_it(file):
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    # Each saves 0.44 s, and the start takes 1 s.
    opened = [open_again(Engines(), 1000).engine for _ in range(4)]
    assert opened == ["graph_loop", "graph_loop", "compiled", "compiled"]


def test_what_was_measured_decides_before_what_is_foreseen(file):
    dense = EngineFacts(dense_flops=1e6)
    opened = autotune_cache.open_autotuner(Engines(), THREE, 10**4, "", dense)
    assert opened.engine == "compiled"
    opened.record(1, 1.0)
    assert "fastest for small batches" in opened.choice.reason
    slow = CachedChoice("compiled", 4.9e-4, "graph_loop", 5e-4, 2.0)
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    autotune_cache._choices(file)[autotune_cache._find_key(Engines())] = slow
    assert autotune_cache.open_autotuner(Engines(), THREE, 10**4, "", dense).engine == "graph_loop"
    assert (
        autotune_cache.open_autotuner(Engines(), THREE[:2], 10**4, "", dense).engine != "compiled"
    )


@pytest.mark.usefixtures("file")
def test_what_was_measured_and_trained_before_decides_nothing_where_a_training_is_to_repeat():
    repeats = EngineFacts(repeats=True)
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    for _ in range(3):  # as many trainings before do not count either
        chooser = autotune_cache.open_autotuner(Engines(), THREE, 10**6, REPEATS, repeats)
        chooser.record(chooser.count(10), 1.0)
        assert chooser.choice.engine == "graph_loop"
        assert chooser.choice.reason == REPEATS + autotune_cache.FASTER
    few = autotune_cache.open_autotuner(Engines(), THREE, 10, REPEATS, repeats)
    assert few.finish().reason == REPEATS


@pytest.mark.usefixtures("file")
def test_what_is_foreseen_by_the_model_alone_repeats():
    dense = EngineFacts(dense_flops=1e6, repeats=True)
    for _ in range(2):
        open_few = autotune_cache.open_autotuner(Engines(), THREE, 6000, REPEATS, dense)
        assert open_few.engine == "graph_loop"
    chooser = autotune_cache.open_autotuner(Engines(), THREE, 10**4, REPEATS, dense)
    assert chooser.engine == "compiled"
    assert chooser.refuse("XLA has no kernel")
    chooser.record(1, 1.0)
    assert (chooser.choice.engine, chooser.choice.reason) == ("graph_loop", REPEATS)


@pytest.mark.usefixtures("file")
def test_batches_are_counted_of_so_many_models(monkeypatch):
    monkeypatch.setattr(autotune_cache, "MOST_CHOICES", 3)
    for name in "abcad":
        open_again(Engines(name), 10)
    assert list(autotune_cache._given.values()) == [10, 20, 10]


def test_a_winner_that_is_refused_now_is_measured_against_no_more(file):
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    chooser = open_new(Engines())
    assert chooser.refuse("XLA has no kernel")
    assert chooser.engine == "graph_loop"
    while chooser.choice is None:
        chooser.record(chooser.count(10**5), chooser.count(10**5) * 5e-4)
    assert chooser.choice.engine == "graph_loop"
    assert "earlier training" not in chooser.choice.reason


def test_the_oldest_are_forgotten_and_other_sessions_choices_stay(file, monkeypatch):
    monkeypatch.setattr(autotune_cache, "MOST_CHOICES", 3)
    for name in "abcd":
        autotune_cache.store_choice(Engines(name), EngineChoice("compiled", "", (SLOW, FAST)))
    assert [open_new(Engines(name)).engine for name in "ad"] == ["graph_loop", "compiled"]
    autotune_cache.write_choices(file, {"other": KNOWN})  # another session, since this one has read
    autotune_cache.store_choice(Engines("e"), EngineChoice("compiled", "", (SLOW, FAST)))
    assert list(autotune_cache.read_choices(file))[0] == "other"
    assert len(autotune_cache.read_choices(file)) == 2


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(changes=st.dictionaries(st.sampled_from([*asdict(KNOWN), "more"]), JUNK, min_size=1))
def test_a_damaged_file_is_no_file(tmp_path_factory, changes):
    file = tmp_path_factory.getbasetemp() / autotune_cache.FILE
    found = {**asdict(KNOWN), **changes}
    file.write_text(json.dumps({"key": found}))
    for known in autotune_cache.read_choices(file).values():
        assert known.engine == "compiled"
        assert all(0 < one < float("inf") for one in (known.batch_s, known.other_s, known.start_s))


@pytest.mark.parametrize("content", ["", "[]", "[1]", "{", '{"a": 1}', "[" * 10**5, "\0"])
def test_what_is_no_table_is_no_file(tmp_path, content):
    file = tmp_path / autotune_cache.FILE
    file.write_text(content)
    assert autotune_cache.read_choices(file) == {}


def test_a_pipe_is_not_waited_for(tmp_path):
    file = tmp_path / autotune_cache.FILE
    os.mkfifo(file)
    assert autotune_cache.read_choices(file) == {}


def test_a_folder_that_cannot_be_written_to_changes_nothing(file, monkeypatch):
    missing = file.parent / "missing" / file.name
    monkeypatch.setattr(autotune_cache, "_find_file", lambda: missing)
    autotune_cache._choices.cache_clear()
    autotune_cache.store_choice(Engines(), EngineChoice("compiled", "", (SLOW, FAST)))
    assert not missing.exists()
    chooser = autotune_cache.open_autotuner(Engines(), THREE, 10**5, "", EngineFacts())
    assert chooser.engine == "compiled"  # this session knows


SESSION = """
import numpy as np
from gpukeras.backend import runtime
from gpukeras.engine import autotune_cache
from gpukeras.engine.autotune import EngineChoice, Trial
from gpukeras.training import fit
from small_fits import make_dataset, make_model

runtime.read_seed = lambda: None  # make_model() gives one
data, model = make_dataset(2000, batch_size=1, shuffle=False), make_model()
if not autotune_cache._choices(autotune_cache._find_file()):
    trials = Trial("graph_loop", 0.4, 5e-4), Trial("compiled", 0.1, 6e-5)

    def keep(epoch, logs):
        engines = vars(model)["_gpukeras_engines"]["train"][1]
        autotune_cache.store_choice(engines, EngineChoice("compiled", "", trials))

    hook = runtime.keras().callbacks.LambdaCallback(on_epoch_end=keep)
    fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"}, callbacks=[hook])
    answer = None
else:
    report = fit.fit(model, data, {"epochs": 2})
    answer = [report.engine.engine, report.engine.reason, len(report.history["loss"])]
"""


@pytest.mark.slow
@pytest.mark.tf
def test_a_session_trains_with_what_another_has_measured(monkeypatch, tmp_path):
    # The flags of this process name its own folder.
    told = {"GPUKERAS_XLA_CACHE": str(tmp_path), "TF_XLA_FLAGS": ""}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(autotune_cache, "LASTING", LASTING)
    xla_cache.prepare_cache()
    this_session = {}
    exec(SESSION, this_session)
    assert this_session["answer"] is None
    engine, reason, epochs = run_script(SESSION, **told)
    assert engine == "compiled"
    assert reason.startswith("measured fastest in an earlier training on this computer: 60 us")
    assert epochs == 2
