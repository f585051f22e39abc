"""Who may see the page: whoever has its token, and calls it by a name that it has."""

import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

ASKED = "This page needs its token: open the whole address that dfl-launch printed.\n"
ELSEWHERE = "This page is not at that name: open the address that dfl-launch printed.\n"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Entrance:
    """Before the pages. names: hosts by which it may be called, so that no other site's name leads here; empty: any.

    cookie: in which a browser keeps the token that it came with.
    """

    def __init__(self, inner: ASGIApp, token: str, cookie: str, names: Collection[str]):
        self.inner, self.token, self.cookie, self.names = inner, token, cookie, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if self.names and host_of(request) not in self.names:
            await PlainTextResponse(ELSEWHERE, 421, HEADERS)(scope, receive, send)
        elif not self.is_known(request):
            await PlainTextResponse(ASKED, 403, HEADERS)(scope, receive, send)
        else:
            await self.inner(scope, receive, send)

    def is_known(self, request: Request) -> bool:
        given = (request.query_params.get("token"), request.cookies.get(self.cookie))
        return any(one and secrets.compare_digest(one.encode(), self.token.encode()) for one in given)


def host_of(request: Request) -> str | None:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return None
