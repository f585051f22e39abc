"""What one browser is told, as server-sent events: all of it first, then what has changed since it was told last.

document: {document, figures}, the page anew     now: what peers do, as `Now.since`     ended: {said}     beat: {}
"""

import asyncio
import json
from collections.abc import AsyncIterator

from launcher.dashboard.feed import Feed
from launcher.dashboard.now import Now

BEAT = 10.0
"""Seconds after which a browser hears something, if only that the launcher still runs."""


async def events(feed: Feed) -> AsyncIterator[bytes]:
    """The next is made when the browser has taken the one before."""
    told, drawn = Now(), 0
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
                await asyncio.wait_for(following.wait(), BEAT)
            except TimeoutError:
                yield framed("beat", "{}")


def framed(name: str, data: str) -> bytes:
    """data: JSON in one line."""
    return f"event: {name}\ndata: {data}\n\n".encode()
