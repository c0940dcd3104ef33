"""Opens rows of all kinds, by the `kind` that R gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader.image.files import list_column
from gpukeras.data.reader.image.source import ImageFeatures
from gpukeras.data.reader.inputs import InputsFeatures, each_input, split_columns
from gpukeras.data.reader.memory import (
    ArrayFeatures,
    ColumnFeatures,
    StringFeatures,
    open_sparse,
)
from gpukeras.data.reader.npy import FileFeatures, read_npy_labels
from gpukeras.data.reader.rows import FeatureRequest, Features
from gpukeras.data.reader.storage import open_npy_anywhere
from gpukeras.data.reader.windows import WindowFeatures
from gpukeras.data.recipe.recipe import Encoding, InputsEncoding, TextEncoding
from gpukeras.data.recipe.targets import MASKS, SEVERAL
from gpukeras.data.recipe.text_vectorization import TextSpec

Given = Mapping[str, Any]


def open_features(
    features: Given,
    arg: str,
    spec: DatasetSpec | None = None,
    encoding: Encoding | None = None,
    text: Given | None = None,
) -> Features:
    """Opens features in the form that R passes them.

    Args:
        features: With a `kind` of `OPENERS`; what else is in them, the class that opens them says.
        arg: Name of the user's argument, for error messages.
        spec: The dataset options for reading files.
        encoding: The learned encoding, if it is known.
        text: Which columns are text, and how they are encoded.
    """
    how = TextSpec.from_dict(text) if isinstance(text, Mapping) else text
    return _open(FeatureRequest(features, arg, spec or DatasetSpec(), encoding, how))


def _open(asked: FeatureRequest) -> Features:
    opened = OPENERS[asked.features["kind"]](asked)
    return opened if asked.encoding is None else opened.order_as(asked.encoding)


def _open_columns(asked: FeatureRequest) -> Features:
    """Opens a data frame's columns, which may reach the model unencoded, strings as strings."""
    unencoded = asked.spec.encode == "none"
    if asked.encoding is not None:
        unencoded = isinstance(asked.encoding, (TextEncoding, InputsEncoding))
    return _open(split_columns(asked)) if unencoded else ColumnFeatures(asked)


def _open_inputs(asked: FeatureRequest) -> Features:
    return InputsFeatures(asked, {name: _open(own) for name, own in each_input(asked)})


def _open_table(asked: FeatureRequest) -> Features:
    from gpukeras.data.reader.table.features import TableFeatures  # imports pyarrow: 0.3 s

    return TableFeatures(asked)


def _open_records(asked: FeatureRequest) -> Features:
    from gpukeras.data.reader.tfrecord.source import open_records  # imports pyarrow, for scalars

    return open_records(asked)


OPENERS: dict[str, Callable[[FeatureRequest], Features]] = {
    "array": ArrayFeatures,
    "columns": _open_columns,
    "strings": StringFeatures,
    "npy": lambda asked: FileFeatures(open_npy_anywhere(asked.features["path"], asked.arg)),
    "sparse": lambda asked: open_sparse(asked.features, asked.arg),
    "table": _open_table,
    "records": _open_records,
    "images": ImageFeatures,
    "inputs": _open_inputs,
    "windows": WindowFeatures,
}


def open_labels(labels: Given | None) -> Given | None:
    """Returns labels in the form of `multi_output.learn_labels()`; reads those in files.

    Masks are only listed: `read_masks()` reads them with the size of their images.
    """
    if not labels or labels["kind"] not in ("npy", MASKS, SEVERAL):
        return labels
    if labels["kind"] == MASKS:
        return {**labels, "values": list_column(labels["values"], labels["arg"], labels["arg"])}
    if labels["kind"] == "npy":
        return read_npy_labels(open_npy_anywhere(labels["path"], "y"))
    outputs = [{**part, "labels": open_labels(part["labels"])} for part in labels["outputs"]]
    return {**labels, "outputs": outputs}
