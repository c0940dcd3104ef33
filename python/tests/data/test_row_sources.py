"""What rows promise wherever they come from: the same rows in each form are the same dataset.

What is of one form alone stands in its own file.
"""

import itertools
from dataclasses import dataclass, field, replace

import examples
import numpy as np
import pyarrow as pa
import pytest
from pictures import write
from sparse_slots import slots
from streamed import array, numbers, slices
from table_files import write_bytes
from tabled import png

from gpukeras import DataError
from gpukeras.data import builder
from gpukeras.data.loader import loader
from gpukeras.data.reader.rows import MemoryRows, SelectedRows, repeat_rows
from gpukeras.data.reader.storage import DiskRows
from gpukeras.data.saved.writer import save_dataset

pytestmark = pytest.mark.tf

ROWS = 24
X = np.arange(1.0, 2 * ROWS + 1).reshape(ROWS, 2)
Y = np.arange(ROWS) / 2
WEIGHTS = np.arange(ROWS) + 1.0
OPTIONS = {"seed": 1, "batch_size": 5, "shuffle": False}
ORDER = np.array([5, 0, 11, 5, 23, 1], np.int32)


@dataclass(frozen=True)
class Rows:
    """What is given in some form."""

    x: np.ndarray = field(default_factory=lambda: X)
    y: np.ndarray = field(default_factory=lambda: Y)
    weights: np.ndarray = field(default_factory=lambda: WEIGHTS)
    names: tuple[str, ...] = ("a", "b")

    def beside(self):
        """Labels and weights as arguments of their own."""
        return {"labels": numbers(self.y), "weights": self.weights}

    def columns(self):
        """All columns by name."""
        named = dict(zip(self.names, self.x.T, strict=True))
        return named | {"y": self.y, "w": self.weights}

    def table(self):
        return pa.table({k: pa.array(v, from_pandas=True) for k, v in self.columns().items()})


def as_array(folder, rows):
    return array(rows.x, names=[*rows.names]), rows.beside()


def as_frame(folder, rows):
    named = zip(rows.names, rows.x.T, strict=True)
    columns = [numbers(values) | {"name": name} for name, values in named]
    return {"kind": "columns", "columns": columns}, rows.beside()


def as_sparse(folder, rows):
    return slots(rows.x, rows.names), rows.beside()


def as_npy(folder, rows):
    np.save(folder / "x.npy", rows.x)
    return {"kind": "npy", "path": str(folder / "x.npy")}, rows.beside()


def as_npy_by_columns(folder, rows):
    return as_npy(folder, replace(rows, x=np.asfortranarray(rows.x)))


def as_inputs(folder, rows):
    parts = [
        {"name": name, "features": array(rows.x[:, [place]], names=[name])}
        for place, name in enumerate(rows.names)
    ]
    return {"kind": "inputs", "inputs": parts}, rows.beside()


def as_images(folder, rows):
    pixels = rows.x.astype(np.uint8)[:, None, :, None]
    paths = [write(folder / f"{row:02}.png", png(image)) for row, image in enumerate(pixels)]
    return {"kind": "images", "paths": paths, "image_size": (1, 2)}, rows.beside()


def as_table(suffix):
    def make(folder, rows):
        path = folder / f"x{suffix}"
        path.write_bytes(write_bytes(rows.table(), suffix))
        return {"kind": "table", "paths": [str(path)], "label": "y", "weights": "w"}, {}

    return make


def as_stream(folder, rows):
    return {"kind": "table", "stream": rows.table(), "label": "y", "weights": "w"}, {}


def as_records(folder, rows):
    path, columns = folder / "x.tfrecord", rows.columns()
    lines = zip(*columns.values(), strict=True)
    examples.write(path, [dict(zip(columns, line, strict=True)) for line in lines])
    return {"kind": "records", "paths": str(path), "label": "y", "weights": "w"}, {}


def as_saved(folder, rows):
    made = builder.assemble(array(rows.x, names=[*rows.names]), OPTIONS, **rows.beside())
    return {"kind": "saved", "path": save_dataset(made, str(folder / "saved"))["path"]}, {}


def as_function(folder, rows):
    def call(epoch, batch):
        some = slice(5 * batch - 5, 5 * batch)
        if not len(rows.x[some]):
            return None
        features = array(rows.x[some], names=[*rows.names])
        return {
            "features": features,
            "labels": numbers(rows.y[some]),
            "weights": rows.weights[some],
        }

    return {"kind": "generator", "call": call, "steps": None}, {"cache": True}


def as_pipeline(folder, rows):
    dataset = slices(rows.x, rows.y, rows.weights).batch(5)
    return {"kind": "tfdata", "dataset": dataset, "steps": None, "batched": None}, {"cache": True}


