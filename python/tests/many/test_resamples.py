import numpy as np
import pytest
from series import make_columns, windows
from small_fits import label_dataset, make_dataset
from streamed import as_function

from gpukeras import DataError, SpecError
from gpukeras.data.builder import assemble
from gpukeras.many.resamples import (
    Classes,
    note_absent,
    open_resamples,
    plan_resamples,
    read_classes,
    split_dataset,
)

GROUPS = np.repeat(np.arange(10), [1, 9, 3, 3, 8, 2, 7, 5, 1, 6])  # 45 rows


def test_folds_by_number_hold_out_every_row_once():
    folds = plan_resamples(3.0, 10, seed=4)
    assert [fold.name for fold in folds] == ["Fold1", "Fold2", "Fold3"]
    assert [len(fold.held_out) for fold in folds] == [4, 3, 3]
    for fold in folds:
        assert sorted([*fold.train, *fold.held_out]) == list(range(10))
        assert fold.train.dtype == fold.held_out.dtype == np.int32
    assert sorted(np.concatenate([fold.held_out for fold in folds])) == list(range(10))


def test_the_seed_draws_the_folds():
    first, again, other = (
        [fold.held_out.tolist() for fold in plan_resamples(5, 100, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_folds_of_groups_are_those_of_scikit_learn():
    folds = plan_resamples(4, 45, groups=GROUPS)
    # [set(GROUPS[held]) for _, held in GroupKFold(4).split(GROUPS, groups=GROUPS)], version 1.9.1
    assert [set(GROUPS[fold.held_out].tolist()) for fold in folds] == [
        {0, 1, 5},
        {2, 4},
        {3, 6, 8},
        {7, 9},
    ]


@pytest.mark.parametrize(
    ("rows", "starts"),  # of TimeSeriesSplit(3).split(np.zeros(rows)), version 1.9.1
    [(12, [3, 6, 9]), (13, [4, 7, 10]), (30, [9, 16, 23])],
)
def test_folds_in_time_are_those_of_scikit_learn(rows, starts):
    order = np.random.default_rng(0).permutation(rows)
    times = np.argsort(order)  # row order[i] is the i-th in time
    folds = plan_resamples(3, rows, times=times)
    for fold, start, end in zip(folds, starts, [*starts[1:], rows], strict=True):
        assert fold.train.tolist() == order[:start].tolist()
        assert fold.held_out.tolist() == sorted(order[start:end].tolist())


def test_no_two_blocks_in_time_share_a_time():
    times = np.repeat(np.arange(6), 5)
    for fold in plan_resamples(3, 30, times=times):
        assert times[fold.train].max() < times[fold.held_out].min()


def test_rows_that_are_given_count_from_1():
    first, second = plan_resamples([[1.0, 2.0], 5.0], 5)
    assert first.train.tolist() == [2, 3, 4]
    assert first.held_out.tolist() == [0, 1]
    assert second.held_out.tolist() == [4]
    named = plan_resamples({"late": {"train": [1, 1, 2], "validation": [4]}}, 5)
    assert [fold.name for fold in named] == ["late"]
    assert named[0].train.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("resamples", "message"),
    [
        ("five", "`resamples` must be a number of folds, or a list of the row numbers that each"),
        (None, "`resamples` must be a number of folds, or a list of the row numbers that each"),
        ([], "`resamples` must be a number of folds, or a list of the row numbers that each"),
        (1, "`resamples` must be a whole number of at least 2, not 1."),
        (11, "`resamples` asks for 11 folds of 10 rows."),
        ([[1], []], "`Fold2` of `resamples` has no rows."),
        ([[0, 1]], "`Fold1` of `resamples` has row 0, and `data` has 10 rows, numbered from 1."),
        ([[3, 11]], "`Fold1` of `resamples` has row 11, and `data` has 10 rows, numbered from 1."),
        ([[1.5]], "`Fold1` of `resamples` must hold row numbers: whole numbers from 1."),
        ([["a"]], "`Fold1` of `resamples` must hold row numbers: whole numbers from 1."),
        ([[2, 2]], "`Fold1` of `resamples` holds out a row twice."),
        ([range(1, 11)], "`Fold1` of `resamples` holds out all rows: none is left to train on."),
        ({"a": {"train": [1]}}, "`a` of `resamples` has train."),
        (
            {"a": {"train": [1, 2], "validation": [2]}},
            "`a` of `resamples` trains on 1 row that it holds out.",
        ),
    ],
)
def test_resamples_that_cannot_be_are_refused_by_name(resamples, message):
    with pytest.raises(SpecError) as caught:
        plan_resamples(resamples, 10)
    assert caught.value.message.startswith(message)
    assert caught.value.details["arg"] == "resamples"


def test_folds_that_split_groups_are_refused():
    with pytest.raises(SpecError) as caught:
        plan_resamples([[1, 2], [3, 4], [5, 6]], 6, groups=[1, 1, 2, 3, 3, 2])
    assert caught.value.message == (
        "`resamples` splits 2 groups of `group`: rows of one both train and are held out, "
        "first in `Fold2`."
    )
    plan_resamples([[1, 2], [3, 6], [4, 5]], 6, groups=[1, 1, 2, 3, 3, 2])


def test_folds_that_know_the_future_are_refused():
    with pytest.raises(SpecError) as caught:
        plan_resamples([[3, 4]], 6, times=[1, 2, 3, 4, 5, 6])
    assert caught.value.message == (
        "`Fold1` of `resamples` trains on 2 rows later in `time` than the first that it holds out."
    )
    plan_resamples([{"train": [1, 2], "validation": [3, 4]}], 6, times=[1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"groups": [1, 2]}, "`group` has 2 values, and `data` has 6 rows."),
        ({"times": [1, 2, 3, 4, 5, np.nan]}, "`time` has missing values."),
        ({"groups": [1] * 6}, "`resamples` asks for 2 folds of 1 group."),
        ({"times": [1] * 6}, "`time` has too few different times for 2 folds."),
        (
            {"times": [1] * 6, "groups": [1] * 6},
            "`group` and `time` cannot both shape folds by number.",
        ),
    ],
)
def test_groups_and_times_that_do_not_fit_are_refused(columns, message):
    with pytest.raises(SpecError) as caught:
        plan_resamples(2, 6, **columns)
    assert caught.value.message == message


