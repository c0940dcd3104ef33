"""Finds objects by address: one, those of a glob, or those of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from gpukeras.core.errors import DataError
from gpukeras.data.files.files import RemoteFile, StoreError, path_error
from gpukeras.data.files.stores.arrow_store import ArrowStore
from gpukeras.data.files.stores.http_store import HttpStore
from gpukeras.data.files.stores.url import StoreUrl, parse_url

MAGIC = "*?["
CHECK = "Check the address, the credentials in the environment, and the network."
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
        raise DataError(f"`{arg}`: {message}", hint=CHECK, arg=arg, path=url.shown) from None
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
    for key, folder in matches:
        if not folder:
            yield key
        elif pattern[-1] != "**":
            yield from _each_file(store, root, key, url, arg)


def _each_file(store: ArrowStore, root: str, key: str, url: StoreUrl, arg: str) -> Iterator[str]:
    """Yields an object, or those of a folder."""
    if key and not store.is_folder(f"{root}/{key}"):
        yield key
        return
    listed = store.list(f"{root}/{key}" if key else root, False)
    inside = [path.removeprefix(f"{root}/") for path, folder in listed if not folder]
    files = [path for path in inside if path.rpartition("/")[2][0] not in "._"]
    if not files:
        shown = _shown(url, key)
        raise path_error(RemoteFile(store, key, shown), arg, f"{shown} has no objects.", GLOB)
    yield from files


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