FORMS = {
    "array": as_array,
    "frame": as_frame,
    "sparse": as_sparse,
    "npy": as_npy,
    "npy by columns": as_npy_by_columns,
    "inputs": as_inputs,
    "images": as_images,
    "csv": as_table(".csv"),
    "csv.gz": as_table(".csv.gz"),
    "parquet": as_table(".parquet"),
    "arrow": as_table(".arrow"),
    "hdf5": as_table(".h5"),
    "stream": as_stream,
    "records": as_records,
    "saved": as_saved,
    "function": as_function,
    "pipeline": as_pipeline,
}
BESIDE = ("array", "frame", "sparse", "npy", "npy by columns", "inputs", "images")
SAVED = ("saved",)  # its labels, weights, seed and split are those of the dataset that was saved
SEQUENCES = ("function", "pipeline")
NEW = [form for form in FORMS if form not in SAVED]
PLACED = [form for form in NEW if form not in SEQUENCES]  # which are split, too


def build(form, folder, rows=None, recipe=None, **options):
    features, more = FORMS[form](folder, rows or Rows())
    labels, weights = more.pop("labels", None), more.pop("weights", None)
    given = OPTIONS | more | options
    if form in SAVED:
        given = {name: value for name, value in given.items() if name != "seed"}
    return builder.assemble(features, given, labels, weights=weights, recipe=recipe)


def two_numbers(rows):
    """The two numbers of each row; images have them in three channels."""
    return rows.reshape(len(rows), 2, 3 if rows.ndim > 2 else 1)[..., 0]


def values(data, rows):
    return two_numbers(data.sources[0].gather(rows))


each_form = pytest.mark.parametrize("form", FORMS)


@each_form
def test_rows_are_found_by_number_again_and_again(form, tmp_path):
    data = build(form, tmp_path)
    assert [len(data), *map(len, data.sources)] == [ROWS] * (1 + len(data.sources))
    for rows in (ORDER, ORDER, ORDER[:0], slice(3, 7), slice(20, None), slice(None)):
        np.testing.assert_array_equal(values(data, rows), X[rows])


@each_form
def test_rows_can_be_repeated_and_selected(form, tmp_path):
    source = build(form, tmp_path).sources[0]
    twice = repeat_rows(source, 2)
    assert (len(twice), twice.stored_bytes) == (2 * ROWS, source.stored_bytes)
    some = SelectedRows(source, ORDER)
    assert (len(some), some.row_bytes) == (len(ORDER), source.row_bytes)
    for found, rows in {
        "again": (twice.gather(ORDER + ROWS), ORDER),
        "over the end": (twice.gather(slice(ROWS - 1, ROWS + 2)), [ROWS - 1, 0, 1]),
        "a slice": (some.gather(slice(0, 2)), ORDER[:2]),
        "numbers": (some.gather(np.array([2, 0])), ORDER[[2, 0]]),
    }.values():
        np.testing.assert_array_equal(two_numbers(found), X[rows])


@pytest.mark.parametrize(("cache", "place"), [("host", MemoryRows), ("disk", DiskRows)])
@pytest.mark.parametrize("form", PLACED)
def test_rows_lie_where_they_are_asked_for(form, tmp_path, cache, place):
    data = build(form, tmp_path, cache=cache)
    inside = getattr(data.sources[0], "_parts", None) or [data.sources[0]]
    assert all(isinstance(source, place) for source in inside)
    np.testing.assert_array_equal(values(data, ORDER), X[ORDER])


@each_form
def test_labels_and_weights_stay_with_their_row(form, tmp_path):
    _, y, weights = build(form, tmp_path).batch(ORDER)
    np.testing.assert_array_equal(y, Y[ORDER])
    np.testing.assert_array_equal(weights, WEIGHTS[ORDER])


@each_form
def test_each_epoch_feeds_all_rows_in_their_order(form, tmp_path):
    check_epochs(build(form, tmp_path))


def check_epochs(data):
    feed = loader.open_loader(data, data.plan("CPU:0"))
    for epoch in range(2):
        found = [*read_blocks(feed.epoch(epoch))]
        assert sum(batches for *_, batches in found) == 5  # the last of 4 rows
        np.testing.assert_array_equal(np.concatenate([y for _, y, _ in found]), Y)
        np.testing.assert_array_equal(np.concatenate([x for x, _, _ in found]), X)


def read_blocks(blocks):
    """The features, labels and batches of each block, without what fills it."""
    for block in blocks:
        x, y, _ = block.arrays
        rows = slice(block.rows * block.batches)
        x = np.hstack([*x.values()]) if isinstance(x, dict) else x.numpy()
        yield two_numbers(x[rows]), y.numpy()[rows], block.batches


@pytest.mark.parametrize("form", SEQUENCES)
def test_rows_that_are_not_kept_are_fed_alike(form, tmp_path):
    check_epochs(build(form, tmp_path, cache="auto"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows(x=np.append(X[:-1], [[1.0, np.nan]], axis=0)), "Column `b` of `x`|`x` has missing"),
        (Rows(y=np.append(Y[:-1], np.nan)), "`y` has (1 )?missing"),
        (Rows(weights=np.append(WEIGHTS[:-1], -1.0)), "`weights` must be finite"),
    ],
    ids=["features", "labels", "weights"],
)
@pytest.mark.parametrize("form", SEQUENCES)
def test_a_last_row_that_is_not_kept_is_checked_too(form, tmp_path, rows, message):
    data = build(form, tmp_path, rows, cache="auto")
    feed = loader.open_loader(data, data.plan("CPU:0"))
    with pytest.raises(DataError, match=message):
        list(feed.epoch(0))