def test_without_resamples_the_rows_kept_apart_are_measured():
    data = make_dataset(50, validation=0.2)
    (only,) = open_resamples(data)
    assert only.name == "validation"
    assert only.held_out is data.validation_rows
    with pytest.raises(SpecError, match=r"`resamples` splits 2 groups of `group`"):
        open_resamples(data, groups=np.arange(50) % 2)
    with pytest.raises(DataError) as caught:
        open_resamples(make_dataset(50))
    assert caught.value.message == (
        "There are no rows to measure on: `data` keeps none apart for validation."
    )


def test_a_split_has_the_rows_of_its_resample_and_the_sources_of_the_dataset():
    data = make_dataset(20)
    fold = open_resamples(data, 4)[0]
    split = split_dataset(data, fold.train, fold.held_out)
    assert split.sources is data.sources
    assert split.rows("train").tolist() == fold.train.tolist()
    assert split.rows("validation").tolist() == fold.held_out.tolist()
    assert len(data.validation_rows) == 0


def test_data_whose_rows_have_no_numbers_of_their_own_are_refused():
    with pytest.raises(SpecError) as caught:
        open_resamples(make_dataset(50, validation=0.2), 5)
    assert caught.value.message == (
        "`data` keeps 10 rows apart for validation, and `resamples` says which are held out."
    )
    with pytest.raises(SpecError) as caught:
        open_resamples(make_dataset(50, shard=(1, 2)), 5)
    assert caught.value.message == "`data` is one worker's share of the rows."
    dropped = make_dataset(50)
    dropped.dropped = 1
    with pytest.raises(SpecError) as caught:
        open_resamples(dropped, 5)
    assert caught.value.message == (
        "Rows of `data` were left out, so that numbers of `resamples` would mean other rows."
    )


def test_rows_in_sequence_have_no_resamples():
    with pytest.raises(DataError) as caught:
        open_resamples(as_function(), 5)
    assert caught.value.message == (
        "`resamples` needs rows with numbers, and `data` gives its rows in sequence."
    )


def test_windows_are_not_put_into_folds_at_random():
    data = assemble(windows(make_columns()), {})
    with pytest.raises(SpecError) as caught:
        open_resamples(data, 5)
    assert caught.value.message == (
        "Windows share rows of the series, so that folds drawn at random would leak."
    )
    times = np.arange(len(data))
    assert len(open_resamples(data, 5, times=times)) == 5


@pytest.mark.parametrize("counts", [(185, 4), (130, 59), (60, 40, 3, 1), (7, 7, 7)])
def test_folds_of_classes_hold_out_equally_many_rows_of_each(counts):
    codes = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
    classes = Classes(codes, tuple("abcd"[: len(counts)]))
    folds = plan_resamples(5, len(codes), classes=classes, seed=2)
    held = np.array([np.bincount(codes[fold.held_out], minlength=len(counts)) for fold in folds])
    # The property of rsample's vfold_cv(strata = ) and of scikit-learn's StratifiedKFold.
    assert (np.ptp(held, axis=0) <= 1).all()
    assert np.ptp(held.sum(axis=1)) <= 1
    assert sorted(np.concatenate([fold.held_out for fold in folds])) == list(range(len(codes)))
    other = plan_resamples(5, len(codes), classes=classes, seed=3)
    assert folds[0].held_out.tolist() != other[0].held_out.tolist()


def test_splits_that_lack_a_class_are_named():
    codes = np.array([0] * 8 + [1] * 2 + [3])
    classes = Classes(codes, ("a", "b", "none", "d"))
    folds = plan_resamples({"one": [1, 9, 10], "two": [2, 11]}, 11)
    assert note_absent(folds, classes) == (
        'one trains on no row of class "b".',
        'one holds out no row of class "d".',
        'two trains on no row of class "d".',
        'two holds out no row of class "b".',
    )
    assert note_absent(folds, None) == ()
    many = plan_resamples([[row] for row in range(1, 9)], 11)
    assert note_absent(many, classes)[-1] == "3 more splits lack a class."


def test_labels_of_few_whole_numbers_are_classes():
    def read(kind, values, levels=()):
        return read_classes(label_dataset(kind, values, levels))

    assert read("factor", [1, 2, 1, 2, 2, 2], ["a", "b", "c"]).names == ("a", "b", "c")
    assert read("logical", [1, 0, 1, 1, 1, 0]).names == ("FALSE", "TRUE")
    assert read("numeric", [0, 1, 1, 1, 1, 0]).codes.tolist() == [0, 1, 1, 1, 1, 0]
    assert read("integer", [7, 2, 2, 5, 5, 5]).names == ("2", "5", "7")
    assert read("integer", [7, 2, 3, 4, 5, 6]) is None
    assert read("numeric", [7.5, 2, 2, 5, 5, 5]) is None
    assert read_classes(label_dataset("numeric", [7.5, 2, 2], shape=(3, 4))) is None
