"""The credentials of workers: a shared secret, and certificates for TLS.

    read_credentials(secret, tls, variables) --> Credentials

A secret is a string, or the path of a file that only its owner can read.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import system_reason
from gpukeras.core.options import describe, refused_value
from gpukeras.core.safe_files import open_regular

SECRET = "GPUKERAS_SECRET"  # the variable that gives the secret, or the path of its file
SHORTEST, LONGEST = 16, 4096  # bytes of a secret
FILES = ("cert", "key", "ca")
MAKE = "`(umask 077; openssl rand -hex 32 > FILE)` makes one"


@dataclass(frozen=True)
class Credentials:
    """The credentials that authenticate workers to each other.

    Args:
        secret: The secret shared by all workers; b"" for none.
        tls: Paths of this worker's certificate, its key, and the certificate of the authority that
            signed those of the others ("cert", "key", "ca"); None without TLS.
    """

    secret: bytes = field(default=b"", repr=False)
    tls: tuple[str, str, str] | None = None

    @property
    def given(self) -> bool:
        """Whether there are credentials to tell workers from strangers."""
        return bool(self.secret) or self.tls is not None

    def open_tls(self, is_chief: bool) -> ssl.SSLContext | None:
        """Returns a TLS context, or None without TLS.

        Args:
            is_chief: Whether it is the chief's, which requires each worker's certificate; that of
                the others requires the chief's certificate for its host.

        Raises:
            SpecError: if TLS cannot use one of the files.
        """
        if self.tls is None:
            return None
        cert, key, authority = self.tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_chief else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(cert, key, password=_refuse_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise SpecError(
                f"`tls`: the certificate, its key and the `ca` cannot be used: {said}.",
                hint="They are files in PEM format; the key belongs to the certificate, and has "
                "no password.",
                arg="tls",
            ) from error
        return context


def read_credentials(secret: Any, tls: Any, variables: Mapping[str, str]) -> Credentials:
    """Reads the credentials from the user's arguments, and the secret from the environment.

    Args:
        secret: A string or a path, see `read_secret()`; None looks at GPUKERAS_SECRET.
        tls: Paths of files by name, see `Credentials`; None for no TLS.
        variables: The environment.

    Raises:
        SpecError: if one is invalid, or other users can read it.
    """
    if secret is None:
        text = variables.get(SECRET, "")
        return Credentials(read_secret(text, SECRET) if text else b"", _check_tls(tls))
    return Credentials(read_secret(secret), _check_tls(tls))


def read_secret(value: Any, arg: str = "secret") -> bytes:
    """Returns a secret from a string, or from a file whose path has a slash or begins with "~".

    Raises:
        SpecError: if it is too short or too long, or users other than its owner can read the file.
    """
    if not isinstance(value, str):
        raise refused_value(arg, value, "a text or the path of a file")
    is_path = value.startswith("~") or "/" in value or os.sep in value
    content = _read_private(value, arg) if is_path else value.encode()
    secret = content.strip()
    if not SHORTEST <= len(secret) <= LONGEST:
        raise SpecError(
            f"`{arg}` must have at least {SHORTEST} characters and at most {LONGEST:,}, "
            f"not {len(secret):,}.",
            hint=f"Take one that nobody can guess: {MAKE}.",
            arg=arg,
        )
    return secret


def _check_tls(tls: Any) -> tuple[str, str, str] | None:
    if tls is None:
        return None
    if not isinstance(tls, Mapping) or set(tls) != set(FILES):
        names = ", ".join(map(str, tls)) if isinstance(tls, Mapping) else describe(tls)
        raise SpecError(
            f"`tls` must name the files `cert`, `key` and `ca`, not {names}.",
            hint='Such as c(cert = "worker.pem", key = "worker.key", ca = "ca.pem").',
            arg="tls",
        )
    paths = [str(Path(str(tls[name])).expanduser().absolute()) for name in FILES]
    for name, path in zip(FILES, paths, strict=True):
        if not Path(path).is_file():
            message = f"`tls`: the file {Path(path).name} of `{name}` is not there."
            raise SpecError(message, arg="tls")
    _read_private(paths[1], "tls")
    return paths[0], paths[1], paths[2]


def _read_private(path: str, arg: str) -> bytes:
    """Returns the content of a file that only its owner can read."""
    target = Path(path).expanduser()
    try:
        with open_regular(target) as file:
            status = os.fstat(file.fileno())
            content = file.read(2**16)
    except OSError as error:
        message = f"`{arg}`: the file {target.name} cannot be read: {system_reason(error)}."
        raise SpecError(message, hint=f"{MAKE}.", arg=arg) from error
    _check_private(status, target, arg)
    return content


def _check_private(status: os.stat_result, target: Path, arg: str) -> None:
    if os.name != "posix":  # Windows has other permissions
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SpecError(
            f"`{arg}`: others than its owner can use the file {target.name} (its mode is "
            f"{mode:o}).",
            hint=f"Make a new one, as it may have been read: {MAKE}; chmod 600 closes a file.",
            arg=arg,
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise SpecError(f"`{arg}`: the file {target.name} belongs to another user.", arg=arg)


def _refuse_password() -> str:
    raise ValueError("the key has a password")