@each_form
def test_shuffled_epochs_have_all_rows_in_an_order_of_the_seed(form, tmp_path):
    (tmp_path / "again").mkdir()
    one, again = (build(form, folder, shuffle=True) for folder in (tmp_path, tmp_path / "again"))
    orders = [one.order(epoch) for epoch in range(3)]
    for epoch, order in enumerate(orders):
        np.testing.assert_array_equal(np.sort(order), np.arange(ROWS))
        np.testing.assert_array_equal(again.order(epoch), order)
    assert all((a != b).any() for a, b in itertools.combinations([*orders, np.arange(ROWS)], 2))


@pytest.mark.parametrize("form", [*PLACED, *SEQUENCES])
def test_validation_rows_are_others_than_training_rows(form, tmp_path):
    data = build(form, tmp_path, validation=0.25)
    train, validation = data.rows("train"), data.rows("validation")
    assert len(validation) == ROWS / 4
    np.testing.assert_array_equal(np.sort([*train, *validation]), data.rows("all"))


@each_form
def test_shards_are_all_rows_once(form, tmp_path):
    taken = []
    for worker in range(1, 4):
        (folder := tmp_path / str(worker)).mkdir()
        taken += build(form, folder, shard=(worker, 3)).rows("train").tolist()
    assert sorted(taken) == list(range(ROWS))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "images"])
def test_a_missing_value_is_an_error_that_names_its_column_or_row(form, tmp_path):
    x = X.copy()
    x[7, 1] = np.nan
    named = "first in row 8" if "npy" in form else "Column `2`" if form == "pipeline" else "`b`"
    with pytest.raises(DataError, match=named):
        build(form, tmp_path, Rows(x=x))


MISFITS = {
    "labels": (Rows(y=Y[:5]), "`y` has 5 rows where `x` has 24"),
    "weights": (Rows(weights=WEIGHTS[:5]), "`weights` has 5 rows where `x` has 24"),
}


@pytest.mark.parametrize(("rows", "message"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("form", BESIDE)
def test_labels_and_weights_of_another_length_are_refused(form, tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        build(form, tmp_path, rows)


@pytest.mark.parametrize("form", NEW)
def test_weights_that_are_none_are_refused(form, tmp_path):
    for weight in (-1.0, np.nan, np.inf):
        (folder := tmp_path / str(weight)).mkdir()
        with pytest.raises(DataError, match="`weights` must be finite"):
            build(form, folder, Rows(weights=np.append(WEIGHTS[:-1], weight)))


@pytest.mark.parametrize("form", NEW)
def test_missing_labels_are_refused(form, tmp_path):
    with pytest.raises(DataError, match="`y`"):
        build(form, tmp_path, Rows(y=np.append(Y[:-1], np.nan)))


# What is learned of one form is applied to another, but for sparse rows, whose means stay, and for
# what has no columns or other ones.
ALIKE = ("array", "npy", "npy by columns", "function", "pipeline")
COLUMNS = ("frame", "csv", "csv.gz", "parquet", "arrow", "hdf5", "stream", "records")


@pytest.mark.parametrize("forms", [ALIKE, COLUMNS], ids=["arrays", "columns"])
def test_a_recipe_of_one_form_is_applied_to_the_others(forms, tmp_path):
    for number in range(len(forms)):
        (tmp_path / str(number)).mkdir()
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    recipe = build(forms[0], tmp_path / "0", scale=True).recipe
    for number, form in enumerate(forms):
        (folder := tmp_path / f"{number} again").mkdir()
        own = build(form, tmp_path / str(number), scale=True) if number else None
        given = build(form, folder, recipe=recipe)
        for data in filter(None, (own, given)):
            np.testing.assert_allclose(values(data, ORDER), scaled[ORDER], rtol=1e-5, err_msg=form)


NAMED = ("array", "frame", "sparse", *COLUMNS[1:], "function")


@pytest.mark.parametrize("form", NAMED)
def test_new_rows_are_put_in_the_order_of_training_by_their_names(form, tmp_path):
    recipe = build(form, tmp_path).recipe
    (folder := tmp_path / "turned").mkdir()
    turned = build(form, folder, Rows(x=X[:, ::-1], names=("b", "a")), recipe)
    np.testing.assert_array_equal(values(turned, ORDER), X[ORDER])


@pytest.mark.parametrize("form", [*PLACED, *SEQUENCES])
def test_new_rows_that_lack_a_column_are_refused(form, tmp_path):
    recipe = build(form, tmp_path).recipe
    if form == "images":
        recipe = build("array", tmp_path).recipe
    (folder := tmp_path / "less").mkdir()
    with pytest.raises(DataError, match=r"`b`|shape \(2,\)|as in training"):
        build(form, folder, Rows(x=X[:, :1], names=("a",)), recipe)
