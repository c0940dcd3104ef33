"""Files of web servers, read by ranges.

http:// is for servers of this computer only: elsewhere, rows and a password could be read and
changed on their way.
"""

from __future__ import annotations

import base64
import errno
import http.client
import ipaddress
import random
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

from gpukeras.core.errors import DataError, RuntimeMissingError
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import Stamp, StoreError
from gpukeras.data.files.stores.url import StoreUrl

ATTEMPTS = 5
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
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                return self._read_once(key, start, count)
            except _Transient as failure:
                reason = str(failure)
        raise StoreError(f"{reason}, {ATTEMPTS} times")

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
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    if not (size.isdecimal() and first.isdecimal() and last.isdecimal()):
        raise StoreError("the server does not tell its size")
    return (int(size), version), int(first), int(last)


def _refused(error: urllib.error.HTTPError) -> tuple[bytes, Stamp]:
    """Raises the error for a status, or returns that the range is behind the end of the file."""
    if error.code in GONE:
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if error.code in DENIED:
        raise StoreError("access is denied")
    size = error.headers.get("Content-Range", "").rpartition("/")[2]
    if error.code == OUT_OF_RANGE and size.isdecimal():
        version = error.headers.get("ETag") or error.headers.get("Last-Modified") or ""
        return b"", (int(size), version)
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
