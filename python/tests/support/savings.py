"""Datasets that are saved, in this process and in others."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings

import gpukeras
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset import map_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.data.saved import reader, writer

PYTHON_PATH = str(Path(gpukeras.__file__).parents[1])
in_one_folder = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def plain_dataset(x, y=None, w=None, validation=()):
    """A dataset of arrays as they are fed."""
    rows = np.arange(len(x), dtype=np.int32)
    held = np.isin(rows, validation)
    sources = tuple(MemoryRows(array) for array in (x, y, w) if array is not None)
    recipe = Recipe(ArrayEncoding(x.shape[1:]))
    return map_dataset.MapDataset(sources, recipe, DatasetSpec(), rows[~held], rows[held])


def opened(folder, **options):
    return reader.build_saved({"kind": "saved", "path": str(folder)}, Request(options))


def save(folder, data, **options):
    return writer.save_dataset(data, str(folder / "saved"), **options)["path"]


def run_child(code, *args):
    """A Python process of its own that saves 200,000 rows; gives the finished process."""
    prologue = f"""
        import os, resource, signal, sys
        sys.path.insert(0, {PYTHON_PATH!r})
        import numpy as np
        from gpukeras.data.dataset import map_dataset as pipeline
        from gpukeras.data.saved import writer as storage
        from gpukeras.core.errors import GpuKerasError
        x = np.random.default_rng(0).normal(size=(200_000, 10))
        data = pipeline.build_dataset({{"kind": "array", "values": x}}, {{}})
    """
    program = textwrap.dedent(prologue) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
