"""Takes addresses of objects apart, so that their credentials are shown nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from gpukeras.core.errors import DataError

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
