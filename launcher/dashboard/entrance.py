"""Who is answered: whoever calls the page by a name that it has; and told of the run: whoever has the token."""

import secrets
from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from peer.telemetry.exposition import called_by

ASKED = "This needs the page's token: open the whole address that dfl-launch printed.\n"
ELSEWHERE = "This page is not at that name: open the address that dfl-launch printed.\n"
OPEN = "/"
"""The page itself, which holds nothing of the run: the token stands behind the `#` of its address, where no browser
sends it, and the page has to be there to read it."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Entrance:
    """Before the pages. names: hosts by which it may be called, so that no other site's name leads here; empty: any."""

    def __init__(self, inner: ASGIApp, token: str, names: Collection[str]):
        self.inner, self.token, self.names = inner, token, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if self.names and called_by(request.headers.get("host", "")) not in self.names:
            await PlainTextResponse(ELSEWHERE, 421, HEADERS)(scope, receive, send)
        elif request.url.path != OPEN and not self.is_known(request):
            await PlainTextResponse(ASKED, 403, HEADERS)(scope, receive, send)
        else:
            await self.inner(scope, receive, send)

    def is_known(self, request: Request) -> bool:
        given = request.query_params.get("token", "")
        return secrets.compare_digest(given.encode(), self.token.encode())
