import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpukeras
from gpukeras import CheckpointError
from gpukeras.checkpoint.manager import FolderSpec
from gpukeras.checkpoint.owned_folder import open_kept
from gpukeras.checkpoint.store import CheckpointStore
from gpukeras.search.report import make_trace
from gpukeras.search.study import KIND, Study
from gpukeras.search.trials import Outcome, Trial

IDENTITY = {"space": {"rate": {"low": 0.1, "high": 1.0}}, "metric": "val_loss", "seed": 1}
DRAWN = [{"rate": 0.5}, {"rate": 0.7, "units": [64.0, 32.0]}]
TRIAL = Trial(2, DRAWN[1], seed=5)
FIRST = Outcome(2, 1, {"val_loss": [0.5, 0.7]}, {"loss": [0.9], "val_loss": [0.6]}, 1.5)
SECOND = Outcome(2, 3, {"val_loss": [0.3, 0.4]}, {"loss": [0.9, 0.7, 0.5]}, 0.5)


def open_study(folder):
    return open_kept(FolderSpec("" if folder is None else str(folder)), KIND, Study)


def keep(folder):
    with open_study(folder) as study:
        study.begin(IDENTITY, DRAWN)
        study.record(TRIAL, FIRST)
        study.record(TRIAL, SECOND)


def test_what_was_recorded_is_found_again(tmp_path):
    keep(tmp_path / "study")
    with open_study(tmp_path / "study") as study:
        study.compare(IDENTITY)
        assert study.drawn == DRAWN
        assert study.outcomes == {2: {1: FIRST, 3: SECOND}}
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [
        "lock",
        "states",
        "study.json",
        "trials",
    ]


def test_files_are_plain_and_say_what_was_done(tmp_path):
    keep(tmp_path)
    study = json.loads((tmp_path / "study.json").read_text())
    assert study == {"format": 1, **IDENTITY, "trials": DRAWN}
    trial = json.loads((tmp_path / "trials" / "0002.json").read_text())
    assert (trial["number"], trial["settings"], trial["seed"]) == (2, DRAWN[1], 5)
    assert trial["rungs"][1] == {
        "epochs": 3,
        "metrics": {"val_loss": [0.3, 0.4]},
        "history": {"loss": [0.9, 0.7, 0.5]},
        "seconds": 0.5,
        "error": "",
    }


def test_an_index_that_is_a_pipe_is_refused_and_never_read(tmp_path):
    keep(tmp_path)
    (tmp_path / "study.json").unlink()
    os.mkfifo(tmp_path / "study.json")
    with pytest.raises(CheckpointError, match="it is a pipe, not a file"), open_study(tmp_path):
        pass


def test_without_a_folder_nothing_is_written():
    with open_study(None) as study:
        study.begin(IDENTITY, DRAWN)
        study.record(TRIAL, FIRST)
        study.remove_states()
        assert study.outcomes == {2: {1: FIRST}}


def test_files_that_others_put_among_the_checkpoints_stay(tmp_path):
    mine = tmp_path / "states" / "0001" / "weights.h5"
    with open_study(tmp_path) as study:
        study.begin(IDENTITY, DRAWN)
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with CheckpointStore(tmp_path / "states" / "0002") as store:
            store.save({}, {})
        study.remove_states()
    assert [path for path in (tmp_path / "states").rglob("*") if path.is_file()] == [mine]


def test_numbers_that_json_has_no_words_for_are_null(tmp_path):
    with open_study(tmp_path) as study:
        study.begin(IDENTITY, DRAWN)
        study.record(TRIAL, Outcome(2, 1, {}, {"loss": [float("nan")]}, error="not finite"))
    with open_study(tmp_path) as study:
        assert study.outcomes[2][1].history == {"loss": [None]}


def test_a_metric_that_is_no_number_on_a_resample_is_none_after_reading_either(tmp_path):
    found = Outcome(2, 1, {"val_loss": [0.5, 0.7], "val_auc": [0.5, float("nan")]})
    with open_study(tmp_path) as study:
        study.begin(IDENTITY, DRAWN)
        study.record(TRIAL, found)
    with open_study(tmp_path) as study:
        (row,) = make_trace("val_loss", {2: TRIAL}, study.outcomes)
    assert row.metrics["val_loss"] == pytest.approx(0.6)
    assert math.isnan(row.metrics["val_auc"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "val_auc"}, '`metric` was "val_loss" and is "val_auc".'),
        ({"space": {}}, "the settings changed."),
        ({"seed": 2}, "`seed` was 1 and is 2."),
        ({"seed": None}, "`seed` was 1 and is none."),
    ],
)
def test_another_search_is_refused_by_what_differs(tmp_path, change, message):
    keep(tmp_path)
    with open_study(tmp_path) as study, pytest.raises(CheckpointError) as caught:
        study.compare({**IDENTITY, **change})
    assert caught.value.message == f"`folder` holds another search: {message}"
    assert caught.value.details["path"] == str(tmp_path)


def test_other_versions_are_a_note(tmp_path):
    with open_study(tmp_path) as study:
        study.begin({**IDENTITY, "versions": {"Keras": "3.12.0"}}, DRAWN)
    with open_study(tmp_path) as study:
        study.compare({**IDENTITY, "versions": {"Keras": "3.15.1"}})
        assert study.notes == ("The search in `folder` was made by Keras 3.12.0, not 3.15.1.",)


