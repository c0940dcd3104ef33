"""Records a training as files that any program reads.

path/run/parameters.json   what was known before the training
path/run/metrics.csv       a row for each epoch, written when it ends
path/run/result.json       how it ended
path/run/model.keras, history.png
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpukeras.core.atomic_dir import partial_file
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.core.options import is_number
from gpukeras.tracking.options import Parameter


class FolderTracker:
    """Records a training in a folder of its own.

    Args:
        path: The folder of all trainings; it is made if it is missing.
        run: The name of the training's folder in it; None for the time and a random part.

    Raises:
        DataError: if the training's folder exists, or cannot be made.
    """

    def __init__(self, path: str, run: str | None = None) -> None:
        """Makes the training's folder, so that a wrong path is an error before the training."""
        name = run or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self._folder = Path(path).absolute() / name
        self._columns: list[str] = []
        self._rows: list[Mapping[str, float]] = []
        try:
            self._folder.mkdir(parents=True)
        except FileExistsError as error:
            raise DataError(
                f"The folder {name} of `track` exists: it holds another training.",
                hint="Give another `run`, or none for a new name each time.",
                arg="track",
            ) from error
        except OSError as error:
            raise DataError(
                f"The folder {name} of `track` cannot be made: {find_reason(error)}.", arg="track"
            ) from error
        self.where = str(self._folder)

    def start(self, parameters: Mapping[str, Parameter]) -> None:
        """Writes parameters.json."""
        self._write("parameters.json", parameters)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Adds a row to metrics.csv, and a column for a metric that earlier epochs did not have."""
        path = self._folder / "metrics.csv"
        row = {"epoch": number, **metrics}
        new = [name for name in row if name not in self._columns]
        self._rows.append(row)
        if new:
            self._columns += new
            with partial_file(path) as partial:
                partial.write_bytes(self._to_csv(self._rows, header=True))
            return
        before = path.stat().st_size
        try:
            with path.open("ab") as file:
                file.write(self._to_csv([row]))
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)  # no half row
            raise

    def _to_csv(self, rows: Sequence[Mapping[str, float]], *, header: bool = False) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()

    def end(self, status: str, results: Mapping[str, Parameter], files: Sequence[Path]) -> None:
        """Writes result.json and copies the files."""
        for file in files:
            with partial_file(self._folder / file.name) as partial:
                shutil.copyfile(file, partial)
        self._write("result.json", {"status": status, **results})

    def _write(self, name: str, values: Mapping[str, Parameter]) -> None:
        finite = {
            k: v if is_number(v) or isinstance(v, (bool, str)) else None for k, v in values.items()
        }
        text = json.dumps(finite, indent=1, sort_keys=True)
        with partial_file(self._folder / name) as partial:
            partial.write_text(text + "\n", encoding="utf-8")
