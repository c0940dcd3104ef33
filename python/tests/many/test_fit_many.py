"""Many models at once end as each of them trained alone."""

import numpy as np
import pytest
from small_fits import make_dataset, make_model
from stacked import ALONE, difference, fit_alone, fit_many

from gpukeras.core.errors import DataError, SpecError

pytestmark = pytest.mark.tf


def test_folds_and_seeds_end_as_each_alone():
    fits = fit_many([make_model()], make_dataset(rows=103), seeds=[1, 2], folds=3)
    assert [(one.seed, one.fold) for one in fits.members] == [
        (seed, f"Fold{fold}") for seed in (1, 2) for fold in (1, 2, 3)
    ]
    assert len(fits.plan.stacks) == 1
    assert max(difference(fits, 5)) < ALONE
    first, second = (fits.model(number).get_weights()[0] for number in (1, 4))
    assert not np.allclose(first, second)


@pytest.mark.slow
def test_batches_are_those_of_the_dataset_unless_asked_otherwise():
    data = make_dataset(rows=64, batch_size=10)
    assert fit_many([make_model()], data, epochs=1).batch_size == 10
    assert fit_many([make_model()], data, epochs=1, batch_size=20).batch_size == 20


def test_settings_that_are_numbers_share_a_program():
    import keras

    def build(rate, drop, penalty):
        return make_model(
            optimizer=keras.optimizers.AdamW(rate, weight_decay=rate / 2),
            layers=[
                keras.layers.Dropout(drop, seed=3),
                keras.layers.Dense(
                    4,
                    kernel_regularizer=keras.regularizers.L2(penalty),
                    bias_regularizer=keras.regularizers.L1L2(drop - 0.1, penalty),
                ),
            ],
        )

    models = [build(0.01, 0.1, 1e-2), build(0.003, 0.4, 1e-3), build(0.03, 0.2, 1e-1)]
    # Whole batches: alone, the short last one would draw other numbers in another engine.
    fits = fit_many(models, make_dataset(rows=96, validation=1 / 3))
    assert (fits.plan.structures, len(fits.members[0].train)) == (1, 64)
    assert max(difference(fits, 2, engine="compiled")) < 1e-4  # Adam's first steps are signs
    rates = [float(fits.model(number).optimizer.learning_rate.numpy()) for number in (1, 2, 3)]
    assert rates == pytest.approx([0.01, 0.003, 0.03])


@pytest.mark.nightly  # `test_training.py` normalizes short batches in each run
def test_layers_that_mix_rows_see_no_row_that_fills_up_a_batch():
    import keras

    model = make_model(layers=[keras.layers.BatchNormalization()])
    fits = fit_many([model], make_dataset(rows=50), folds=3, batch_size=8)
    assert [len(one.train) % 8 for one in fits.members] == [1, 1, 2]
    assert max(difference(fits, 3)) < ALONE


def test_groups_of_unequal_size_have_models_of_their_own():
    sizes = [3, 40, 17, 64]
    codes = np.random.default_rng(0).permutation(np.repeat(range(4), sizes))
    groups = {"names": ["a", "b", "c", "d"], "codes": codes}
    fits = fit_many([make_model()], make_dataset(rows=124), groups=groups, batch_size=16)
    assert [(one.group, len(one.train)) for one in fits.members] == list(
        zip(groups["names"], sizes, strict=True)
    )
    assert fits.plan.stacks == ((3, 1, 2, 0),)
    for number in (1, 4):
        assert max(difference(fits, number)) < ALONE


@pytest.mark.slow
def test_a_model_that_has_stopped_changes_no_more():
    data = make_dataset(rows=90)
    options = {"epochs": 12, "early_stopping": {"patience": 1, "min_delta": 0.02}}
    fits = fit_many([make_model(optimizer="sgd")], data, folds=3, **options)
    epochs = [one.history.epochs for one in fits.fitted]
    assert {one.history.stopped for one in fits.fitted} == {"early"}
    assert all(one < 12 for one in epochs)
    for number in (1, 2, 3):
        assert max(difference(fits, number, **options)) < ALONE
        _, report = fit_alone(fits, number, **options)
        assert (report.stopped, report.best_epoch) == (
            "early",
            fits.fitted[number - 1].history.best_epoch,
        )


@pytest.mark.nightly  # `test_training.py` in each run
def test_a_schedule_gives_each_model_its_own_rates():
    schedule = {"kind": "one_cycle", "max_rate": 0.5}
    fits = fit_many([make_model()], make_dataset(rows=80), folds=3, schedule=schedule)
    assert max(difference(fits, 2, schedule=schedule)) < ALONE
    assert float(fits.model(1).optimizer.learning_rate.numpy()) == pytest.approx(0.01)


def test_weights_of_rows_count():
    data = make_dataset(rows=60)
    weighed = make_dataset(rows=60)
    from gpukeras.core.memory import aligned_empty
    from gpukeras.data.reader.rows import MemoryRows

    weights = aligned_empty((60,), np.float32)
    weights[:] = np.random.default_rng(1).uniform(0.1, 3, 60)
    weighed.sources = (*weighed.sources, MemoryRows(weights))
    fits = fit_many([make_model()], weighed, folds=3, batch_size=16)
    plain = fit_many([make_model()], data, folds=3, batch_size=16)
    assert max(difference(fits, 2)) < ALONE
    one, other = (each.model(2).get_weights()[0] for each in (fits, plain))
    assert not np.allclose(one, other)


