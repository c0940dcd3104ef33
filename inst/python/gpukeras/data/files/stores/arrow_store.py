"""Objects of S3, Google Cloud Storage and Azure, by Arrow's file systems.

Arrow retries with back-off what is transient: answers such as 500 and 503, lost connections,
truncated bodies, and reads that stand still.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gpukeras.core.errors import DataError, RuntimeMissingError
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import Stamp, StoreError, store_reason
from gpukeras.data.files.stores.url import StoreUrl
from gpukeras.system import environment, pip

ATTEMPTS = 4  # per request, with pauses that double from about a second
CONNECT_SECONDS = 10.0
READ_SECONDS = 20.0  # without a byte
RETRY_SECONDS = 60  # of Google's client, which counts no attempts
NO = ("", "0", "false", "no")


class ArrowStore:
    """The objects of one bucket or container.

    Args:
        url: An address in it, with its options.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if an option has a value that Arrow refuses, or the bucket cannot be found.
        RuntimeMissingError: if pyarrow was built without this kind of store.
    """

    def __init__(self, url: StoreUrl, arg: str) -> None:
        """Creates the file system; only the region of a bucket is asked for."""
        try:
            self._files = FILE_SYSTEMS[url.scheme](url)
        except ImportError:
            raise RuntimeMissingError(
                f"pyarrow {pa.__version__} is built without {url.scheme}://.",
                hint=f"Update it: {pip.install('--upgrade pyarrow')}.",
            ) from None
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            reason = store_reason(error) or "its options or the environment are not valid"
            raise DataError(
                f"`{arg}`: {url.scheme}://{url.host} cannot be opened: {reason}.",
                hint="Check the bucket, its region, and the credentials in the environment.",
                arg=arg,
            ) from None

    def open(self, key: str) -> Any:
        """Returns an object as a file of Arrow's that reads ranges."""
        return _translated(lambda: self._files.open_input_file(key))

    def stamp(self, key: str) -> Stamp:
        """Returns an object's size and ETag, or its modification time where it has none."""

        def ask() -> Stamp:
            with self._files.open_input_file(key) as file:
                facts = {name.lower(): value for name, value in (file.metadata() or {}).items()}
                tag = facts.get("etag") or facts.get("last-modified") or b""
                return file.size(), tag.decode("latin-1")

        return _translated(ask)

    def list(self, key: str, deep: bool) -> list[tuple[str, bool]]:
        """Returns the keys below a key, sorted, each with whether it is a folder.

        Args:
            key: The key of a folder.
            deep: Whether to list folders within it too.
        """
        from pyarrow import fs

        chosen = fs.FileSelector(key, recursive=deep)
        try:
            entries = _translated(lambda: self._files.get_file_info(chosen))
        except FileNotFoundError:
            return []
        return sorted((each.path, each.type == fs.FileType.Directory) for each in entries)

    def is_folder(self, key: str) -> bool:
        """Whether objects lie below a key, and none at it."""
        from pyarrow import fs

        entry = _translated(lambda: self._files.get_file_info(key))
        return entry.type == fs.FileType.Directory


def _translated(ask: Callable[[], Any]) -> Any:
    """Calls `ask()`; its errors become those of the operating system, without texts of a store."""
    try:
        return ask()
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "no such object") from None
    except (pa.ArrowException, OSError) as error:
        raise StoreError(store_reason(error) or "the store gives an error") from None


def _open_s3(url: StoreUrl) -> Any:
    from pyarrow import fs

    endpoint = url.option("endpoint_override") or _environment(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    region = url.option("region") or _environment("AWS_REGION", "AWS_DEFAULT_REGION")
    if not region:  # Amazon tells where a bucket is; other servers take any region
        region = "us-east-1" if endpoint else fs.resolve_s3_region(url.host)
    keys: dict[str, Any] = {}
    if url.user:
        keys = {"access_key": url.user, "secret_key": url.password}
    if url.option("anonymous").lower() not in NO:
        keys = {"anonymous": True}
    return fs.S3FileSystem(
        **keys,
        region=region,
        endpoint_override=endpoint or None,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=READ_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _open_gs(url: StoreUrl) -> Any:
    from pyarrow import fs

    scheme, _, host = url.option("endpoint_override").rpartition("://")
    return fs.GcsFileSystem(
        anonymous=url.option("anonymous").lower() not in NO or url.user == "anonymous",
        endpoint_override=host or None,
        scheme=scheme or "https",
        retry_time_limit=timedelta(seconds=RETRY_SECONDS),
    )


def _open_abfs(url: StoreUrl) -> Any:
    from pyarrow import fs

    account = url.host.rpartition("@")[2].split(".")[0] if "@" in url.host else ""
    token = _environment("AZURE_STORAGE_SAS_TOKEN")
    key = url.password or ("" if token else _environment("AZURE_STORAGE_KEY"))
    return fs.AzureFileSystem(
        account or _environment("AZURE_STORAGE_ACCOUNT"),
        **({"account_key": key} if key else {"sas_token": token} if token else {}),
    )


FILE_SYSTEMS: dict[str, Callable[[StoreUrl], Any]] = {
    "s3": _open_s3,
    "gs": _open_gs,
    "abfs": _open_abfs,
}


def _environment(*names: str) -> str:
    # R's Sys.setenv() writes C's environment; os.environ is a copy of Python's start.
    return next((value for name in names if (value := environment.c_variable(name))), "")
