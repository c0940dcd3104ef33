import os

import pytest
from children import run_python

from gpukeras.data.files.files import RemoteFile, StoreError, is_url, store_reason


def test_a_remote_file_is_shown_by_its_address_and_no_path():
    file = RemoteFile(None, "key?sig=1", "https://h/a/b.csv.gz")
    assert f"{file} {file!r}" == "https://h/a/b.csv.gz https://h/a/b.csv.gz"
    assert (file.name, file.stem, file.suffix) == ("b.csv.gz", "b.csv", ".gz")
    with pytest.raises(TypeError):
        os.fspath(file)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("s3://b/k", True), ("https://h", True), ("C://x", False), ("a/b.csv", False), (b"s3://", 0)],
)
def test_addresses_differ_from_paths(text, is_one):
    assert is_url(text) == bool(is_one)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation: k", "access is denied"),
        ("AWS Error UNKNOWN (HTTP status 500) during", "the store answers HTTP status 500"),
        ("AWS Error SLOW_DOWN during GetObject", "the store answers SLOW_DOWN"),
        ("AWS Error NETWORK_CONNECTION during", "the store does not answer, or breaks off"),
        ("AWS Error NO_SUCH_BUCKET during", "there is no such bucket"),
        ("google::cloud::Status(PERMISSION_DENIED: x)", "access is denied"),
        ("google::cloud::Status(UNAVAILABLE: x)", "the store does not answer, or breaks off"),
        ("google::cloud::Status(INTERNAL: x)", "the store answers INTERNAL"),
        ("Snappy decompression failed", ""),
    ],
)
def test_reasons_are_in_own_words(text, reason):
    assert store_reason(OSError(text)) == reason


def test_a_stores_own_error_has_its_reason():
    assert store_reason(StoreError("it sleeps")) == "it sleeps"


def test_closing_stores_that_were_never_used_does_nothing():
    code = "from gpukeras.data.files.files import close_stores as c; c(); c()"
    assert run_python("-c", code).returncode == 0


def test_a_process_that_ends_without_pythons_end_closes_stores_itself():
    """As R does."""
    code = (
        "import os\n"
        "from pyarrow import fs\n"
        "from gpukeras.data.files.files import close_stores\n"
        "store = fs.S3FileSystem(anonymous=True, region='eu-north-1')\n"
        "close_stores()\n"
        "try:\n    store.get_file_info('bucket/key')\n"
        "except Exception as error:\n    print(error)\n"
    )
    assert "finalized" in run_python("-c", code).stdout.lower()
