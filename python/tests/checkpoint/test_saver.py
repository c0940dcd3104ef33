import pytest
from saved_states import IDENTITY, make_state
from small_fits import make_dataset, make_model

from gpukeras import CheckpointError, SpecError
from gpukeras.checkpoint.manager import Checkpointer
from gpukeras.checkpoint.saver import Saver, open_saver
from gpukeras.core.options import FitSpec


def test_without_a_folder_nothing_is_saved():
    saver = Saver(None)
    saver.save(make_state(1))
    saver.write_history(None)
    assert (saver.enabled, saver.due(), saver.folder, saver.notes) == (False, False, "", ())
    assert saver.resume() is None


def test_what_is_saved_is_taken_up(tmp_path):
    with Checkpointer(tmp_path / "run", IDENTITY) as checkpointer:
        saver = Saver(checkpointer)
        saver.save(make_state(2))
        assert saver.enabled
        assert saver.folder == str(tmp_path / "run")
        assert saver.resume().epoch == 2
        assert saver.notes == ()


def test_a_save_that_fails_is_told_once_and_ends_nothing(tmp_path, monkeypatch):
    with Checkpointer(tmp_path / "run", IDENTITY) as checkpointer:
        saver = Saver(checkpointer)
        saver.save(make_state(1))
        full = OSError(28, "No space left on device")
        monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(full))
        saver.save(make_state(2))
        saver.save(make_state(2))
        monkeypatch.undo()
        assert len(saver.notes) == 1
        assert "the disk is full" in saver.notes[0]
        assert saver.resume().epoch == 1


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
            pytest.raises(CheckpointError, match="another training"),
            open_saver(model, data, plan, FitSpec(checkpoint={"folder": str(folder)})),
        ):
            pass
    with (
        pytest.raises(SpecError, match="keep"),
        open_saver(model, data, plan, FitSpec(checkpoint={"folder": str(folder), "keep": 0})),
    ):
        pass
