"""The server of the live page: beside a launcher in its loop, and never in its way.

Its address is one of this machine, and it is taken before anything else begins: a run does not start and then find that
its page cannot be shown. What goes wrong with the page later ends the page alone, and the run goes on. starlette and
uvicorn are imported only when a page is shown.
"""

import asyncio
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.certificates import AskingBundle
from launcher.monitor.federation import FederationView
from launcher.page.charts import vega_script
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.network.transport.addresses import names_of, split
from peer.spec.blocks import MAX_PORT
from peer.spec.federation import Spec
from peer.text import one_line

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from launcher.dashboard.feed import Feed


ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9.-]+):)?(?P<port>[0-9]{1,5})")


def read_address(text: str | None) -> str:
    """The HOST:PORT of `--at HOST:PORT`, `--at PORT` or nothing; port 0 stands for one that is free. InputError for
    anything else."""
    found = ADDRESS.fullmatch("0" if text is None else text)
    if not found or int(found["port"]) > MAX_PORT:
        raise InputError(f"--at {text}: give HOST:PORT, such as 127.0.0.1:8080, or leave it out")
    return f"{found['host'] or '127.0.0.1'}:{int(found['port'])}"


def taken(address: str) -> socket.socket:
    """A socket that listens there from now on; InputError where that cannot be."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(*split(address), type=socket.SOCK_STREAM)[0]
        with ExitStack() as unless_it_listens:
            made = unless_it_listens.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(where)
            made.listen()
            unless_it_listens.pop_all()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--at {address}: {why}; give another HOST:PORT, or none for a free port") from None
    return made


def dashboard_address(*, dashboard: bool, at: str | None, quiet: bool) -> str | None:
    """What `run --dashboard --at HOST:PORT` stands for; None without a dashboard."""
    if not dashboard:
        if at is not None:
            raise InputError(f"--at {at} says where the live page is; add --dashboard to have one")
        return None
    if quiet:
        raise InputError("--quiet would hide the address of the --dashboard; leave one of them out")
    return read_address(at)


MAX_CONNECTIONS = 100
"""Connections at a time; more are shut."""
REQUEST_TIMEOUT_S = 5
"""Seconds in which a connection must have asked for something."""
UNTRUSTED_TIMEOUT_S = 60
"""Seconds that a connection may last without the token, whatever it asks for or leaves unread."""
CLOSE_TIMEOUT_S = 2
"""Seconds that browsers have at the end to take what is still to be told."""
INSTALL_HINT = "it needs starlette and uvicorn; install them with: pip install -c constraints.txt 'dfl[dashboard]'"


@dataclass(frozen=True)
class Dashboard:
    """An address, HOST:PORT, that is taken from `opened` to the end. charts: the script that draws them."""

    address: str
    listening: socket.socket
    token: str
    charts: str

    @property
    def url(self) -> str:
        return f"http://{self.address}/#{self.token}"

    @asynccontextmanager
    async def showing(self, feed: "Feed", say: Callable[[str], None]) -> AsyncIterator["Feed"]:
        """Serve the page beside a block. What goes wrong with it ends the page alone, and is said."""
        from launcher.dashboard.site import site

        server = _server(site(feed, self.charts, self.token, names_of(self.address)))
        serving = asyncio.create_task(server.serve(sockets=[self.listening]))
        feeding = asyncio.create_task(feed.run())
        for task in (serving, feeding):
            task.add_done_callback(lambda task: _account(task, feed, say))
        try:
            yield feed
        finally:
            feeding.cancel()
            feed.end("The launcher has ended.")
            server.should_exit = True
            await asyncio.wait((serving, feeding), timeout=2 * CLOSE_TIMEOUT_S)
            serving.cancel()
            await asyncio.wait((serving, feeding))


@contextmanager
def opened(address: str | None) -> Iterator[Dashboard | None]:
    """Take the address, if one is wanted. InputError where that, or the page, cannot be."""
    if address is None:
        yield None
        return
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise InputError(f"the dashboard: {INSTALL_HINT}")
    charts = vega_script()
    with taken(address) as listening:
        at = f"{address.rpartition(':')[0]}:{listening.getsockname()[1]}"
        yield Dashboard(at, listening, secrets.token_urlsafe(16), charts)


@asynccontextmanager
async def beside(
    dashboard: Dashboard | None,
    say: Callable[[str], None],
    spec: Spec,
    federation: FederationView,
    chain: AskingBundle,
    files: RunFiles | None = None,
) -> AsyncIterator["Feed | None"]:
    """Show a federation on a page during the block, if that is wanted. chain and files are those of `Feed`."""
    if dashboard is None:
        yield None
        return
    from launcher.dashboard.feed import Feed  # or every start would wait for it

    say(f"dashboard: {dashboard.url}")
    async with dashboard.showing(Feed(spec, federation, chain, files), say) as feed:
        yield feed


def _server(app: "ASGIApp") -> "uvicorn.Server":
    import uvicorn

    class SignalFreeServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Capture no signals, as they are the launcher's."""
            yield

    return SignalFreeServer(
        uvicorn.Config(
            app,
            http=patient_for_a_while(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        )
    )


def patient_for_a_while() -> "type[asyncio.Protocol]":
    """uvicorn's own, but a connection that is idle, or one too many, does not keep a descriptor of the launcher's."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from launcher.dashboard.site import WATCHES

    class ImpatientProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > MAX_CONNECTIONS:
                transport.abort()
            self.limits = (
                self.loop.call_later(REQUEST_TIMEOUT_S, lambda: None if self.cycle else transport.abort()),
                self.loop.call_later(UNTRUSTED_TIMEOUT_S, lambda: None if self.watches else transport.abort()),
            )

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for one in self.limits:
                one.cancel()  # or a flood of short connections would be held in memory

        @property
        def watches(self) -> bool:
            """Whether it was admitted to the events."""
            return bool(self.cycle and self.cycle.scope["state"].get(WATCHES))

    return ImpatientProtocol


def _account(task: "asyncio.Task[None]", feed: "Feed", say: Callable[[str], None]) -> None:
    """What has gone wrong with the page."""
    if not task.cancelled() and (error := task.exception()):
        said = f"the dashboard has failed, and the run goes on: {one_line(f'{type(error).__name__}: {error}')}"
        feed.end(said)
        say(said)
