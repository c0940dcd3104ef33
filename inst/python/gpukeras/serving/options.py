"""Options of a server, and who may reach it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.options import Spec, check_count, check_number, describe, option, refused_value
from gpukeras.distributed.addresses import LABEL, LAST_PORT, LOOPBACK, parse_ip

TOKEN = "GPUKERAS_TOKEN"  # the variable with the token, which a list of processes does not show
SHORTEST_TOKEN = 16  # characters; 16 random ones cannot be guessed over a network
FIRST_PORT, PORTS = 8000, 100  # 8000 is the usual port of model servers; then the next ones
BATCH_ROWS = 256
WAIT_MS = 2.0  # small beside a request's own few milliseconds
BODY_BYTES = 4 * 2**20
HINT_TOKEN = f"Set {TOKEN}=$(openssl rand -hex 32), or give `token`."


def _check_host(arg: str, value: Any) -> str:
    """Returns an address or a name to listen on."""
    text = value.strip("[]").lower() if isinstance(value, str) else ""
    named = bool(text) and all(map(LABEL.fullmatch, text.split(".")))
    if parse_ip(text) is None and (not named or text.split(".")[-1].isdigit()):
        raise refused_value(arg, value, 'an IP address or a name, such as "127.0.0.1"')
    return text


def _check_token(arg: str, value: Any) -> str:
    """Returns a token; messages do not show it."""
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
        message = f"`{arg}` must be visible ASCII characters without spaces."
        raise SpecError(message, hint=HINT_TOKEN, arg=arg)
    if len(value) < SHORTEST_TOKEN:
        message = f"`{arg}` has {len(value)} characters, fewer than {SHORTEST_TOKEN}."
        raise SpecError(message, hint=HINT_TOKEN, arg=arg)
    return value


@dataclass(frozen=True)
class ServeSpec(Spec):
    """Options of `gpu_serve()`.

    Args:
        host: Address to listen on; another than a loopback address needs a token.
        port: From 1 to 65535; None for the first free one from 8000.
        token: What clients send as `Authorization: Bearer TOKEN`, or None to ask for none.
        max_batch: Rows that are predicted together at most, from 1 to 65,536.
        max_wait: Milliseconds that a request waits for others at most, 0 to 1,000.
        max_body: Bytes of a request's body at most, from 1 KiB to 1 GiB.
    """

    host: str = option(LOOPBACK, _check_host)
    port: int | None = option(None, check_count, 1, LAST_PORT)
    token: str | None = field(
        default=None, repr=False, metadata={"check": _check_token, "limits": (), "arg": "token"}
    )
    max_batch: int = option(BATCH_ROWS, check_count, 1, 65_536)
    max_wait: float = option(WAIT_MS, check_number, 0.0, 1000.0)
    max_body: int = option(BODY_BYTES, check_count, 1024, 2**30)

    def __post_init__(self) -> None:
        """Checks and normalises every field; refuses a network's address without a token.

        Raises:
            SpecError: for a wrong value, or a host that others can reach without a token.
        """
        super().__post_init__()
        if not self.loopback and self.token is None:
            raise SpecError(
                f"`host` {describe(self.host)} can be reached by others, and there is no token.",
                hint=HINT_TOKEN,
                arg="host",
            )

    @property
    def loopback(self) -> bool:
        """Whether only this computer can reach the server."""
        ip = parse_ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def ports(self) -> range:
        """The ports to try, in order."""
        if self.port is not None:
            return range(self.port, self.port + 1)
        return range(FIRST_PORT, FIRST_PORT + PORTS)

    def url(self, port: int) -> str:
        """Returns the address of the server as clients on this computer write it."""
        ip = parse_ip(self.host)
        host = LOOPBACK if ip is not None and ip.is_unspecified else self.host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def allowed_hosts(self) -> tuple[str, ...]:
        """Returns the names that a request's `Host` may have; none for any.

        A web page can have its own name point to 127.0.0.1 (DNS rebinding); its requests carry that
        name. With a token such a page cannot ask, whatever the name.
        """
        return () if self.token is not None else ("127.0.0.1", "localhost", "[::1]", self.host)


def read_options(options: Mapping[str, Any], environment: Mapping[str, str]) -> ServeSpec:
    """Builds the options; the token comes from the environment if it is not given.

    Args:
        options: Fields of `ServeSpec`; None counts as not given.
        environment: The process's variables.

    Raises:
        SpecError: see `ServeSpec`.
    """
    known = {name: value for name, value in options.items() if value is not None}
    token = known.get("token") or environment.get(TOKEN) or None
    return ServeSpec.from_dict({**known, "token": token})


def pass_options(spec: ServeSpec) -> tuple[list[str], dict[str, str]]:
    """Returns the options as command-line arguments, and the token as a variable beside them."""
    arguments = ["--host", spec.host]
    arguments += [] if spec.port is None else ["--port", str(spec.port)]
    arguments += ["--max-batch", str(spec.max_batch), "--max-wait", str(spec.max_wait)]
    arguments += ["--max-body", str(spec.max_body)]
    return arguments, {TOKEN: spec.token or ""}
