"""The door to pyarrow: versions that run code out of files stay shut out."""

import pytest

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.data.files import arrow


@pytest.mark.parametrize("version", ["14.0.0", "13.0.0", "0.17.1", "9.0.0.dev3"])
def test_a_pyarrow_that_runs_code_of_files_is_refused(version):
    with pytest.raises(RuntimeMissingError, match="runs code that a Parquet or Arrow file holds"):
        arrow.check_version(version)


@pytest.mark.parametrize("version", ["14.0.1", "14.0.2", "15.0.0", "24.0.0", "25.0.0.dev1"])
def test_later_ones_are_taken(version):
    arrow.check_version(version)