def test_a_folder_is_locked_against_a_second_search(tmp_path):
    with open_study(tmp_path), pytest.raises(CheckpointError) as caught:
        open_study(tmp_path).__enter__()
    assert caught.value.message == f"`folder` is in use: process {os.getpid()} searches in it."
    with open_study(tmp_path):
        pass


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError) as caught:
        open_study(tmp_path).__enter__()
    assert caught.value.message == "`folder` holds other files, and no search."


@pytest.mark.parametrize("name", ["trials", "states"])
def test_what_an_earlier_search_left_is_not_taken_for_that_of_a_new_one(tmp_path, name):
    keep(tmp_path)
    (tmp_path / "states" / "0002").mkdir()
    (tmp_path / "study.json").unlink()
    if name == "states":
        (tmp_path / "trials" / "0002.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        open_study(tmp_path).__enter__()
    expected = f"`folder` has {name}, and no study.json that says of which search."
    assert caught.value.message == expected
    assert caught.value.hint == "Give another folder, or delete this one to begin anew."


@pytest.mark.parametrize("place", ["states", "states/0001", "states/0001/0001"])
def test_checkpoints_elsewhere_are_out_of_a_folder_s_reach(tmp_path, place):
    study, mine = tmp_path / "study", tmp_path / "mine"
    (mine / "0001").mkdir(parents=True)
    with CheckpointStore(mine / "0001" / "0001") as store:
        store.save({}, {})
    kept = sorted(mine.rglob("*"))
    keep(study)
    link = study / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        link.rmdir()
    link.symlink_to(mine, target_is_directory=True)
    with pytest.raises(CheckpointError) as caught:
        open_study(study).__enter__()
    assert caught.value.message == f"`folder` has a link to another folder, {place}."
    expected = "Give a folder without links: a search deletes checkpoints in its folders."
    assert caught.value.hint == expected
    assert sorted(mine.rglob("*")) == kept


def test_a_partial_file_of_others_is_another_file(tmp_path):
    (tmp_path / "download.partial").write_text("half a film")
    with pytest.raises(CheckpointError, match="holds other files, and no search"):
        open_study(tmp_path).__enter__()


def test_a_study_that_is_damaged_is_not_mended_by_deleting_its_file(tmp_path):
    keep(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(CheckpointError, match="has a damaged file, study.json") as caught:
        open_study(tmp_path).__enter__()
    assert caught.value.hint == "Give another folder, or delete this one to begin anew."


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        open_study(tmp_path / "no" / "study").__enter__()
    assert caught.value.message == "`folder` cannot be used: No such file or directory."
    assert caught.value.hint == "Its parent must exist, and both be yours to write."


@pytest.mark.parametrize("text", ["", "[1]", '{"number": 2}', '{"rungs": [{"epoch": 1}]}'])
def test_a_damaged_file_is_named(tmp_path, text):
    keep(tmp_path)
    (tmp_path / "trials" / "0002.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        open_study(tmp_path).__enter__()
    assert caught.value.message == "`folder` has a damaged file, trials/0002.json."


def test_a_search_of_another_version_is_refused(tmp_path):
    (tmp_path / "study.json").write_text('{"format": 2, "trials": []}')
    with pytest.raises(CheckpointError) as caught:
        open_study(tmp_path).__enter__()
    assert caught.value.message == "`folder` holds a search of another version of gpukeras."


def test_what_a_killed_process_had_not_renamed_is_no_harm(tmp_path):
    keep(tmp_path)
    (tmp_path / "trials" / ".0001.json.partial").write_text('{"numb')
    (tmp_path / ".study.json.partial").write_text("{")
    with open_study(tmp_path) as study:
        assert study.outcomes == {2: {1: FIRST, 3: SECOND}}


def test_a_process_killed_before_the_first_file_left_an_empty_study(tmp_path):
    (tmp_path / ".study.json.partial").write_text("{")
    with open_study(tmp_path) as study:
        assert not study.known


# Records outcomes of trial 2 without an end, and tells of each.
RECORDING = """
import itertools, sys
from pathlib import Path
from gpukeras.checkpoint.store import CheckpointStore
from gpukeras.checkpoint.manager import FolderSpec
from gpukeras.checkpoint.owned_folder import open_kept
from gpukeras.search.study import KIND, Study
from gpukeras.search.trials import Outcome, Trial
with open_kept(FolderSpec(sys.argv[1]), KIND, Study) as study:
    study.begin({}, [{}, {}])
    for epochs in itertools.count(1):
        study.record(Trial(2, {}, seed=5), Outcome(2, epochs, {"val_loss": [0.5]}, {}))
        print(epochs, flush=True)
"""


@pytest.mark.process
def test_a_process_that_is_killed_while_it_writes_loses_nothing_that_it_told_of(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(gpukeras.__file__).parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", RECORDING, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True
    )
    told = [int(child.stdout.readline()) for _ in range(20)]
    child.kill()
    told += [int(line) for line in child.communicate()[0].splitlines()]
    assert child.returncode == -9
    with open_study(tmp_path) as study:  # whose lock died with the process
        assert set(told) <= set(study.outcomes[2]) <= {*told, len(told) + 1}
