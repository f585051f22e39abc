"""The page and its stream of events: all that is answered, and nothing can be sent there."""

from collections.abc import Collection
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from launcher.dashboard.entrance import HEADERS, Entrance
from launcher.dashboard.feed import Feed
from launcher.dashboard.stream import events
from launcher.page.html import Addition, page

WATCHES = "watches"
"""In the state of a request that is told the events."""


def site(feed: Feed, library: str, token: str, names: Collection[str]) -> Starlette:
    """names: as `Entrance` takes them."""
    made = page(None, library, live())

    async def show(request: Request) -> Response:
        return HTMLResponse(made, headers=HEADERS)

    async def stream(request: Request) -> Response:
        request.scope["state"][WATCHES] = True
        return StreamingResponse(events(feed), media_type="text/event-stream", headers=HEADERS)

    entrance = Middleware(Entrance, token=token, names=names)
    return Starlette(routes=[Route("/", show), Route("/events", stream)], middleware=[entrance])


def live() -> Addition:
    parts = files("launcher.dashboard")
    markup, style, script = (parts.joinpath(f"live.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    return Addition(markup, style, script, connect="'self'")
