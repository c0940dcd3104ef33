"""The HTTP side of a server: what is answered to whom. Imports starlette, an optional package."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpukeras import __version__
from gpukeras.core.errors import GpuKerasError, ServiceError
from gpukeras.serving.answers import (
    busy_error,
    error_body,
    http_error,
    name_rows,
    spread,
    status_of,
)
from gpukeras.serving.batching import Batcher
from gpukeras.serving.options import ServeSpec
from gpukeras.serving.requests import parse_request
from gpukeras.serving.service import ServedModel

BODIES = 32  # of the allowed size, together; as arrays they take four times as much at most
READ_ON = 8  # how many times the allowed size is thrown away of a body that is too large
BODY_S = 20.0  # for a body to arrive; who sends more slowly is sent away
LOG = logging.getLogger("gpukeras.serving")
Handler = Callable[[HttpRequest], Awaitable[ASGIApp]]
Take = Callable[[int], None]


def build_app(
    served: ServedModel, spec: ServeSpec, announce: Callable[[], None], body_s: float = BODY_S
) -> Starlette:
    """Builds the application.

    Args:
        served: The model.
        spec: The options.
        announce: Called once requests are answered.
        body_s: Seconds for a request's body to arrive.
    """
    batcher = Batcher(served.predict, spec.max_batch, spec.max_wait)
    budget = ByteBudget(BODIES * spec.max_body)
    about = {**served.describe(), "gpukeras": __version__}

    async def health(_: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def model(_: HttpRequest) -> Response:
        return JSONResponse(about)

    async def predict(request: HttpRequest) -> Response:
        check_json(request)
        with budget.reserve() as take:
            body = await read_body(request, spec.max_body, body_s, take)
            asked = parse_request(body, served.recipe, served.shape)
            try:
                predictions = await batcher.submit(asked)
            except GpuKerasError as error:
                raise name_rows(error, asked.arg) from error
        return JSONResponse({"predictions": spread(predictions, asked.rows.complete)})

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        announce()
        yield
        task.cancel()

    return Starlette(
        routes=[
            Route("/health", guard(health, spec, secret=False), methods=["GET"]),
            Route("/model", guard(model, spec), methods=["GET"]),
            Route("/predict", guard(predict, spec), methods=["POST"]),
        ],
        middleware=[Middleware(checking_host, spec=spec)],
        exception_handlers={HTTPException: tell_http_error, Exception: tell_fault},
        lifespan=lifespan,
    )


def guard(handler: Handler, spec: ServeSpec, secret: bool = True) -> Handler:
    """Returns a handler that first checks the token, and answers errors as JSON."""

    async def guarded(request: HttpRequest) -> ASGIApp:
        try:
            if secret:
                check_token(request, spec.token)
            return await handler(request)
        except GpuKerasError as error:
            return tell_error(error)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it

    return guarded


# Checks -------------------------------------------------------------------------------------------


def checking_host(app: ASGIApp, spec: ServeSpec) -> ASGIApp:
    """Returns an application that asks `check_host()` first: redirects repeat a wrong `Host`.

    Args:
        app: The application.
        spec: The options.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] == "http":
            try:
                check_host(HttpRequest(scope), spec)
            except ServiceError as error:
                answer = tell_error(error)
        await answer(scope, receive, send)

    return checked


def check_host(request: HttpRequest, spec: ServeSpec) -> None:
    """Refuses requests for another host than the server's own, see `ServeSpec.allowed_hosts()`.

    Raises:
        ServiceError: 403.
    """
    allowed = spec.allowed_hosts()
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
    if allowed and host not in allowed:
        message = "The request's `Host` is not this computer."
        raise http_error(HTTPStatus.FORBIDDEN, message, "Ask for 127.0.0.1 or localhost.")


def check_token(request: HttpRequest, token: str | None) -> None:
    """Refuses requests without the token, in a time that does not depend on what they have.

    Raises:
        ServiceError: 401.
    """
    if token is None:
        return
    kind, _, sent = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(sent.strip().encode(), token.encode())
    if kind.lower() != "bearer" or not same:
        raise http_error(
            HTTPStatus.UNAUTHORIZED,
            "The request lacks the server's token.",
            "Send it as the header `Authorization: Bearer TOKEN`.",
        )


