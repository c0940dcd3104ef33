"""Writes the encoded rows of a dataset once; all workers map them into their memory.

write_rows(data, folder) --> rows-1.npy, rows-2.npy, ..., rows.json --> open_rows(folder)
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import BLOCK_BYTES
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.reader.rows import MemoryRows, RowSource
from gpukeras.data.recipe.augmentation import AugmentSpec
from gpukeras.data.recipe.serialization import from_portable, to_portable
from gpukeras.many.workers.plan import WorkersError

ABOUT = "rows.json"


def write_rows(data: MapDataset, folder: Path) -> None:
    """Writes the rows of a dataset, with what its batches depend on.

    Args:
        data: The rows.
        folder: An empty folder.

    Raises:
        WorkersError: if they cannot cross, or cannot be written.
    """
    if data.map is not None:
        raise WorkersError("rows are mapped by a function")
    if data.recipe.features.has_texts:
        raise WorkersError("rows have texts")
    about = _describe(data)
    if _describe(_open(about, [])) != about:
        raise WorkersError("the options of the rows are not those of files")
    try:
        for place, source in enumerate(data.sources):
            _write_source(source, folder / _name(place))
        text = json.dumps({**about, "sources": len(data.sources)})
        (folder / ABOUT).write_text(text, "utf-8")
    except OSError as error:
        raise WorkersError(f"rows could not be written: {error.strerror or error}") from error


def open_rows(folder: Path) -> MapDataset:
    """Returns the rows of a folder as a dataset without training or validation rows."""
    about = json.loads((folder / ABOUT).read_text("utf-8"))
    files = [folder / _name(place) for place in range(about["sources"])]
    # Copy-on-write, because tensors share no memory that is read-only. Nobody writes to it.
    return _open(about, [MemoryRows(np.load(file, mmap_mode="c")) for file in files])


def _name(place: int) -> str:
    return f"rows-{place + 1}.npy"


def _describe(data: MapDataset) -> dict[str, Any]:
    """Returns what batches depend on besides the rows, as JSON values."""
    plain = {
        "recipe": to_portable(data.recipe),
        "spec": asdict(data.spec),
        "augment": None if data.augment is None else asdict(data.augment),
        "na": data.na,
        "wrapped": data.wrapped,
        "variable_batch_size": data.variable_batch_size,
    }
    return dict(json.loads(json.dumps(plain)))


def _open(about: dict[str, Any], sources: list[RowSource]) -> MapDataset:
    none = np.zeros(0, np.int32)
    recipe, spec = from_portable(about["recipe"]), DatasetSpec.from_dict(about["spec"])
    data = MapDataset(tuple(sources), recipe, spec, none, none, na=about["na"])
    if about["augment"] is not None:
        data.augment = AugmentSpec.from_dict(about["augment"])
    data.wrapped, data.variable_batch_size = about["wrapped"], about["variable_batch_size"]
    return data


def _write_source(source: RowSource, path: Path) -> None:
    """Writes rows a block at a time."""
    header = {
        "descr": np.lib.format.dtype_to_descr(source.dtype),
        "fortran_order": False,
        "shape": tuple(source.shape),
    }
    step = max(1, BLOCK_BYTES // max(1, source.row_bytes))
    # Not through a map of memory: on a full disk the system would end the process by SIGBUS.
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(source), step):
            rows = source.gather(slice(start, min(start + step, len(source))))
            file.write(np.ascontiguousarray(rows, source.dtype).tobytes())
