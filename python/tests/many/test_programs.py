"""Programs are made once for stacks of one structure and size."""

import numpy as np
import pytest
from small_fits import make_dataset, make_model
from stacked import ALONE, difference, fit_many

pytestmark = pytest.mark.tf


def open_for(model, size=2, paths=(), compiled=True):
    from gpukeras.many.programs import open_programs
    from gpukeras.many.structure import describe_structure

    model.optimizer.build(model.trainable_variables)
    structure = describe_structure(model)
    return open_programs(model, structure, paths, size, "CPU:0", compiled=compiled)


def make(rate=0.1, drop=0.2):
    import keras

    return make_model(optimizer=keras.optimizers.SGD(rate), layers=[keras.layers.Dropout(drop)])


def test_equal_stacks_share_programs():
    first = open_for(make())
    assert open_for(make(rate=0.5)) is first
    assert open_for(make(drop=0.3)) is not first
    assert open_for(make(), size=3) is not first
    assert open_for(make(), compiled=False) is not first
    (path,) = [path for path in structure_of(make()).numbers if path[-1] == "rate"]
    shared = open_for(make(), paths=[path])
    assert open_for(make(drop=0.3), paths=[path]) is shared


def structure_of(model):
    from gpukeras.many.structure import describe_structure

    return describe_structure(model)


def test_only_the_last_programs_are_kept():
    from gpukeras.engine.program_cache import MOST

    first = open_for(make())
    others = [open_for(make(), size=size) for size in range(10, 10 + MOST)]
    assert open_for(make(), size=10 + MOST - 1) is others[-1]
    assert open_for(make()) is not first


@pytest.mark.slow
def test_a_model_that_was_changed_since_does_not_change_kept_programs():
    model, data = make_model(), make_dataset(rows=64)
    fit_many([model], data, folds=2, epochs=1)
    model.compile("sgd", "mean_absolute_error")  # the user's own model
    model.layers[0].trainable = False
    fits = fit_many([make_model()], data, folds=2, epochs=1, batch_size=16)  # traced now
    assert max(difference(fits, 2, epochs=1)) < ALONE


def test_a_block_is_one_call_where_the_trip_count_is_known(monkeypatch):
    from gpukeras.data import plan
    from gpukeras.many import programs

    calls, run = [], programs.StackPrograms.run

    def counted(self, kind, *arguments, **options):
        before = len(self._made)
        state = run(self, kind, *arguments, **options)
        calls.append((kind, arguments[2].batches, len(self._made) - before))
        return state

    def train():
        monkeypatch.setattr(programs, "find_program", lambda key: None)
        monkeypatch.setattr(plan, "BLOCK_BYTES", 3 * 2 * 16 * data.row_bytes)  # three steps
        monkeypatch.setattr(plan, "BLOCK_SHARE", 0)  # whatever the memory of a GPU
        fits = fit_many([make_model()], data, seeds=[1, 2], epochs=2, batch_size=16)
        return [one.state for one in fits.fitted]

    data = make_dataset(rows=7 * 16)
    usual = train()
    monkeypatch.setattr(programs, "knows_trip_counts", lambda *_, **__: True)
    monkeypatch.setattr(programs.StackPrograms, "run", counted)
    known = train()
    epoch = [("train", 3, 0), ("train", 3, 0), ("train", 1, 0)]
    assert calls == [("train", 3, 1), *epoch[1:], *epoch]
    for one, other in zip(usual, known, strict=True):
        for part, values in one.items():
            for value, same in zip(values, other[part], strict=True):
                np.testing.assert_array_equal(value, same)