@pytest.mark.varies
@pytest.mark.parametrize("weighed", [False, True])
def test_losses_of_several_outputs_are_means_over_their_rows(weighed):
    from grouped import LABELS, OPTIONS, PRICE, SHAPES, X, two_heads

    from gpukeras.data.dataset.map_dataset import build_dataset

    weights = np.random.default_rng(1).uniform(0.1, 3, len(PRICE))
    given = {"outputs": [{"name": "price", "values": weights}]}
    options = {**OPTIONS, "batch_size": 9}
    data = build_dataset(X, options, LABELS, weights=given if weighed else None)
    fits = fit_many([two_heads(SHAPES)], data, folds=2, most=2, epochs=2)
    assert fits.plan.stacks
    assert len(fits.members[0].train) % 9
    assert max(difference(fits, 2, epochs=2)) < ALONE
    history = fits.fitted[1].history.metrics
    total = np.add(history["price_loss"], history["cut_loss"])
    np.testing.assert_allclose(total, history["loss"], rtol=1e-5)


def test_a_loss_that_is_no_number_ends_one_model_only():
    import keras

    rates = [0.01, 1e30]
    models = [make_model(optimizer=keras.optimizers.SGD(rate)) for rate in rates]
    fits = fit_many(models, make_dataset(rows=64), epochs=2)
    assert [one.history.stopped for one in fits.fitted] == ["completed", "non_finite"]
    assert fits.plan.structures == 1
    assert all(np.isfinite(one).all() for one in fits.model(2).get_weights())
    assert max(difference(fits, 1, epochs=2)) < ALONE


@pytest.mark.slow
def test_structures_have_stacks_of_their_own():
    import keras

    wide = make_model(layers=[keras.layers.Dense(3)])
    fits = fit_many([make_model(), wide], make_dataset(rows=64), seeds=[1, 2], epochs=1)
    assert fits.plan.structures == 2
    assert "2 structures" in fits.plan.reason
    assert len(fits.model(4).layers) == 3
    assert max(difference(fits, 3, epochs=1)) < ALONE


@pytest.mark.slow
def test_turns_give_the_same_models():
    data = make_dataset(rows=64)
    together = fit_many([make_model()], data, folds=4, epochs=2)
    apart = fit_many([make_model()], data, folds=4, epochs=2, most=2)
    assert len(apart.plan.stacks) == 2
    assert "as asked" in apart.plan.reason
    for number in (1, 4):
        for one, other in zip(
            together.model(number).get_weights(), apart.model(number).get_weights(), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_held_out_rows_are_predicted_as_the_model_predicts_them():
    data = make_dataset(rows=50)
    fits = fit_many([make_model()], data, folds=3, epochs=1)
    record, rows = fits.held_out(2), fits.members[1].held_out
    assert record["rows"].tolist() == (rows + 1).tolist()
    alone = fits.model(2).predict(data.sources[0].gather(rows), verbose=0)
    np.testing.assert_allclose(record["values"], alone, atol=1e-6)


@pytest.mark.slow
def test_a_model_from_the_table_trains_on():
    from gpukeras.training.fit import fit

    data = make_dataset(rows=64)
    fits = fit_many([make_model(optimizer="adam")], data, seeds=[1, 2], epochs=2)
    on = fits.model(1)
    fit(on, data, {"epochs": 1})
    assert int(on.optimizer.iterations.numpy()) == 3 * 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seeds": [1, 1]}, SpecError, "`seeds` must be different whole numbers."),
        ({"epochs": 0}, SpecError, "`epochs` must be a whole number"),
        (
            {"folds": 2, "rows": {"validation": 0.2}},
            SpecError,
            "`folds` says which are held",
        ),
        (
            {"groups": {"names": ["a"], "codes": [0, 0]}},
            SpecError,
            "`group` has 2 values, but `data` has 64 rows.",
        ),
        (
            {"groups": {"names": ["a", "b"], "codes": [0] * 64}},
            SpecError,
            'The group "b" has no row to train on.',
        ),
        (
            {"folds": [[1.0]], "together": [1.0] * 64},
            SpecError,
            "`folds` splits 1 group of `together`",
        ),
    ],
)
def test_what_does_not_fit_is_named_before_anything_trains(changes, error, message):
    data = make_dataset(rows=64, **changes.pop("rows", {}))
    with pytest.raises(error, match=message):
        fit_many([make_model()], data, **changes)


def test_rows_in_sequence_are_refused():
    from gpukeras.many.fit_many import fit_many

    with pytest.raises(DataError, match="gives its rows in sequence"):
        fit_many([make_model()], object(), {})


def test_there_is_no_model_beyond_the_last():
    fits = fit_many([make_model()], make_dataset(rows=64), epochs=1)
    with pytest.raises(SpecError, match="There is no model 2: there are 1."):
        fits.model(2)
