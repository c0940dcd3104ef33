"""What is read of a model and its rows for a card, and its program where that can be compiled."""

import numpy as np
import pytest
from compilers import PYTHON, needs_compiler
from lazy_modules import keras

from gpukeras import SpecError, api
from gpukeras.backend import runtime
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.profiler.cost import model_cost
from gpukeras.profiler.cost.on_card import find_asked_card
from gpukeras.system.cards import choose_card

pytestmark = pytest.mark.tf
ROWS, COLUMNS, BATCH = 4000, 6, 16
ROW_BYTES = (COLUMNS + 1) * 4


def make_data(rows=ROWS, **options):
    x = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)
    labels = {"kind": "number", "values": x.sum(1), "levels": []}
    given = {"batch_size": BATCH, "seed": 1, **options}
    return build_dataset({"kind": "array", "values": x}, given, labels)


def make_dense():
    model = keras.Sequential(
        [keras.Input((COLUMNS,)), keras.layers.Dense(4), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def cost_of(model, data, card, **options):
    cost = model_cost.model_cost(model, data=data, card=card, **options)
    return cost, {one.name: one for one in cost.card.figures}


def test_without_the_packages_the_estimate_says_so():
    cost, found = cost_of(make_dense(), make_data(), "A100")
    assert cost.memory["batch_size"] == BATCH  # the data's
    assert cost.card.card == "A100 SXM4 40GB"
    assert cost.card.install
    assert "are not installed" in cost.card.notes[0]
    assert found["rows_bytes"].value == ROWS * ROW_BYTES
    assert found["block_bytes"].value == ROWS // BATCH * BATCH * ROW_BYTES
    weights = COLUMNS * 4 + 4 + 4 + 1
    assert found["state_bytes"].value == pytest.approx(3 * 4 * weights, abs=16)
    assert cost.card.fits
    assert cost.card.bound == ""


def test_a_batch_size_replaces_the_datas():
    cost, _ = cost_of(make_dense(), make_data(), "T4", batch_size=64)
    assert cost.memory["batch_size"] == 64
    assert cost.memory["device_bytes"] == choose_card("T4").memory_bytes - 500 * 2**20


def test_rows_that_stay_with_the_host_are_sent_in_two_blocks():
    _, found = cost_of(make_dense(), make_data(cache="host"), "T4")
    assert found["rows_bytes"].value == 0
    assert found["block_bytes"].value == 2 * (ROWS // BATCH) * BATCH * ROW_BYTES


def test_without_data_nothing_is_compiled_and_no_package_advised():
    cost, found = cost_of(make_dense(), None, "T4")
    assert "rows_bytes" not in found
    assert not cost.card.install
    assert cost.card.notes == ("Without `data`, rows are not counted, and no program is compiled.",)


def test_without_a_card_there_is_none():
    assert model_cost.model_cost(make_dense()).card is None


def test_a_card_that_is_not_listed_is_an_error():
    answer = api.invoke("model_cost", {"model": make_dense(), "card": "Voodoo 2"})
    assert (answer["code"], answer["details"]["arg"]) == ("spec", "card")
    assert "RTX 3060" in answer["hint"]
    with pytest.raises(SpecError):
        find_asked_card("Voodoo 2", "CPU:0")


@pytest.mark.parametrize(
    ("here", "name", "note"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX 3090", ""),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, "is not in the table of cards"),
        ("", None, ""),
    ],
)
def test_the_card_that_is_here_is_taken_without_asking(monkeypatch, here, name, note):
    details = {"device_name": here}
    monkeypatch.setattr(runtime, "visible_devices", lambda kind: ["gpu"])
    monkeypatch.setattr(runtime, "device_details", lambda device: details)
    card, found = find_asked_card(None, "GPU:0")
    assert (card and card.name) == name
    assert note in found
    assert bool(found) == bool(note)


def test_a_model_of_ones_own_code_does_not_cross():
    model = make_dense()
    model.compile("adam", lambda y, p: keras.ops.mean((y - p) ** 4))
    cost, _ = cost_of(model, make_data(), "T4", compiler="/no/python")
    assert cost.card.notes == (
        "No program was compiled: the model has functions or classes of your own.",
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [(None, "no loss and no optimizer"), ({"run_eagerly": True}, "the model trains eagerly")],
)
def test_a_model_that_runs_no_compiled_loop_is_not_compiled(options, why):
    model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
    if options is not None:
        model.compile("adam", "mse", **options)
    cost, found = cost_of(model, make_data(), "T4", compiler="/no/python")
    assert why in cost.card.notes[0]
    assert found["rows_bytes"].value == ROWS * ROW_BYTES


def test_a_compiler_that_does_not_start_is_named():
    cost, found = cost_of(make_dense(), make_data(), "T4", compiler="/no/python")
    assert "No program was compiled: /no/python could not be started" in cost.card.notes[0]
    assert found["kernels"].value is None
    assert not cost.card.install


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("card", ["GTX 1060", "A100"])
def test_a_compiled_training_takes_the_bytes_of_its_arrays(card):
    model = make_dense()
    before = [variable.numpy() for variable in model.variables]
    cost, found = cost_of(model, make_data(), card, compiler=str(PYTHON))
    (note,) = cost.card.notes
    assert note.startswith("The knee is more than the 4,000 rows")
    weights = COLUMNS * 4 + 4 + 4 + 1
    # Adam's two numbers per weight; its count and rate; two numbers of the loss; steps and the bad
    # one; and the number of the first batch.
    assert found["state_bytes"].value == 4 * (3 * weights + 2 + 2 + 2 + 1)
    assert found["block_bytes"].value == ROWS // BATCH * BATCH * ROW_BYTES
    assert found["kernels"].basis == "compiled"
    assert 1 <= found["launches"].value <= found["kernels"].value
    assert cost.card.bound in ("launches", "arithmetic", "memory")
    assert found["knee"].value >= BATCH
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
