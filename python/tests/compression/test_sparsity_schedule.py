"""Masks grow as the schedule says, in every engine the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_modules import keras
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.compression import masks, sparsity_schedule
from gpukeras.training import fit


@pytest.mark.parametrize(
    ("step", "cubic", "linear"),
    [(10, 0.0, 0.0), (35, 0.45703125, 0.2), (60, 0.7, 0.4), (110, 0.8, 0.8)],
)
def test_shares_are_those_of_zhu_and_gupta(step, cubic, linear):
    ramp = {power: sparsity_schedule.Ramp(0.0, 0.8, 10, 110, 25, power) for power in (3, 1)}
    assert ramp[1].share(step) == pytest.approx((step - 10) / 100 * 0.8)
    assert ramp[3].share(step) == pytest.approx(0.8 - 0.8 * (1 - (step - 10) / 100) ** 3)
    assert (ramp[3].share(step), ramp[1].share(step)) == pytest.approx((cubic, linear), abs=0.01)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({"steps": 1000}, (15, 750, 15)),
        ({"steps": 100_000}, (100, 75_000, 100)),
        ({"steps": 10}, (1, 8, 1)),
        ({"steps": 1}, (1, 1, 1)),
        ({"steps": 100, "every": 200}, (75, 75, 200)),
        ({"steps": 100, "part": 1.0}, (2, 100, 2)),
        ({"steps": 100, "schedule": "constant"}, (1, 1, 1)),
    ],
)
def test_a_ramp_fits_the_training(args, wanted):
    ramp = sparsity_schedule.plan_ramp(final=0.8, **args)
    assert (ramp.first, ramp.last, ramp.every) == wanted


def updates(ramp):
    """The steps with an update of the masks."""
    return sorted({*range(ramp.first, ramp.last + 1, ramp.every), ramp.last})


@settings(max_examples=100)
@given(
    steps=st.integers(1, 5000),
    final=st.floats(0.01, 0.99),
    schedule=st.sampled_from(["cubic", "linear", "constant"]),
    part=st.floats(0.01, 1),
    every=st.one_of(st.none(), st.integers(1, 400)),
)
def test_shares_rise_to_the_last_one_within_the_training(steps, final, schedule, part, every):
    ramp = sparsity_schedule.plan_ramp(steps, final, schedule, initial=0.0, part=part, every=every)
    assert 1 <= ramp.first <= ramp.last <= steps
    shares = [ramp.share(step) for step in updates(ramp)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(final)
    assert updates(ramp)[-1] == ramp.last


def grow(engine, whole=False, steps=40, final=0.8, **options):
    """A model trained while its masks grow."""
    model = make_model(optimizer="adam", **options)
    kernels = masks.list_kernels(model)
    ramp = sparsity_schedule.plan_ramp(steps, final)
    sparsity_schedule.Growth(kernels, model.optimizer._iterations, ramp, whole)
    data = make_dataset(320)  # ten batches
    fit.fit(model, data, {"epochs": steps // 10, "engine": engine})
    return model


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("whole", few([False, True], False))
def test_engines_grow_the_same_masks(whole):
    engines = ("graph_loop", "compiled") if whole else ("keras", "graph_loop", "compiled")
    found = [masks.read_masks(grow(engine, whole)) for engine in engines]
    shares = [[1 - keep.mean() for keep in each.values()] for each in found]
    if not whole:
        assert shares[0] == shares[1] == shares[2]
        assert shares[0] == [32 / 40, 19 / 24]  # the nearest whole numbers
    else:
        assert masks.sparsity(found[0]) == pytest.approx(0.8, abs=1 / 64)
    for other in found[1:]:
        for path, keep in zip(found[0], other.values(), strict=True):
            assert (found[0][path] == keep).mean() > 0.9


@pytest.mark.slow
@pytest.mark.tf
def test_after_each_step_there_are_as_many_zeros_as_the_schedule_says():
    model = make_model(optimizer="adam")
    kernels = masks.list_kernels(model)
    ramp = sparsity_schedule.plan_ramp(30, 0.7, every=4)
    sparsity_schedule.Growth(kernels, model.optimizer._iterations, ramp)
    counts, kept = [], []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            counts.append(int((kernels[0].variable.numpy() == 0).sum()))
            kept.append(kernels[0].variable.constraint.keep.numpy())

    rows = [np.asarray(each) for each in make_dataset(320).arrays]
    model.fit(*rows, batch_size=32, epochs=3, verbose=0, callbacks=[Count()])
    done = [[step for step in updates(ramp) if step <= now] for now in range(1, 31)]
    assert counts == [round(float(ramp.share(d[-1])) * 40) if d else 0 for d in done]
    assert all((after <= before).all() for before, after in zip(kept, kept[1:], strict=False))


@pytest.mark.tf
def test_the_smallest_weights_go_and_what_was_masked_counts():
    model = make_model()
    kernel = masks.list_kernels(model)[0]
    kernel.variable.assign(np.arange(-19, 21, dtype="float32").reshape(5, 8))
    keep = np.ones((5, 8), bool)
    keep[4, 7] = False  # the largest
    masks.apply_masks(model, {kernel.path: keep})
    sparsity_schedule.zero_smallest([kernel], 0.25)
    left = np.sort(np.abs(kernel.variable.numpy()[kernel.variable.constraint.keep.numpy()]))
    assert left.tolist() == sorted([*range(5, 20)] * 2)


@pytest.mark.tf
def test_one_threshold_for_all_leaves_something_of_each_kernel():
    model = make_model()
    first, last = masks.list_kernels(model)
    first.variable.assign(first.variable.value * 1e-3)
    sparsity_schedule.zero_smallest([first, last], 0.7, whole=True)  # 45 of 40 and 24
    left = [int(np.count_nonzero(kernel.variable.numpy())) for kernel in (first, last)]
    assert left == [1, 24 - 5]


@pytest.mark.tf
def test_equal_weights_go_together():
    model = make_model()
    kernel = masks.list_kernels(model)[0]
    kernel.variable.assign(np.ones((5, 8), "float32"))
    sparsity_schedule.zero_smallest([kernel], 0.5)
    assert not kernel.variable.numpy().any()
