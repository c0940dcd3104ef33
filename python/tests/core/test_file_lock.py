"""Locks of one process."""

import pytest

from gpukeras.core.file_lock import FolderLock, TakenError


def test_one_holds_a_lock(tmp_path):
    first = FolderLock(tmp_path / "lock")
    with pytest.raises(TakenError, match=r"^\d+$"):
        FolderLock(tmp_path / "lock")
    first.close()
    FolderLock(tmp_path / "lock").close()
