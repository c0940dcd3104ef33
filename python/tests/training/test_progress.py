import math
from dataclasses import replace

from gpukeras.models.state import Snapshot
from gpukeras.training.progress import Progress


def test_a_metric_that_comes_late_had_no_value_before():
    done = Progress()
    done.add({"loss": 2.0}, 1.0, 10, 0.1)
    done.add({"loss": 1.0, "val_loss": 3.0}, 2.0, 10, 0.1)
    done.add({"loss": 0.5}, 2.0, 10, 0.05)
    assert done.history["loss"] == [2.0, 1.0, 0.5]
    assert [math.isnan(value) for value in done.history["val_loss"]] == [True, False, True]
    assert (done.epoch, done.epoch_rows, done.learning_rate) == (3, [10] * 3, [0.1, 0.1, 0.05])


def test_what_was_spent_before_a_resumption_counts_once():
    done = Progress(epoch=1, history={"loss": [2.0]}, epoch_s=[1.0], done=7, spent_s=0.5)
    done.add({"loss": 1.0}, 2.0, 10, 0.1)
    done.add({"loss": 1.0}, 2.0, 10, 0.1)
    assert done.epoch_s == [1.0, 2.5, 2.0]
    assert (done.done, done.spent_s) == (0, 0.0)


def test_a_training_goes_on_from_its_state():
    done = Progress(2, {"loss": [2.0, 1.0]}, [1.0, 1.5], [10, 10], [0.1, 0.05])
    state = done.to_state(Snapshot({}), position=3, extra={"spent_s": 0.25})
    again = Progress()
    again.resume(state)
    notes = ["Resumed after batch 3 of epoch 3, from its checkpoint."]
    assert again == replace(done, done=3, spent_s=0.25, resumed=2, notes=notes)


def test_a_callback_may_go_on_after_some_epochs():
    progress = Progress()
    progress.skip_to(0)
    assert progress.notes == []
    progress.skip_to(2)
    assert progress.notes == ["Resumed after epoch 2, by the callback BackupAndRestore."]
    assert (progress.epoch, progress.resumed) == (2, 2)
    progress.add({"loss": 1.0}, 0.5, 10, 0.1)
    progress.skip_to(3)
    assert progress.epoch == 3
    assert len(progress.notes) == 1
