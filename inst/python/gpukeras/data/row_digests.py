"""Digests of single rows, by which rows are known again in another dataset.

A digest ignores the last digits of float32 features, in which standardised rows differ between
processors, and covers every bit of a label.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from gpukeras.data.reader.rows import RowSource

MOST_ROWS = 10_000  # digests of a dataset
MOST_BYTES = 16 * 2**20  # of the rows that are read for them: 0.05 s
SAMPLED_ROWS = 32  # of sources that compute their rows, such as images


def round_floats(values: np.ndarray) -> np.ndarray:
    """Returns the bits of float32 numbers without the last 12 (uint32)."""
    bits: np.ndarray = values.astype(np.float32, copy=False).view(np.uint32) >> np.uint32(12)
    return bits


def sample_rows(source: RowSource, rows: np.ndarray, most: int = MOST_ROWS) -> np.ndarray:
    """Returns evenly spread row numbers, as many as are cheap to read; all of a small dataset.

    Args:
        source: The features.
        rows: The row numbers to choose from.
        most: The most rows.
    """
    cheap = SAMPLED_ROWS if source.streamed else MOST_BYTES // max(1, source.row_bytes)
    count = min(len(rows), most, max(1, cheap))
    places = np.linspace(0, len(rows) - 1, count).round().astype(np.int64)
    return rows[np.unique(places)] if count < len(rows) else rows


def digest_rows(sources: Sequence[RowSource], rows: np.ndarray) -> np.ndarray:
    """Returns a digest of each row's features and labels (uint32).

    Args:
        sources: The features and the labels.
        rows: Row numbers.
    """
    total = np.zeros(len(rows), np.uint64)
    for place, source in enumerate(sources):
        bits = _to_bits(source, source.gather(rows), exact=place > 0)
        draw = np.random.default_rng(place)
        factors = draw.integers(2**63, size=bits.shape[1], dtype=np.uint64) * np.uint64(2)
        factors += np.uint64(1)
        for column, factor in enumerate(factors) if len(rows) > len(factors) else ():
            total += bits[:, column] * factor
        if len(rows) <= len(factors):  # few wide rows, such as images
            total += np.array([(row * factors).sum(dtype=np.uint64) for row in bits], np.uint64)
    return (total >> np.uint64(32)).astype(np.uint32)


def can_digest(sources: Sequence[RowSource]) -> bool:
    """Whether rows of equal values have equal digests: not those of several inputs with texts."""
    return all(set(source.texts) <= {""} for source in sources)


def _to_bits(source: RowSource, values: np.ndarray, exact: bool) -> np.ndarray:
    """Returns the numbers of each row (rows, numbers; uint64); texts count by their bytes."""
    values = values.reshape(len(values), -1)
    if source.texts:
        known = [zlib.crc32(text.encode("utf-8", "replace")) for text in source.texts[""]]
        bits = np.array(known, np.uint64)[values.astype(np.int64)]
    elif values.dtype.kind != "f":
        bits = values.astype(np.int64, copy=False).view(np.uint64)
    elif exact:
        bits = values.astype(np.float32, copy=False).view(np.uint32).astype(np.uint64)
    else:
        bits = round_floats(np.ascontiguousarray(values)).astype(np.uint64)
    return bits
