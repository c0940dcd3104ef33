"""Locks of one process, and locks that several share."""

import pytest

from gpukeras.core.file_lock import FolderLock, TakenError


def test_one_holds_an_exclusive_lock(tmp_path):
    first = FolderLock(tmp_path / "lock")
    for shared in (False, True):
        with pytest.raises(TakenError, match=r"^\d+$"):
            FolderLock(tmp_path / "lock", shared=shared)
    first.close()
    FolderLock(tmp_path / "lock").close()


def test_several_hold_a_shared_lock_and_nobody_an_exclusive_one_beside_them(tmp_path):
    both = [FolderLock(tmp_path / "lock", shared=True) for _ in range(2)]
    for lock in both:
        with pytest.raises(TakenError):
            FolderLock(tmp_path / "lock")
        lock.close()
    FolderLock(tmp_path / "lock").close()
