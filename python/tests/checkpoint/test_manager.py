import json
import math
import warnings

import pytest
from checkpointed import damage, small_files
from saved_states import IDENTITY, make_state
from small_disks import BREAKING, small_disk
from small_fits import make_dataset, make_model

from gpukeras import SpecError
from gpukeras.checkpoint.manager import Checkpointer, open_saver
from gpukeras.checkpoint.state import pack_state
from gpukeras.checkpoint.store import CheckpointStore, InUseError, UnusableError
from gpukeras.core.errors import NotSavedWarning
from gpukeras.core.options import FitSpec


def test_a_training_goes_on_where_it_was_saved(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        assert kept.resume() is None
        assert (kept.enabled, kept.folder) == (True, str(tmp_path / "run"))
        for epoch in (1, 2):
            kept.save(make_state(epoch))
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        state = kept.resume()
        assert state.epoch == 2
        assert (state.snapshot.arrays["weights/0000"] == 2).all()
        assert kept.notes == ()


def test_another_training_is_refused_and_stays(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        kept.save(make_state(1))
    with Checkpointer(tmp_path / "run", {**IDENTITY, "batch_size": 64}) as kept:
        with pytest.raises(UnusableError) as caught:
            kept.resume()
        expected = "`checkpoint` holds another training: the batch size was 32 and is 64."
        assert caught.value.message == expected
        assert "another folder" in caught.value.hint
        assert caught.value.details["path"] == str(tmp_path / "run")
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        assert kept.resume().epoch == 1


def test_what_the_user_should_know_is_noted(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        kept.save(make_state(1))
        kept.save(make_state(2))
    damage(tmp_path / "run" / "checkpoint-000002.npz")
    with Checkpointer(tmp_path / "run", {**IDENTITY, "versions": {"Keras": "3.16"}}) as kept:
        assert kept.resume().epoch == 1
        assert len(kept.notes) == 2
        assert kept.notes[0].startswith("checkpoint-000002.npz was passed over")
        assert kept.notes[1] == "The checkpoint was made by Keras 3.15.1, not 3.16."


def test_a_state_of_another_version_is_a_clear_error(tmp_path):
    plain, arrays = pack_state(make_state(1))
    with CheckpointStore(tmp_path / "run") as store:
        store.save({"identity": IDENTITY, "state": {**plain, "later": 1}}, arrays)
    with (
        Checkpointer(tmp_path / "run", IDENTITY) as kept,
        pytest.raises(UnusableError, match="saved by another version of gpukeras"),
    ):
        kept.resume()


def test_a_save_that_fails_is_a_sentence_and_the_last_good_one_stays(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY, every_s=0) as kept:
        kept.save(make_state(1))
        with small_files(4096):
            kept.save(make_state(2, 10_000))
            kept.write_history({"loss": [1.0] * 5000})
        assert len(kept.notes) == 1
        assert kept.notes[0].startswith("`checkpoint`: the disk is full")
        assert kept.resume().epoch == 1
        assert len(kept.notes) == 1


@pytest.mark.parametrize(("every_s", "due"), [(0, True), (1000, False), (None, False)])
def test_it_is_time_to_save_after_a_while(tmp_path, every_s, due):
    with Checkpointer(tmp_path / "run", IDENTITY, every_s=every_s) as kept:
        assert kept.due() is due
        kept.save(make_state(1))
        assert kept.due() is due


def test_history_is_written_beside(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        kept.write_history({"history": {"loss": [1.0, math.nan]}})
        assert kept.notes == ()
    written = json.loads((tmp_path / "run" / "history.json").read_text())
    assert written == {"history": {"loss": [1.0, None]}}


def test_without_a_folder_nothing_is_saved():
    saver = Checkpointer()
    saver.save(make_state(1))
    saver.write_history(None)
    assert (saver.enabled, saver.due(), saver.folder, saver.notes) == (False, False, "", ())
    assert saver.resume() is None


@pytest.mark.tf
def test_a_training_has_the_saver_that_it_asked_for(tmp_path):
    model, data = make_model(), make_dataset()
    plan = data.plan("CPU:0")
    with open_saver(model, data, plan, FitSpec()) as saver:
        assert not saver.enabled
    folder = tmp_path / "run"
    with open_saver(model, data, plan, FitSpec(checkpoint={"folder": str(folder)})) as saver:
        assert saver.folder == str(folder)
        with (
            pytest.raises(InUseError, match="another training"),
            open_saver(model, data, plan, FitSpec(checkpoint={"folder": str(folder)})),
        ):
            pass
    with (
        pytest.raises(SpecError, match="keep"),
        open_saver(model, data, plan, FitSpec(checkpoint={"folder": str(folder), "keep": 0})),
    ):
        pass


@pytest.mark.parametrize("breaking", BREAKING)
def test_a_disk_that_fails_is_told_at_once_and_at_the_end(tmp_path, breaking):
    with small_disk(tmp_path / "disk") as disk:
        folder = disk.folder / "run"
        with Checkpointer(folder, IDENTITY) as kept:
            assert kept.saved == ""
            kept.save(make_state(1))
            assert (kept.saved, kept.unsaved) == (str(folder), "")
            whole = sorted(path.name for path in folder.iterdir())
            getattr(disk, breaking)()
            with pytest.warns(NotSavedWarning, match="not saved any more, and goes on: `checkpo"):
                kept.save(make_state(2))
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # once
                kept.save(make_state(3))
                kept.write_history({"a": list(range(10_000))})
            assert kept.unsaved.startswith("`checkpoint`: ")
            assert kept.unsaved in kept.notes[0]
            if breaking != "vanish":
                assert sorted(path.name for path in folder.iterdir()) == whole
            if breaking == "fill":
                disk.empty()
                kept.save(make_state(4))
                assert kept.resume().epoch == 4
                assert kept.unsaved


def test_a_folder_in_which_nothing_could_be_saved_is_not_told_as_saved(tmp_path):
    with small_disk(tmp_path / "disk") as disk, Checkpointer(disk.folder / "run", IDENTITY) as kept:
        disk.fill()
        with pytest.warns(NotSavedWarning, match="the disk is full"):
            kept.save(make_state(1))
        assert (kept.saved, bool(kept.folder)) == ("", True)
