"""Tiny children for the fork server's tests: what a peer's main would be, without a peer."""

import os
import signal
import sys
import time


def main(argv: list[str]) -> int | None:
    match argv:
        case ["exit", code]:
            return int(code)
        case ["raise"]:
            raise RuntimeError("a child's own mistake")
        case ["leave", text]:
            sys.exit(text)
        case ["say"]:
            print("on stdout", os.environ.get("COLOUR"))
            print("on stderr", sys.argv, file=sys.stderr)
            return None
        case ["sleep"]:
            print("asleep", flush=True)
            time.sleep(60)
            return 0
        case ["stubborn"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("stubborn", flush=True)
            while True:
                time.sleep(60)
        case ["polite"]:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            print("polite", flush=True)
            signal.pause()
            return 0
        case ["tells"]:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda told, _: print(signal.Signals(told).name, flush=True))
            print("tells", flush=True)
            while True:
                signal.pause()
        case ["self", name]:
            return {"pid": os.getpid, "session": lambda: os.getsid(0)}[name]() % 200
        case _:
            raise AssertionError(argv)
