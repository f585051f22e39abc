"""What the launcher sees of a peer, without a peer: the files of the contract, in a few milliseconds a round.

FAKE_PEERS in the environment is JSON: how each peer misbehaves, by id.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ruamel.yaml import YAML


class Terminated(Exception):
    """SIGTERM came, or SIGINT."""


def terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


class Events:
    def __init__(self, path: Path) -> None:
        self.file = path.open("a")

    def say(self, event: str, **fields: Any) -> None:
        self.file.write(json.dumps({"time": time.time(), "event": event} | fields) + "\n")
        self.file.flush()


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, terminate)
    path = Path(argv[argv.index("--config") + 1])
    config = YAML(typ="safe").load(path)
    spec = YAML(typ="safe").load(path.parent / config["federation"])
    behaviours = json.loads(os.environ.get("FAKE_PEERS", "{}"))
    behaviour = behaviours.get(config["id"], "")
    out = path.parent / config["out"]
    events = Events(out / "events.jsonl")
    (out / "starts").open("a").write("x")
    members = [member["id"] for member in spec["ring"] if bears(spec, behaviours.get(member["id"], ""))]
    if len(members) < len(spec["ring"]) and not behaviour:
        events.say("view", number=1, members=members, first=1, planned=False, entrants=[], reason="silence")
    try:
        return live(config["id"], spec, out, events, behaviours)
    except Terminated as told:
        number = signal.Signals(told.args[0])
        events.say("stopped", signal=number.name)
        return 128 + number


def bears(spec: dict[str, Any], behaviour: str) -> bool:
    """Whether a peer stays a member all the time."""
    return spec["on_loss"] != "bypass" or behaviour in ("", "wrong")


def live(id: str, spec: dict[str, Any], out: Path, events: Events, given: dict[str, str]) -> int:
    behaviour = given.get(id, "")
    first_start = (out / "starts").stat().st_size == 1
    checkpoint = out / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"{id} begins after round {done}")
    if behaviour.startswith("wrong"):
        time.sleep(0.7 if behaviour == "wrong later" else 0)
        print("peer: the data file is truncated", file=sys.stderr)
        return 2
    if behaviour == "lies":  # plays along, which its host hides
        time.sleep(0.7)
        return 2
    if behaviour == "expired":
        print("peer1.pem: expired on 2026-01-02 03:04 UTC; make new ones", file=sys.stderr)
        return 75
    if behaviour == "gives up":
        events.say("failed", message="peer0 never came")
        return 1
    if done:
        events.say("resumed", round=done)
    never = [other for other, how in given.items() if how.startswith("wrong") or how == "expired"]
    if absent := [other for other in never if bears(spec, given[other])]:
        events.say("state", state="joining", round=done + 1)  # no round goes by without all neighbours
        awaited = [{"id": other, "address": None, "reason": "no answer"} for other in absent]
        events.say("waiting", cause="join", sentence="waiting", **{"for": awaited})
        time.sleep(60)
    history = []
    for round in range(1, spec["rounds"] + 1):
        record = {
            "round": round,
            "accuracy": {
                "matched": min(1.0, 0.1 * round),
                "global": min(1.0, 0.05 * round),
                "paper": None,
                "local": None,
            },
            "loss": 1.0 / round,
            "seconds": {"train": 0.02, "communicate": 0.01, "evaluate": 0.01},
            "bytes_sent": 100 * round,
            "bytes_received": 100 * round,
            "tensor_bytes_sent": 80 * round,
        }
        history.append(record)
        if round <= done:
            continue
        events.say("state", state="training", round=round)
        time.sleep(60 if behaviour == "hangs" and round == 2 else 0.02)
        if behaviour == "crashes" or (behaviour == "crashes once" and first_start and round == 2):
            print("about to crash", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        # As a real one does: SIGTERM may come between a file's truncation and its content.
        (out / "checkpoint.part").write_text(str(round))
        (out / "checkpoint.part").replace(checkpoint)
        events.say("round", **record)
        if behaviour == "loses its port" and first_start and round == 2:
            print("dfl-peer: cannot listen at 127.0.0.1:7701: address already in use", file=sys.stderr)
            return 2
    finish(id, spec, out, history)
    events.say("done")
    return 0


def finish(id: str, spec: dict[str, Any], out: Path, history: list[dict[str, Any]]) -> None:
    behaviours = json.loads(os.environ.get("FAKE_PEERS", "{}"))
    ids = [member["id"] for member in spec["ring"]]
    members = [id for id in ids if bears(spec, behaviours.get(id, ""))]
    last = history[-1]
    result = {
        "id": id,
        "samples": 100,
        "rounds": spec["rounds"],
        "accuracy": last["accuracy"],
        "model_sha256": hashlib.sha256(id.encode()).hexdigest(),
        **{key: last[key] for key in ("bytes_sent", "bytes_received", "tensor_bytes_sent", "seconds")},
        "sent_to": {},
        "ring": members,
        "ring_cost": {"before": None, "after": None},
        "history": history,
    }
    (out / "result.json").write_text(json.dumps(result))
    quiet = {"edges": {}, "sent": [], "received": []}
    view = {"view": 1} if len(members) < len(ids) else {}
    rounds = [{"round": 0}, *({"round": record["round"], **view} for record in history)]
    (out / "audit.jsonl").write_text("".join(json.dumps(round | quiet) + "\n" for round in rounds))
