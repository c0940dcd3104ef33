"""Finds and opens objects of S3, Google Cloud Storage, Azure and web servers. Needs pyarrow.

Arrow retries with back-off what is transient: answers such as 500 and 503, lost connections,
truncated bodies, and reads that stand still.

http:// is for servers of this computer only: elsewhere, rows and a password could be read and
changed on their way.
"""

from __future__ import annotations

import base64
import errno
import http.client
import ipaddress
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

from gpukeras.core.errors import DataError, RuntimeMissingError
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import (
    CREDENTIALS,
    RemoteFile,
    Stamp,
    StoreError,
    path_error,
    store_reason,
)
from gpukeras.system import environment, pip

# Addresses ----------------------------------------------------------------------------------------

# Options behind "?", by scheme. Those of an https:// address belong to the server.
OPTIONS = {
    "s3": ("region", "endpoint_override", "anonymous"),
    "gs": ("endpoint_override", "anonymous"),
    "abfs": (),
}
SAME = {"gcs": "gs", "abfss": "abfs", "http": "https"}
HINT = "Known are s3://, gs://, abfs:// and https://; without a scheme, paths of this computer."
_QUERY = re.compile(r"\?(\w+=[^?*\[\]]*)$")


@dataclass(frozen=True)
class StoreUrl:
    """An address.

    Args:
        scheme: "s3", "gs", "abfs", "https" or "http".
        host: Bucket of S3 and Google, container and account of Azure, host and port of a server.
        key: Key of the object, or the path on the server with its query.
        user: User, key or container in front of "@", or "".
        password: Password or secret, or "".
        options: Options behind "?".
    """

    scheme: str
    host: str
    key: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """The address without credentials and options."""
        return f"{self.scheme}://{self.host}/{self.key.split('?')[0] if self.is_web else self.key}"

    @property
    def is_web(self) -> bool:
        """Whether a web server gives it, rather than a store with a list of its objects."""
        return self.scheme in ("https", "http")

    def option(self, name: str) -> str:
        """Returns an option, or ""."""
        return dict(self.options).get(name, "")


