"""The page and its stream of events: all that is answered. Nothing can be sent there.

Answered is any request that calls the page by a name that it has; of the run it is told only with the token.

A browser gets server-sent events: all of it first, then what has changed since it was told last.

document: {document, figures}, the page anew     now: what peers do, as `since` says     ended: {said}     beat: {}

For a peer that somebody has chosen it asks at /peers/ID: {machine, log}.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Collection
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from launcher.dashboard.feed import Feed, LiveSnapshot
from launcher.page.html import page
from peer.telemetry.metrics import called_by

TOKEN_NEEDED = "Token needed: open the full address that dfl-launch printed.\n"
WRONG_NAME = "Unknown host name: open the address that dfl-launch printed.\n"
OPEN_PATH = "/"
"""The page itself, which holds nothing of the run: the token stands behind the `#` of its address, where no browser
sends it, and the page has to be there to read it."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AccessControl:
    """Guards the pages. names: hosts by which they may be called, so no other site's name leads here; empty: any."""

    def __init__(self, app: ASGIApp, token: str, names: Collection[str]):
        self.app, self.token, self.names = app, token, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if self.names and called_by(request.headers.get("host", "")) not in self.names:
            await PlainTextResponse(WRONG_NAME, 421, HEADERS)(scope, receive, send)
        elif scope["path"] != OPEN_PATH and not self.is_known(request):  # `request.url` is made of `Host`, too
            await PlainTextResponse(TOKEN_NEEDED, 403, HEADERS)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def is_known(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return secrets.compare_digest(given.encode(), self.token.encode())


BEAT_SECONDS = 10.0
"""Seconds after which a browser hears something, if only that the launcher still runs."""


async def events(feed: Feed) -> AsyncIterator[bytes]:
    """The next is made when the browser has taken the one before."""
    told, drawn = LiveSnapshot(), 0
    with feed.watched():
        while True:
            following = feed.following
            if feed.drawings > drawn:
                drawn = feed.drawings
                yield framed("document", feed.written)
            if news := feed.now.since(told):
                told = feed.now
                yield framed("now", json.dumps(news, separators=(",", ":")))
            if following.is_set():
                continue  # more came while the browser was slow
            if feed.ended:
                yield framed("ended", json.dumps({"said": feed.ended}))
                return
            try:
                await asyncio.wait_for(following.wait(), BEAT_SECONDS)
            except TimeoutError:
                yield framed("beat", "{}")


def framed(name: str, data: str) -> bytes:
    """data: JSON in one line."""
    return f"event: {name}\ndata: {data}\n\n".encode()


WATCHES = "watches"
"""The key in the state of a request that gets the events."""


def site(feed: Feed, library: str, token: str, names: Collection[str]) -> Starlette:
    """names: as `AccessControl` takes them."""
    parts = files("launcher.dashboard")
    markup, style, script = (parts.joinpath(f"live.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    made = page(None, library, markup, style, script, connect="'self'")

    async def show(request: Request) -> Response:
        return HTMLResponse(made, headers=HEADERS)

    async def stream(request: Request) -> Response:
        request.scope["state"][WATCHES] = True
        return StreamingResponse(events(feed), media_type="text/event-stream", headers=HEADERS)

    async def one(request: Request) -> Response:
        id = request.path_params["id"]
        known = id in feed.spec.ids
        return JSONResponse(await feed.of_peer(id) if known else None, 200 if known else 404, HEADERS)

    routes = [Route("/", show), Route("/events", stream), Route("/peers/{id}", one)]
    return Starlette(routes=routes, middleware=[Middleware(AccessControl, token=token, names=names)])
