"""Keeps encoded rows on disk for later sessions, bounded in bytes.

    <folder>/<key>/      as gpu_dataset_save() writes it; the manifest also tells what the rows are,
                         and its time is that of the last use
    <folder>/<key>/lock  shared by each dataset that reads the rows

The folder is `data` in that of R's caches; `GPUKERAS_DATA_CACHE` names another place for it, or is
"off". Only the user can open it. An entry appears complete or not at all. Processes exclude each
other by a lock while they look for an entry or remove one; an entry that a dataset reads is not
removed. Where the system has no locks, a dataset whose entry is removed ends with an error that
says so.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpukeras.backend import xla_cache, xla_cache_files
from gpukeras.core import cache_folder
from gpukeras.core.atomic_dir import clean_up, move_folder, partial_folder, write_text
from gpukeras.core.errors import DataError, GpuKerasError, SpecError
from gpukeras.core.file_lock import FolderLock, TakenError
from gpukeras.core.messages import mib, system_reason
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.saved.fingerprint import Fingerprint, NotKeptError
from gpukeras.data.saved.manifest import MANIFEST, Manifest, read_manifest
from gpukeras.data.saved.reader import open_folder
from gpukeras.data.saved.writer import open_rows, write_folder
from gpukeras.system import environment

SWITCH = "GPUKERAS_DATA_CACHE"
LIMIT = "GPUKERAS_DATA_CACHE_GIB"
DEFAULT_GIB = 2.0
GIB = 2**30
LOCK = "lock"
KEY_LENGTH = 32
WAIT_S = 10.0  # for another process that looks for an entry, or removes one
DAMAGED = "damaged"
# What a damaged entry can raise; errors of the system come from the disk below it.
DAMAGE = (GpuKerasError, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Entry:
    """An entry of the cache.

    Args:
        kind: See `Fingerprint`; "damaged" if its manifest cannot be read.
        source: See `Fingerprint`.
        rows: Number of rows.
        bytes: Size of its files.
        used: When it was used last, in seconds since 1970.
        in_use: Whether a dataset reads it.
        key: Its folder's name.
    """

    kind: str
    source: str
    rows: int
    bytes: float
    used: float
    in_use: bool
    key: str


class Cache:
    """The folder of all entries.

    Args:
        folder: The folder.
        limit: Bytes that the entries may take.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        """Stores the arguments; see `open_cache()`."""
        self.folder, self.limit = folder, limit

    def find(self, key: str, spec: DatasetSpec, arg: str) -> MapDataset | None:
        """Returns the dataset of an entry, or None if there is none.

        Args:
            key: Its fingerprint's key.
            spec: The dataset's options.
            arg: Name of the user's argument, for error messages.

        Raises:
            DataError: for a damaged entry, which is removed.
        """
        folder = self.folder / key
        with self._alone():
            if folder.is_symlink() or not folder.is_dir():
                return None
            lock = FolderLock(folder / LOCK, shared=True)
        try:
            manifest = read_manifest(folder, arg)
            about = _read_about(manifest)
            data = open_folder(folder, manifest, replace(spec, on_error="stop"), arg)
            os.utime(folder / MANIFEST)
        except DAMAGE as error:
            lock.close()
            self.remove(key)
            raise DataError(f"The entry of `{arg}` in the cache was damaged.", arg=arg) from error
        except BaseException:
            lock.close()
            raise
        lease = _Lease()
        weakref.finalize(lease, lock.close)
        for source in data.sources:
            source.lease = lease
        data.spec = spec
        data.notes = tuple(about["notes"])
        data.skipped = about["skipped"]
        return data

    def store(self, data: MapDataset, made_from: Fingerprint) -> None:
        """Writes a dataset into an entry, and removes those used least recently to make room.

        Raises:
            NotKeptError: if it does not fit, or cannot be written.
        """
        entry = self.folder / made_from.key
        needed = sum(source.stored_bytes for source in data.sources)
        with self._alone():
            self._clean_up()
            if not self._make_room(needed):
                limit = f"the cache's {mib(self.limit)}, see {LIMIT}"
                raise NotKeptError(f"{mib(needed)} do not fit into {limit}")
        about: dict[str, Any] = {"kind": made_from.kind, "source": made_from.source}
        about |= {"notes": list(data.notes), "skipped": data.skipped}
        try:
            with partial_folder(entry) as partial:
                write_folder(data, open_rows(data), partial, about=about)
                write_text(partial / LOCK, "")
                with self._alone():
                    if not entry.exists():  # another process may have made it meanwhile
                        move_folder(partial, entry)
                    self._make_room(0, but=made_from.key)
        except (GpuKerasError, OSError) as error:
            reason = system_reason(error) if isinstance(error, OSError) else error.message
            raise NotKeptError(f"the cache could not be written: {reason.rstrip('.')}") from error

    def entries(self) -> list[Entry]:
        """Returns all entries, the least recently used first."""
        try:
            names = [each.name for each in self.folder.iterdir() if _is_key(each.name)]
        except FileNotFoundError:
            return []
        found = [self._read_entry(name) for name in names]
        return sorted((each for each in found if each is not None), key=lambda each: each.used)

    def remove(self, key: str) -> bool:
        """Removes an entry, unless a dataset reads it; returns whether it is gone."""
        with self._alone():
            return self._remove(key)

    def clear(self) -> None:
        """Removes all entries that no dataset reads."""
        with self._alone():
            self._clean_up()
            for entry in self.entries():
                self._remove(entry.key)

    def _remove(self, key: str) -> bool:
        folder = self.folder / key
        try:
            lock = FolderLock(folder / LOCK)
            try:
                with partial_folder(folder) as hidden:  # deletes it at exit
                    folder.rename(hidden / key)
            finally:
                lock.close()
        except TakenError:
            return False
        except OSError:
            return not folder.exists()
        return True

    def _make_room(self, needed: float, but: str = "") -> bool:
        entries = self.entries()
        excess = sum(entry.bytes for entry in entries) + needed - self.limit
        if needed > self.limit:
            return False
        for entry in entries:
            if excess <= 0:
                break
            if entry.key != but and self._remove(entry.key):
                excess -= entry.bytes
        return excess <= 0

    def _clean_up(self) -> None:
        """Removes what killed processes left behind."""
        for each in list(self.folder.iterdir()):
            key, own = each.name[1 : KEY_LENGTH + 1], f"-{os.getpid()}@" in each.name
            if each.name.startswith(".") and _is_key(key) and not own:  # of another thread
                clean_up(self.folder / key)

    def _read_entry(self, key: str) -> Entry | None:
        folder = self.folder / key
        try:
            sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
            folder.stat()
        except OSError:  # another process removes it
            return None
        in_use, size = _is_locked(folder / LOCK), float(sum(sizes))
        try:
            manifest = read_manifest(folder, "x")
            about = _read_about(manifest)
            used = (folder / MANIFEST).stat().st_mtime
        except DAMAGE:  # goes first
            return Entry(DAMAGED, "", 0, size, 0.0, in_use, key)
        return Entry(about["kind"], about["source"], manifest.rows, size, used, in_use, key)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Excludes other processes, for as long as it takes to find or remove an entry.

        Raises:
            NotKeptError: if another process does not end.
        """
        end = time.monotonic() + WAIT_S
        while True:
            try:
                lock = FolderLock(self.folder / f".{LOCK}")
                break
            except TakenError as error:
                if time.monotonic() > end:
                    reason = "another process does not release the cache's lock"
                    raise NotKeptError(reason) from error
                time.sleep(0.01)
            except OSError as error:
                reason = f"the cache cannot be written to: {system_reason(error)}"
                raise NotKeptError(reason) from error
        try:
            yield
        finally:
            lock.close()


def open_cache() -> Cache:
    """Returns the cache; its folder is made for this user alone.

    Raises:
        NotKeptError: if no rows are to be kept, or the folder cannot be used.
        SpecError: for an invalid limit.
    """
    folder, limit = _read_settings()
    if folder is None:
        raise NotKeptError(f"{SWITCH} is off")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = system_reason(error)
        raise NotKeptError(f"the folder of the cache cannot be made: {reason}") from error
    if risk := cache_folder.find_risk(folder, private=True):
        raise NotKeptError(f"the folder of the cache {risk}")
    return Cache(folder, limit)


def _read_settings() -> tuple[Path | None, float]:
    """Returns the folder, which need not exist, and the bound; as R has set them meanwhile."""
    variables = environment.current_variables()
    place = cache_folder.read_folder("", SWITCH, variables)
    return None if place is None else place / "data", read_limit(variables)


def read_limit(variables: Mapping[str, str]) -> float:
    """Returns the bytes that the entries may take.

    Raises:
        SpecError: if the environment variable is no number from 0.
    """
    given = variables.get(LIMIT, "")
    try:
        limit = float(given) if given else DEFAULT_GIB
    except ValueError:
        limit = -1.0
    if not 0 <= limit < 2**20:
        raise SpecError(f"{LIMIT} must be a number of GiB from 0, not {given!r}.", arg=LIMIT)
    return limit * GIB


def list_cache(clean: bool = False) -> dict[str, Any]:
    """Returns the entries of the cache, and the size of XLA's.

    Args:
        clean: Remove all of them first, but those that a dataset reads, and XLA's programs.

    Returns:
        `{folder, limit_bytes, program_bytes, reason, entries}`: `reason` says why there is no
        cache, or "".
    """
    folder, limit = _read_settings()
    programs = _count_programs(clean)
    record = {"folder": str(folder or ""), "limit_bytes": limit, "program_bytes": programs}
    try:
        if folder is not None and not folder.exists():  # looking makes no folder
            return {**record, "reason": "", "entries": []}
        cache = open_cache()
        if clean:
            cache.clear()
        entries = cache.entries()
    except NotKeptError as error:
        return {**record, "reason": str(error), "entries": []}
    return {**record, "reason": "", "entries": entries[::-1]}


def _count_programs(clean: bool) -> float:
    """Returns the bytes of XLA's programs, removed first on request; their folders stay in use."""
    variables = environment.current_variables()
    whole = cache_folder.read_folder("xla", xla_cache.SWITCH, variables)
    if whole is None or cache_folder.find_risk(whole):
        return 0.0
    if clean:
        xla_cache_files.clean(whole, 0)
    return float(xla_cache_files.count_bytes(whole))


def _read_about(manifest: Manifest) -> Mapping[str, Any]:
    """Returns what an entry says of its rows: `kind`, `source`, `notes` and `skipped`.

    Raises:
        KeyError, TypeError: if it is damaged.
    """
    about = manifest.about
    texts = [about["kind"], about["source"], about["skipped"], *about["notes"]]
    if not all(isinstance(text, str) for text in texts) or isinstance(about["notes"], str):
        raise TypeError("not texts")
    return about


class _Lease:
    """What the sources of a dataset have in common: with it goes the lock of their entry."""


def _is_locked(path: Path) -> bool:
    try:
        FolderLock(path).close()
    except TakenError:
        return True
    except OSError:
        pass
    return False


def _is_key(name: str) -> bool:
    return len(name) == KEY_LENGTH and set(name) <= set("0123456789abcdef")
