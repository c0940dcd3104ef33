import numpy as np
import pytest
from children import run_script
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_slots import slots

from gpukeras import DataError, SpecError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader import registry
from gpukeras.system import host

X = np.arange(12.0).reshape(6, 2)


def array(values=X):
    return {"kind": "array", "values": values, "names": []}


def npy(folder, values=X):
    np.save(folder / "x.npy", values)
    return {"kind": "npy", "path": str(folder / "x.npy")}


@pytest.mark.parametrize("na", ["drop", "impute"])
def test_rows_that_are_not_in_memory_are_neither_dropped_nor_imputed(tmp_path, na):
    for features, what in ((slots(X), "a sparse matrix"), (npy(tmp_path), "a file")):
        with pytest.raises(SpecError, match=f"needs rows in memory: `x` is {what}"):
            map_dataset.build_dataset(features, {"na": na})
        with pytest.raises(SpecError, match="needs rows in memory"):
            registry.open_features(features, "x").find_complete()


def test_what_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(host, "read_free_memory", lambda: 10.0)
    with pytest.raises(DataError, match='more than the 10 bytes free. Use `cache = "disk"` or'):
        map_dataset.build_dataset(slots(X), {"cache": "host"})


def test_features_without_labels_and_weights_say_so():
    given_features = registry.open_features(array(), "x")
    assert given_features.labels() is None
    assert given_features.weights() is None
    assert (given_features.formula, given_features.skipped, given_features.notes) == ("", "", ())


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(8, 60),
    workers=st.integers(1, 4),
    validation=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 5),
)
def test_workers_share_the_rows(rows, workers, validation, seed):
    features = array(np.arange(float(rows)).reshape(-1, 1))
    options = {"validation": validation, "seed": seed, "batch_size": 1, "scale": True}
    whole = map_dataset.build_dataset(features, options)
    shares = [
        map_dataset.build_dataset(features, {**options, "shard": (index, workers)})
        for index in range(1, workers + 1)
    ]
    for part in ("train", "validation", "all"):
        taken = np.concatenate([share.rows(part) for share in shares])
        np.testing.assert_array_equal(np.sort(taken), whole.rows(part))
        sizes = [len(share.rows(part)) for share in shares]
        assert max(sizes) - min(sizes) <= (2 if part == "all" else 1)
    assert all(share.recipe == whole.recipe for share in shares)


def test_a_share_is_drawn_from_all_over():
    rows = np.arange(10, dtype=np.int32)
    np.testing.assert_array_equal(map_dataset.take_shard(rows, (2, 3)), [1, 4, 7])


@pytest.mark.slow
@pytest.mark.tf
def test_rows_are_loaded_once_onto_another_device(tmp_path):
    script = f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        import numpy as np, tensorflow as tf
        from gpukeras.data.reader import rows
        from gpukeras.data.reader import storage
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        rows.LOAD_BYTES = 256
        values = np.random.default_rng(1).normal(size=(500, 3)).astype(np.float32)
        writer = storage.RowsWriter((3,), keep="disk")
        writer.write(values)
        source = writer.finish()
        gather = source.gatherer("CPU:1")
        order = np.random.default_rng(2).permutation(500)[:70].astype(np.int32)
        source.reader.path.unlink()  # it is not needed any more
        with tf.device("/CPU:1"):
            found = gather(order)
        again = source.gatherer("CPU:1")(order)
        pixels = np.arange(60, dtype=np.uint8).reshape(20, 3)
        with tf.device("/CPU:1"):
            taken = rows.MemoryRows(pixels).gatherer("CPU:1")(order % 20)
        answer = [
            bool((taken.numpy() == pixels[order % 20]).all()),
            found.device.rpartition(":")[2],
            bool((found.numpy() == values[order]).all()),
            bool((again.numpy() == values[order]).all()),
        ]
    """
    assert run_script(script) == [True, "1", True, True]