def parse_url(text: str, arg: str) -> StoreUrl:
    """Takes an address apart.

    Args:
        text: An address. User, key and secret may be percent-encoded; keys of objects are taken
            as they are, as Amazon's own programs do.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for another scheme, an option that is not known, or no bucket. Messages do not
            repeat the address.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    kind = SAME.get(scheme, scheme)
    if kind not in (*OPTIONS, "https"):
        raise DataError(f"`{arg}`: {scheme}:// is not read.", hint=HINT, arg=arg)
    if kind == "https":
        return _parse_web(text, scheme, arg)
    authority, _, key = rest.partition("/")
    options: tuple[tuple[str, str], ...] = ()
    if query := _QUERY.search(key):
        key, options = key[: query.start()], _parse_options(query[1], kind, arg)
    user, password, host = _parse_authority(authority)
    if kind == "abfs":  # container@account.dfs.core.windows.net
        host, user = (f"{user}@{host}" if user else host), ""
    if not host or ":" in host:
        raise DataError(
            f"`{arg}`: an address of {kind}:// names no bucket.",
            hint=f"Write {kind}://bucket/key, and %2F for each / of a secret in front of @.",
            arg=arg,
        )
    return StoreUrl(kind, host, key, user, password, options)


def _parse_authority(authority: str) -> tuple[str, str, str]:
    userinfo, _, host = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    return unquote(user), unquote(password), host


def _parse_options(query: str, kind: str, arg: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition("=") for pair in query.split("&")]
    for name, _, _ in pairs:
        if name not in OPTIONS[kind]:
            known = ", ".join(OPTIONS[kind]) or "none"
            raise DataError(
                f"`{arg}`: an address of {kind}:// has an option that is not known.",
                hint=f"Known are: {known}. Credentials come from the environment.",
                arg=arg,
            )
    return tuple((name, unquote(value)) for name, _, value in pairs)


def _parse_web(text: str, scheme: str, arg: str) -> StoreUrl:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host:
        raise DataError(f"`{arg}`: an address of {scheme}:// names no host.", arg=arg)
    shown = f"[{host}]" if ":" in host else host
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    key = parts.path.lstrip("/") + (f"?{parts.query}" if parts.query else "")
    return StoreUrl(scheme, f"{shown}:{port}" if port else shown, key, user, password)


# Stores of objects --------------------------------------------------------------------------------

STORE_ATTEMPTS = 4  # per request, with pauses that double from about a second
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
        chosen = fs.FileSelector(key, recursive=deep)
        try:
            entries = _translated(lambda: self._files.get_file_info(chosen))
        except FileNotFoundError:
            return []
        return sorted((each.path, each.type == fs.FileType.Directory) for each in entries)

    def is_folder(self, key: str) -> bool:
        """Whether objects lie below a key, and none at it."""
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
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=STORE_ATTEMPTS),
    )


def _open_gs(url: StoreUrl) -> Any:
    scheme, _, host = url.option("endpoint_override").rpartition("://")
    return fs.GcsFileSystem(
        anonymous=url.option("anonymous").lower() not in NO or url.user == "anonymous",
        endpoint_override=host or None,
        scheme=scheme or "https",
        retry_time_limit=timedelta(seconds=RETRY_SECONDS),
    )


def _open_abfs(url: StoreUrl) -> Any:
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


# Web servers --------------------------------------------------------------------------------------

HTTP_ATTEMPTS = 5
PAUSE_SECONDS = 0.5  # after the first attempt; doubled after each, with a random part
SILENT_SECONDS = 20.0  # without a byte
SLOWEST_BYTES = 2**13  # per second, in each `SILENT_SECONDS`; a server that drips is given up
CHUNK_BYTES = 2**18
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
CERTIFICATE = "SSLCertVerificationError"  # of the module ssl, which may be missing
GONE = (404, 410)
DENIED = (401, 403, 407)
OUT_OF_RANGE = 416


class HttpStore:
    """A web server.

    Args:
        url: An address on it.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for http:// to another computer.
        RuntimeMissingError: if this Python has no TLS.
    """

    def __init__(self, url: StoreUrl, arg: str) -> None:
        """Stores how to ask; asks nothing."""
        self._origin = f"{url.scheme}://{url.host}"
        local = is_loopback(self._origin)
        if url.scheme == "http" and not local:
            raise DataError(
                f"`{arg}`: {self._origin} is not read: http:// does not protect what it sends.",
                hint="Use https://, or download the file. http:// is for this computer only.",
                arg=arg,
            )
        if url.scheme == "https" and not hasattr(http.client, "HTTPSConnection"):
            raise RuntimeMissingError(
                "https:// needs Python's module ssl, which cannot be imported.",
                hint="Use another Python, or download the file.",
            )
        login = f"{url.user}:{url.password}".encode()
        self._login = f"Basic {base64.b64encode(login).decode()}" if url.user else ""
        proxies = urllib.request.ProxyHandler({} if local else None)
        self._opener = urllib.request.build_opener(proxies, _SafeRedirects())

    def open(self, key: str) -> Any:
        """Returns a file of Arrow's that reads ranges."""
        return pa.PythonFile(_HttpFile(self, key, self.stamp(key)), mode="r")

    def stamp(self, key: str) -> Stamp:
        """Returns a file's size and ETag, or its modification time where it has none."""
        return self.read(key, 0, 1)[1]

    def read(self, key: str, start: int, count: int) -> tuple[bytes, Stamp]:
        """Reads a range, in several attempts if need be.

        Args:
            key: Path on the server, with its query.
            start: Offset of the first byte.
            count: Number of bytes.

        Returns:
            The bytes, fewer at the end of the file, and the stamp of the file.

        Raises:
            FileNotFoundError: if there is no such file.
            StoreError: if the server refuses, or the last attempt fails too.
        """
        reason = ""
        for attempt in range(HTTP_ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                return self._read_once(key, start, count)
            except _Transient as failure:
                reason = str(failure)
        raise StoreError(f"{reason}, {HTTP_ATTEMPTS} times")

    def _read_once(self, key: str, start: int, count: int) -> tuple[bytes, Stamp]:
        path = quote(key, safe="/%?&=+:@!$'()*,;~[]-._")
        headers = {
            "Range": f"bytes={start}-{start + count - 1}",
            "Accept-Encoding": "identity",
            "User-Agent": "gpukeras",
        }
        request = urllib.request.Request(f"{self._origin}/{path}", headers=headers)
        if self._login:
            request.add_unredirected_header("Authorization", self._login)
        try:
            with self._opener.open(request, timeout=SILENT_SECONDS) as answer:
                return _take(answer, start, count)
        except urllib.error.HTTPError as error:
            error.close()
            return _refused(error)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, (FileNotFoundError, StoreError)):
                raise
            reason = getattr(error, "reason", error)
            if type(reason).__name__ == CERTIFICATE:
                raise StoreError("the server's certificate is not valid") from None
            raise _Transient("the server does not answer, or breaks off") from None


