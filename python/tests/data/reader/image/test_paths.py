"""A column of paths: errors name the column and the row."""

import numpy as np
import pytest
from pictures import write

from gpukeras import DataError
from gpukeras.data.reader.image.files import list_column


def test_files_of_a_column_keep_the_numbers_of_their_rows(tmp_path):
    paths = [write(tmp_path / f"{name}.png", b"-") for name in "abc"]
    files = list_column([paths[0], "", *paths[1:], ""], "photo", "d")
    assert files.missing.tolist() == [False, True, False, False, True]
    kept = files[~files.missing]
    kept.check_present()
    assert list(kept.paths) == paths
    error = kept.error(1, "is odd.")
    assert error.message == "`d`: the image b.png in row 3 of the column `photo` is odd."
    assert error.details == {"arg": "d", "column": "photo", "path": paths[1], "row": 3}
    own = list_column(paths, "mask", "mask").error(0, "is odd.")
    assert own.message == "`mask`: the image a.png in row 1 is odd."
    assert list_column(paths[0], "photo", "d").paths == (paths[0],)


def test_a_missing_path_is_named(tmp_path):
    path = write(tmp_path / "a.png", b"-")
    files = list_column([path, "", ""], "photo", "d")
    with pytest.raises(DataError, match=r"`photo` has no path in row 2 and 1 other") as caught:
        files.check_present()
    assert caught.value.details["row"] == 2
    with pytest.raises(DataError, match=r"no path in row 3\. `na ="):
        files[np.array([True, False, True])].check_present()


def test_files_that_are_not_there_are_named(tmp_path):
    path = write(tmp_path / "a.png", b"-")
    for other, problem in ((tmp_path / "b.png", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(DataError, match=rf"in row 2 of the column `photo` {problem}") as caught:
            list_column([path, str(other)], "photo", "d")
        assert str(tmp_path.parent) not in caught.value.message