def check_json(request: HttpRequest) -> None:
    """Refuses bodies that do not say that they are JSON; a web page's form cannot say so.

    Raises:
        ServiceError: 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise http_error(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "The body must be JSON.",
            "Send the header `Content-Type: application/json`.",
        )


class ByteBudget:
    """The bytes that bodies may have together, until their requests are answered.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        """Starts with no body."""
        self._left = most

    @contextlib.contextmanager
    def reserve(self) -> Iterator[Take]:
        """Yields the function by which a request takes bytes; at the end they are given back.

        It raises a ServiceError (503) where none are left.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if count > self._left:
                raise busy_error("The server has as many bodies in memory as it keeps.")
            self._left, taken = self._left - count, taken + count

        try:
            yield take
        finally:
            self._left += taken


async def read_body(request: HttpRequest, most: int, limit_s: float, take: Take) -> bytes:
    """Returns a request's body; `take` is told of its bytes as they come, see `ByteBudget`.

    Raises:
        ServiceError: if it is too large (413), which is said before the first byte of it where its
            length is announced, or too slow (408), or there is no room (503).
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise _too_large(most)
    try:
        return await asyncio.wait_for(_read_chunks(request, most, take), limit_s)
    except asyncio.TimeoutError:
        message = f"The body did not arrive within {limit_s:g} s."
        raise http_error(HTTPStatus.REQUEST_TIMEOUT, message) from None


async def _read_chunks(request: HttpRequest, most: int, take: Take) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > most:
            raise _too_large(most)
        take(len(chunk))
        body += chunk
    return bytes(body)


def _too_large(most: int) -> ServiceError:
    return http_error(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {most:,} bytes.",
        "Send fewer rows at a time, or start the server with a larger `max_body`.",
        arg="body",
        read_on=READ_ON * most,
    )


def lingering(response: Response, most: int) -> ASGIApp:
    """Returns an answer to a request whose body is still coming, the rest of which is thrown away.

    Clients that are still sending when the connection closes may not see the answer.

    Args:
        response: The answer.
        most: Bytes that are thrown away before the connection closes.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_open(message: Message) -> None:
            await send({**message, "more_body": True} if "body" in message else message)

        await response(scope, receive, send_open)
        # A client that waits for "100 Continue" sends no body after another answer.
        if b"expect" not in dict(scope["headers"]):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_discard(receive, most), BODY_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


async def _discard(receive: Receive, left: int) -> None:
    while left > 0:
        message = await receive()
        if not message.get("more_body"):
            return
        left -= len(message["body"])


# Answers ------------------------------------------------------------------------------------------


def tell_error(error: GpuKerasError) -> ASGIApp:
    """Answers an error as JSON; one that ends the connection where a body may be left unread."""
    status = status_of(error)
    headers = {}
    if "retry_after" in error.details:
        headers["Retry-After"] = str(error.details["retry_after"])
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.SERVICE_UNAVAILABLE,
    ):
        headers["Connection"] = "close"
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        LOG.error("%s: %s", type(error).__name__, error.message)
    response = JSONResponse(error_body(error), status, headers)
    most = error.details.get("read_on")
    return response if most is None else lingering(response, most)


async def tell_http_error(_: HttpRequest, error: Exception) -> Response:
    """Answers unknown paths and methods as JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    hint = "There are GET /health, GET /model and POST /predict."
    message = f"{HTTPStatus(status).phrase}."
    headers = getattr(error, "headers", None)
    return JSONResponse(error_body(http_error(status, message, hint)), status, headers)


async def tell_fault(_: HttpRequest, error: Exception) -> Response:
    """Answers a defect without a word about it; the server's own log has its class."""
    LOG.error("A request failed: %s", type(error).__name__)
    body: dict[str, Any] = {"error": {"code": "internal", "message": "The server failed."}}
    return JSONResponse(body, HTTPStatus.INTERNAL_SERVER_ERROR)