class _Transient(Exception):
    """An attempt failed, and another may not."""


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https:// only, and those of this computer on this computer."""

    def redirect_request(self, *asked: Any) -> urllib.request.Request | None:
        """Returns the next request; a login goes with it to the same server only."""
        before, after = asked[0], urlsplit(asked[-1])
        origin = urlsplit(before.full_url)
        safe = after.scheme == "https" or is_loopback(before.full_url) and is_loopback(asked[-1])
        if not safe:
            raise StoreError("the server sends on to an address that is not https://")
        request = super().redirect_request(*asked)
        login = before.unredirected_hdrs.get("Authorization")
        if request is not None and login and origin[:2] == after[:2]:
            request.add_unredirected_header("Authorization", login)
        return request


def _take(answer: Any, start: int, count: int) -> tuple[bytes, Stamp]:
    stamp, first, last = _describe(answer)
    if first != start or last >= start + count:
        raise StoreError("the server does not give the ranges that are asked for")
    data = bytearray()
    since = time.monotonic()
    had = 0
    while chunk := answer.read1(CHUNK_BYTES):
        data += chunk
        if (passed := time.monotonic() - since) >= SILENT_SECONDS:
            if len(data) - had < SLOWEST_BYTES * passed:
                raise _Transient("the server sends too slowly")
            since, had = since + passed, len(data)
    if len(data) != last - first + 1:
        raise _Transient("the server breaks off")
    return bytes(data), stamp


def _describe(answer: Any) -> tuple[Stamp, int, int]:
    """Returns the stamp of the whole file, and the first and last byte of this answer."""
    if answer.status != 206:
        raise StoreError("the server gives no ranges of it")
    place, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    first, _, last = place.partition("-")
    version = _read_version(answer)
    if not (size.isdecimal() and first.isdecimal() and last.isdecimal()):
        raise StoreError("the server does not tell its size")
    return (int(size), version), int(first), int(last)


def _read_version(answer: Any) -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def _refused(error: urllib.error.HTTPError) -> tuple[bytes, Stamp]:
    """Raises the error for a status, or returns that the range is behind the end of the file."""
    if error.code in GONE:
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if error.code in DENIED:
        raise StoreError("access is denied")
    size = error.headers.get("Content-Range", "").rpartition("/")[2]
    if error.code == OUT_OF_RANGE and size.isdecimal():
        return b"", (int(size), _read_version(error))
    if error.code in TRANSIENT:
        raise _Transient(f"the server answers HTTP status {error.code}")
    raise StoreError(f"the server answers HTTP status {error.code}")


