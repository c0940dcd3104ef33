import numpy as np
import pytest

from gpukeras.core.errors import CheckpointError
from gpukeras.many.fits import Fitted, ModelHistory, ModelProgress
from gpukeras.search.stacked_trainer import load_checkpoints, save_checkpoints


def make_state(rows=2, value=1.0):
    return {"weights": [np.full((rows, 3), value, np.float32)], "rest": [np.zeros(2, np.uint32)]}


def make_progress(metrics, state=None):
    return ModelProgress(Fitted(ModelHistory(metrics), state or make_state(), None), 2)


CHECKPOINTS = [
    make_progress({"loss": [3.0, 2.0], "val_iou": [[0.1, 0.2], [0.3, 0.4]]}),
    None,
]


@pytest.fixture
def folder(tmp_path):
    save_checkpoints(tmp_path / "0001" / "stack", CHECKPOINTS)
    return tmp_path / "0001" / "stack"


@pytest.mark.tf
def test_what_was_written_is_read(folder):
    first, second = load_checkpoints(folder, make_state(), 2)
    assert first.fitted.history == CHECKPOINTS[0].fitted.history
    assert (first.epoch, second) == (2, None)
    state = first.fitted.state
    np.testing.assert_array_equal(state["weights"][0], make_state()["weights"][0])
    assert state["rest"][0].dtype == np.uint32
    save_checkpoints(folder, [None, CHECKPOINTS[0]])
    assert load_checkpoints(folder, make_state(), 2)[0] is None
    assert len(list(folder.glob("checkpoint-*"))) == 1


@pytest.mark.tf
@pytest.mark.parametrize(
    ("like", "count"),
    [(make_state(rows=4), 2), ({"weights": [np.zeros(1)] * 9}, 2), (make_state(), 3)],
)
def test_states_of_another_model_or_other_resamples_are_not_taken(folder, like, count):
    assert load_checkpoints(folder, like, count) == [None] * count


@pytest.mark.tf
@pytest.mark.parametrize("first", [{}, {"loss": 3}, {"loss": [1], "accuracy": []}])
def test_histories_that_cannot_be_are_not_taken(tmp_path, first):
    save_checkpoints(tmp_path / "stack", [make_progress(first), None])
    assert load_checkpoints(tmp_path / "stack", make_state(), 2) == [None, None]


@pytest.mark.tf
def test_a_history_says_how_far_a_trial_is_and_a_file_decides_nothing_else(tmp_path):
    fitted = Fitted(
        ModelHistory({"loss": [3.0, 2.0]}, "completed"), make_state(), np.ones(3), "it failed"
    )
    forged = ModelProgress(fitted, -7, finished=True, best=make_state(value=9.0), factor=0.0)
    save_checkpoints(tmp_path / "stack", [forged])
    (read,) = load_checkpoints(tmp_path / "stack", make_state(), 1)
    state = read.fitted.state
    assert read == ModelProgress(Fitted(ModelHistory({"loss": [3.0, 2.0]}), state, None), 2)


@pytest.mark.tf
def test_damaged_files_are_not_taken_and_do_not_stop_the_next(folder):
    (path,) = folder.glob("checkpoint-*")
    path.write_bytes(path.read_bytes()[:-4])
    assert load_checkpoints(folder, make_state(), 2) == [None, None]
    save_checkpoints(folder, CHECKPOINTS)
    assert load_checkpoints(folder, make_state(), 2)[0] is not None
    assert load_checkpoints(folder / "missing", make_state(), 2) == [None, None]


@pytest.mark.tf
def test_a_folder_of_others_is_not_written_to(tmp_path):
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "mine.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="holds other files"):
        save_checkpoints(tmp_path / "stack", CHECKPOINTS)
