"""Rows that were written for workers are those of the dataset."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from small_disks import small_disk
from small_fits import label_dataset, make_dataset

from gpukeras.data import builder
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.many.workers import rows
from gpukeras.many.workers.plan import WorkersError
from gpukeras.many.workers.rows import open_rows, write_rows

pytestmark = pytest.mark.tf


def make_images():
    features = {"kind": "array", "values": np.random.default_rng(0).uniform(size=(6, 4, 4, 1))}
    labels = {"kind": "number", "values": np.arange(6.0)}
    return builder.assemble(features, {"batch_size": 2}, labels, augment={"flip": "horizontal"})


def make_weighted():
    features = {"kind": "array", "values": np.arange(24.0).reshape(6, 4), "names": list("abcd")}
    labels = {"kind": "number", "values": np.arange(6.0)}
    return build_dataset(features, {"scale": True, "seed": 3}, labels, np.arange(1.0, 7.0))


@pytest.mark.parametrize(
    "make",
    [make_dataset, make_images, make_weighted, lambda: label_dataset("logical", [0, 1] * 3)],
)
def test_rows_come_back(make, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK_BYTES", 64)  # several blocks
    data = make()
    write_rows(data, tmp_path)
    back = open_rows(tmp_path)
    assert (back.recipe, back.spec, back.augment) == (data.recipe, data.spec, data.augment)
    for one, other in zip(back.sources, data.sources, strict=True):
        assert isinstance(one.array, np.memmap)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.gather(slice(None)), other.gather(slice(None)))


def test_rows_that_are_mapped_by_a_function_cannot_cross(tmp_path):
    data = make_dataset()
    data.map = lambda x: x
    with pytest.raises(WorkersError, match="rows are mapped by a function"):
        write_rows(data, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_reason(tmp_path):
    with pytest.raises(WorkersError, match="rows could not be written: No such file or directory"):
        write_rows(make_dataset(), tmp_path / "missing")


@pytest.mark.varies
@pytest.mark.process
@pytest.mark.parametrize("breaking", ["", "fill", "make_read_only"])
def test_a_disk_that_is_full_is_an_error_and_no_end_of_the_process(tmp_path, breaking):
    code = """
        import pathlib, sys
        from gpukeras.many.workers.plan import WorkersError
        from gpukeras.many.workers.rows import write_rows
        from small_fits import make_dataset

        try:
            write_rows(make_dataset(200_000), pathlib.Path(sys.argv[1]))  # 8 MB
        except WorkersError as error:
            print(error)
    """
    with small_disk(tmp_path / "disk") as disk:
        if breaking:
            getattr(disk, breaking)()
        command = [sys.executable, "-c", textwrap.dedent(code), str(disk.folder)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rows could not be written: ")