class _HttpFile:
    """A file for `pyarrow.PythonFile`, which locks it."""

    closed = False

    def __init__(self, store: HttpStore, key: str, stamp: Stamp) -> None:
        self._store = store
        self._key = key
        self._stamp = stamp
        self._place = 0
        self._failure: OSError | None = None  # of one column; others need not try for as long

    def read(self, count: int | None = None) -> bytes:
        left = max(0, self._stamp[0] - self._place)
        count = left if count is None or count < 0 else min(count, left)
        if not count:
            return b""
        if self._failure is not None:
            raise self._failure
        try:
            data, stamp = self._store.read(self._key, self._place, count)
        except OSError as error:
            self._failure = error
            raise
        if stamp != self._stamp:
            raise StoreError("it has changed meanwhile")
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._stamp[0])[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def is_loopback(url: str) -> bool:
    """Whether an address is one of this computer."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Listings -----------------------------------------------------------------------------------------

MAGIC = "*?["
GLOB = 'Give a glob such as "s3://bucket/folder/*/*.parquet" for folders within folders.'
Stores = dict[tuple, ArrowStore]  # by what identifies one, so that many addresses share one


def find_objects(address: str, arg: str, stores: Stores | None = None) -> list[RemoteFile]:
    """Returns the objects of an address; those of a glob or folder are sorted.

    As among files, names that begin with "." or "_" are left out of a folder.

    Args:
        address: It may have `*`, `**`, `?` and `[...]` behind the bucket. Web servers
            have no lists, and so neither globs nor folders.
        arg: Name of the user's argument, for error messages.
        stores: Stores that are open already; gets those that are opened.

    Raises:
        DataError: if nothing matches, or the store cannot be opened or gives no list.
    """
    url = parse_url(address, arg)
    if url.is_web:
        return [_find_on_web(url, arg)]
    stores = {} if stores is None else stores
    known = (url.scheme, url.host, url.user, url.password, url.options)
    store = stores[known] = stores.get(known) or ArrowStore(url, arg)
    root = url.host.partition("@")[0]  # the bucket or container
    try:
        keys = [*_expand(store, root, url, arg)]
    except StoreError as error:
        message = f"{_shown(url, url.key)} cannot be opened: {error.strerror}."
        raise DataError(f"`{arg}`: {message}", hint=CREDENTIALS, arg=arg, path=url.shown) from None
    return [RemoteFile(store, f"{root}/{key}", _shown(url, key)) for key in keys]


def _find_on_web(url: StoreUrl, arg: str) -> RemoteFile:
    path = url.key.split("?")[0]
    if not path or path.endswith("/") or "*" in path:
        message = (
            f"`{arg}`: a web server does not list its files: {url.host} needs whole addresses."
        )
        raise DataError(message, hint="Give the address of each file.", arg=arg, path=url.shown)
    return RemoteFile(HttpStore(url, arg), url.key, url.shown)


def _expand(store: ArrowStore, root: str, url: StoreUrl, arg: str) -> Iterator[str]:
    parts = [part for part in url.key.split("/") if part]
    if not any(sign in url.key for sign in MAGIC):
        yield from _each_file(store, root, "/".join(parts), url, arg)
        return
    first = next(place for place, part in enumerate(parts) if set(part) & set(MAGIC))
    base, pattern = "/".join([root, *parts[:first]]), parts[first:]
    matches = [
        (path.removeprefix(f"{root}/"), folder)
        for path, folder in store.list(base, len(pattern) > 1 or "**" in pattern)
        if matches_glob(path.removeprefix(f"{base}/").split("/"), pattern)
    ]
    if not matches:
        raise path_error(
            RemoteFile(store, "", url.shown), arg, f"no object matches {url.shown}.", "Check it."
        )
    above = {str(up) for key, _ in matches for up in PurePosixPath(key).parents}
    for key, folder in matches:
        if not folder:
            yield key
        elif key not in above and pattern[-1] != "**":  # of one above, what is in it matches too
            yield from _each_file(store, root, key, url, arg)


def _each_file(store: ArrowStore, root: str, key: str, url: StoreUrl, arg: str) -> Iterator[str]:
    """Yields an object, or those of a folder."""
    if key and _is_object(store, f"{root}/{key}"):
        yield key
        return
    listed = store.list(f"{root}/{key}" if key else root, False)
    inside = [path.removeprefix(f"{root}/") for path, folder in listed if not folder]
    files = [path for path in inside if path.rpartition("/")[2][0] not in "._"]
    if not files:
        shown = _shown(url, key)
        raise path_error(RemoteFile(store, key, shown), arg, f"{shown} has no objects.", GLOB)
    yield from files


def _is_object(store: ArrowStore, key: str) -> bool:
    try:
        return not store.is_folder(key)
    except StoreError:
        if PurePosixPath(key).suffix:  # reading it says why it cannot be read, or leaves it out
            return True
        raise


def matches_glob(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a key match those of a glob, as `glob.glob()` matches paths.

    Args:
        parts: The parts of the key between "/".
        pattern: The parts of the glob; "**" stands for any number of folders.
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches_glob(parts[n:], pattern[1:]) for n in range(len(parts) + 1))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and matches_glob(parts[1:], pattern[1:])


def _shown(url: StoreUrl, key: str) -> str:
    return f"{url.scheme}://{url.host}/{key}"
