"""A protocol of the user's own, named `module:Name`: the example of the README, and what it cannot do."""

import gc
import json
from pathlib import Path

import pytest
import torch
from federations import federate, resolve
from ring_medians import assert_extractors_alone_left, assert_medians_of_three

from launcher.cli import main
from peer.errors import FailedError, InputError
from peer.protocols.base import State

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "my_protocol:RingMedian"


def test_the_example_takes_the_median_and_keeps_the_head(tmp_path: Path) -> None:
    run = federate(
        tmp_path,
        {"name": NAME, "epochs": 2},
        4,
        code=str(EXAMPLES),
        model={"name": "mlp"},
        init="independent",
    )
    assert_medians_of_three(run, 2)
    assert_extractors_alone_left(run)


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({"name": "my_protocol:Nothing"}, "has no `Nothing`"),
        ({"name": "my_protocol:RingMedain"}, "did you mean `RingMedian`"),
        ({"name": "no_such_module:X"}, "no module `no_such_module`"),
        ({"name": NAME, "epoch": 2}, "did you mean `epochs`"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, protocol: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(tmp_path, protocol, 3, code=str(EXAMPLES))


WRONG = """
import asyncio
import contextlib
import random
import torch
from peer import Protocol, Record, Share
from peer import SGD, Phase
class Base(Protocol):
    paper, min_peers = "none", 3
    def shares(self, rounds): return (Share("extractor"),)
    def local(self): return (Phase("model", 1, SGD()),)
class Misspelt(Base):
    def shares(self, rounds): return (Share("extractr"),)
    async def round(self, peer): await peer.exchange("extractr")
class Undeclared(Base):
    async def round(self, peer): await peer.exchange("model")
class Moving(Base):
    records = (Record("order"),)
    async def round(self, peer): await peer.reorder(peer.ring[::-1], 0.0, 0.0)
class Talkative(Base):
    async def round(self, peer): await peer.exchange("extractor", a=1.0)
class Uneven(Base):
    async def round(self, peer):
        await peer.exchange("extractor")
        if peer.id != "peer1": await peer.exchange("extractor")
class Waiting(Base):
    async def round(self, peer):
        peer.extractor.copy_(await peer.receive_token("extractor"))
        await peer.pass_token("extractor")
class Chain(Base):
    async def round(self, peer):
        if peer.position: peer.extractor.copy_(await peer.receive_token("extractor"))
        if peer.right != peer.ring[0]: await peer.pass_token("extractor")
class Elected(Base):
    records = (Record("votes", 1),)
    async def round(self, peer):
        votes = await peer.gather("votes", torch.tensor([float(peer.position)]))
        leads = all(votes[peer.id] > votes[other] for other in peer.members if other != peer.id)
        if not leads: await peer.receive_token("extractor")
        await peer.pass_token("extractor")
        if leads: await peer.receive_token("extractor")
class Forgetful(Base):
    async def round(self, peer): peer.exchange("extractor")
class Cancelled(Base):
    async def round(self, peer):
        task = asyncio.ensure_future(asyncio.sleep(9))
        await asyncio.sleep(0)
        task.cancel()
        await task
class Grouped(Base):
    async def round(self, peer):
        async with asyncio.TaskGroup() as group:
            group.create_task(peer.exchange("model"))
class Exhausted(Base):
    async def round(self, peer): next(iter(()))
class Overlapping(Base):
    async def round(self, peer):
        await asyncio.gather(peer.weighted_mean("extractor", 1.0), peer.train(*self.local()))
class Overlapped(Base):
    async def round(self, peer):
        await asyncio.gather(peer.train(*self.local()), peer.weighted_mean("extractor", 1.0))
class Heedless(Base):
    async def round(self, peer): peer.train(*self.local())
class Mean(Base):
    async def round(self, peer): peer.weighted_mean("extractor", 1.0)
class Racing(Base):
    async def round(self, peer):
        task = asyncio.create_task(peer.weighted_mean("extractor", 1.0))
        await asyncio.sleep(0)
        if peer.rehearsal: await task
class Hasty(Base):
    async def round(self, peer): peer.exchange("extractor")[peer.left]
class Short(Base):
    records = (Record("two", 2),)
    async def round(self, peer): await peer.gather("two", torch.ones(1))
class Secret(Base):
    async def round(self, peer): await peer.gather("secret", torch.ones(1))
class Own(Base):
    def shares(self, rounds): return (Share("q", size=5), Share("extractor"))
class Doubles(Own):
    async def round(self, peer):
        peer.state["q"] = peer.proportions[:3]
        await peer.exchange("q")
class Flat(Own):
    async def round(self, peer):
        peer.state["q"] = torch.zeros(2, 3)
        await peer.exchange("q")
class Long(Own):
    async def round(self, peer):
        peer.state["q"] = torch.zeros(6)
        await peer.exchange("q")
class Unlike(Base):
    def shares(self, rounds): return (Share("q", like="head"),)
    async def round(self, peer):
        peer.state["q"] = torch.zeros(6)
        await peer.exchange("q")
class Floats(Own):
    async def round(self, peer): peer.state["q"] = 0.5
class Wrong(Own):
    async def round(self, peer): return peer.rigth
class Replacing(Own):
    async def round(self, peer): peer.extractor = torch.zeros(3)
class Far(Own):
    async def round(self, peer): await peer.exchange("extractor", to={"peer0"})
class Each(Own):
    async def round(self, peer): await peer.exchange("extractor", to={peer.left: torch.zeros(2)})
class Aliased(Own):
    async def round(self, peer): peer.state["m"] = peer.extractor
class Twice(Own):
    async def round(self, peer):
        peer.state["a"] = torch.zeros(4)
        peer.state["b"] = peer.state["a"][:2]
class Many(Own):
    async def round(self, peer):
        for pending in [peer.exchange("extractor") for _ in range(4)]: await pending
class Beneath(Own):
    records = (Record("n"),)
    async def round(self, peer):
        await asyncio.gather(peer.weighted_mean("extractor", 1.0), peer.gather("n", torch.ones(1)))
class Unseeded(Own):
    async def round(self, peer): peer.extractor.mul_(random.random())
KNOWN = []
class Elsewhere(Own):
    async def round(self, peer):
        KNOWN.append(1.0)
        peer.state["count"] = torch.tensor(len(KNOWN))
class Seeded(Own):
    async def round(self, peer):
        peer.extractor.mul_(float(await peer.compute(torch.rand, 1)))
        peer.state["secret"] = await peer.once(lambda: torch.tensor([random.random(), float("nan")]))
        peer.extractor.mul_(float(peer.shared_generator("factor").random()))
class NotFinite(Own):
    def shares(self, rounds): return (Share("extractor", scalars=1),)
    async def round(self, peer): await peer.exchange("extractor", a=float("nan"))
class NanRecord(Own):
    records = (Record("n"),)
    async def round(self, peer): await peer.gather("n", torch.tensor([float("inf")]))
class Edgeless(Own):
    graph = property(lambda self: "none")
    async def round(self, peer): await peer.weighted_mean("extractor", 1)
class Tokenless(Edgeless):
    async def round(self, peer): await peer.pass_token("extractor")
class Empty(Edgeless):
    async def round(self, peer): await peer.receive_token("extractor")
class NotesRound(Own):
    async def round(self, peer): peer.note(round=1.0)
class NotesText(Own):
    async def round(self, peer): peer.note(verdict="good")
class NotesTable(Own):
    async def round(self, peer): peer.note(table=torch.zeros(2, 2))
class Async(Own):
    async def round(self, peer): await peer.compute(self.local_async)
    async def local_async(self): ...
class NoFunction(Own):
    async def round(self, peer): await peer.compute(torch.zeros(2))
class Letters(Own):
    async def round(self, peer): await peer.exchange("extractor", to=peer.left)
class Number(Own):
    async def round(self, peer): await peer.once(lambda: 0.5)
class Negative(Own):
    async def round(self, peer): await peer.weighted_mean("extractor", -1.0)
class Ragged(Own):
    by_peer = {"seen": 0.0}
    async def round(self, peer): peer.state["seen"] = torch.zeros(2)
class Unkept(Own):
    unchanging = ("weihgts",)
    async def round(self, peer): peer.state["weights"] = torch.ones(2)
class Raising(Base):
    async def round(self, peer): raise ValueError("boom")
class Bunch(Base):
    async def round(self, peer): await peer.train(self.local())
class Untrained(Base):
    async def round(self, peer): await peer.train()
class Nameless(Base):
    async def round(self, peer): await peer.exchange(peer.extractor)
class Beside(Base):
    async def round(self, peer): await peer.exchange("extractor", torch.tensor(0.3))
class Listed(Base):
    records = (Record("two", 2),)
    async def round(self, peer): await peer.gather("two", [1.0, 2.0])
class Weightless(Base):
    async def round(self, peer): await peer.weighted_mean("extractor", None)
class Counting(Base):
    async def round(self, peer): self.count = 1
class Dotted(Base):
    async def round(self, peer): peer.state.memory = torch.zeros(2)
class Hollow(Base):
    async def round(self, peer): peer.state["memory"].add_(1)
class Made(Base):
    async def round(self, peer): await peer.once(torch.zeros(2))
class Keeping(Base):
    async def round(self, peer): peer.memory = torch.zeros(2)
class Hiding(Base):
    async def round(self, peer):
        with contextlib.suppress(Exception): await peer.weighted_mean("model", 1.0)
class Hidden(Base):
    async def round(self, peer):
        with contextlib.suppress(Exception): peer.exchange("model")
class Unheard(Base):
    async def round(self, peer):
        task = asyncio.create_task(peer.weighted_mean("model", 1.0))
        await peer.exchange("extractor")
class Sparse(Base):
    async def round(self, peer): peer.state["m"] = torch.eye(2).to_sparse()
class Wide(Base):
    async def round(self, peer): peer.state["m"] = torch.zeros(2, dtype=torch.complex128)
class Meta(Base):
    async def round(self, peer): peer.state["m"] = torch.zeros(2, device="meta")
class Expanded(Base):
    async def round(self, peer): peer.state["m"] = torch.zeros(1).expand(2)
class Untaken(Base):
    async def round(self, peer):
        if peer.position == 0: await peer.pass_token("extractor")
class Leaving(Base):
    async def round(self, peer): raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Misspelt", "sends `extractr` in round 1, which is neither extractor, head, model nor kept in `peer.state`"),
        (
            "Undeclared",
            "sends `model` in round 1, and does not declare that; add it to `shares`, which has",
        ),
        ("Moving", "reorders the ring in round 1; declare it: `reorders = True`"),
        ("Talkative", "sends `extractor` in round 1 with 1 scalar (a), and declares 0; say so in `shares`"),
        ("Short", "gathers `two` in round 1 with 1 number, and declares 2; say so in `records`"),
        ("Secret", "gathers `secret` in round 1, and does not declare that; add it to `records`"),
        ("Raising", "ValueError: boom ("),
        ("Bunch", "gives `train` a tuple in round 1; give it phases: await peer.train(*self.local())"),
        ("Untrained", "gives `train` nothing in round 1; give it phases"),
        ("Nameless", "sends a Tensor in round 1; give its name, such as"),
        (
            "Beside",
            "exchanges `extractor` in round 1 with to=Tensor; name the vector alone, and numbers",
        ),
        ("Listed", "gathers `two` in round 1 with a list; give a tensor: torch.tensor([...])"),
        ("Weightless", "with weight None; a weight is a number from 0 up"),
        ("Counting", "`self.count` cannot be set, as a protocol never changes; write peer.state['count']"),
        ("Dotted", "peer.state keeps tensors by a name in brackets: "),
        ("Hollow", "peer.state keeps nothing as 'memory'; write peer.state['memory'] = ... before"),
        ("Doubles", "sends `q` in round 1 as float64; only float32 leaves a peer here: write .float()"),
        ("Flat", "sends `q` in round 1 with shape (2, 3); make it a vector of one dimension: .flatten()"),
        ("Long", "sends `q` in round 1 with 6 values, and declares at most 5; say so in `shares`"),
        ("Unlike", "sends `q` in round 1 with 6 values, and declares it like='head', which has"),
        ("Floats", "peer.state['q'] = float: only tensors are kept, by a name; write torch.tensor(...)"),
        ("Wrong", "`peer` has no `rigth`; did you mean `right`?"),
        ("Replacing", "`peer.extractor` is a view of the model and cannot be replaced; write into it"),
        ("Far", "sends `extractor` to peer0 in round 1, and the neighbours are"),
        ("Each", "gives each neighbour its own `extractor` in round 1"),
        ("Letters", "exchanges `extractor` in round 1 with to='peer"),
        ("Number", "draws a float by `once` in round 1; return a tensor: torch.tensor(...)"),
        ("Aliased", "keeps in peer.state['m'] a view of the model; write .clone(), or a crash would change the result"),
        ("Twice", "keeps in peer.state['b'] a view of peer.state['a']; write .clone()"),
        ("Many", "has 3 exchanges under way in round 1 and begins another; `await` one of them first"),
        ("Beneath", "calls `gather` in round 1 while `weighted_mean` is under way; `await` that one first"),
        ("NotFinite", "sends a=nan beside `extractor` in round 1; only finite numbers leave a peer"),
        ("NanRecord", "gathers `n` in round 1 with numbers that are not finite"),
        ("Edgeless", "calls `weighted_mean` in round 1, and its graph is `none`; let `graph` return another"),
        ("Tokenless", "calls `pass_token` in round 1, and its graph is `none`; let `graph` return another"),
        ("Empty", "calls `receive_token` in round 1, and its graph is `none`; let `graph` return another"),
        ("NotesRound", "notes a `round`; that name is the round's own: choose another"),
        ("NotesText", "notes a str as `verdict` in round 1; note a number or a list of numbers"),
        ("NotesTable", "notes a Tensor as `table` in round 1; note a number or a list of numbers"),
        ("Async", "gives `compute` an async function in round 1; give it a plain function and its arguments"),
        ("NoFunction", "gives `compute` a Tensor in round 1; give it a plain function and its arguments"),
        ("Overlapping", "calls `train` in round 1 while `weighted_mean` is under way; `await` that one first"),
        ("Overlapped", "calls `weighted_mean` in round 1 while `train` is under way; `await` that one first"),
        ("Cancelled", "CancelledError ("),
        ("Grouped", "sends `model` in round 1, and does not declare that"),
        ("Exhausted", "StopIteration ("),
        ("Hiding", "sends `model` in round 1, and does not declare that"),
        ("Hidden", "sends `model` in round 1, and does not declare that"),
        ("Unheard", "sends `model` in round 1, and does not declare that"),
        ("Sparse", "peer.state['m'] = a tensor that is sparse, nested or quantized; keep a plain one"),
        ("Wide", "peer.state['m'] = a tensor that is complex128, which no checkpoint can hold"),
        ("Meta", "keeps in peer.state['m'] a tensor of the device `meta`, which has no values"),
        ("Expanded", "peer.state['m'] = a tensor that repeats values of one place in memory, as expand() does"),
        ("Negative", "takes the mean of `extractor` in round 1 with weight -1.0; a weight is a number from 0 up"),
        ("Ragged", "declares `seen` as by_peer, and its shape is (2,); it needs a row for each of the 3 members"),
    ],
)
def test_a_wrong_one_is_told_by_check_and_ends_a_run_in_a_sentence(
    name: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "wrong_ones.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text(f"protocol: wrong_ones:{name}\nrounds: 2\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed
    with pytest.raises(ExceptionGroup) as told:
        federate(tmp_path / "run", {"name": f"wrong_ones:{name}"}, 3, trace=False)
    gc.collect()
    assert "never retrieved" not in caplog.text
    failed = told.value.exceptions[0]
    assert isinstance(failed, FailedError)
    assert sentence in str(failed)
    assert f"`wrong_ones:{name}`" in str(failed)


@pytest.mark.parametrize(
    ("name", "call"), [("Heedless", "train"), ("Mean", "weighted_mean"), ("Racing", "weighted_mean")]
)
def test_a_call_that_nobody_waits_for_ends_a_run(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unawaited_ones.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExceptionGroup) as told:
        federate(tmp_path / "run", {"name": f"unawaited_ones:{name}"}, 3, trace=False)
    assert f"calls `{call}` in round 1 and does not wait for it; write `await`" in str(told.value.exceptions[0])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Uneven",
            "peer0 calls exchange('extractor') in round 1 and peer1 calls exchange('extractor') in round 2; "
            "every peer must make the same calls",
        ),
        ("Hasty", "calls `exchange` and does not wait for it; write `await` before the call"),
        ("Forgetful", "calls `exchange` and does not wait for it; write `await` before the call"),
        ("Made", "gives `once` a Tensor in round 1; give it a plain function and its arguments: await peer.once(f)"),
        ("Keeping", "sets `peer.memory`, which a crash would lose; write peer.state['memory'] = ..."),
        (
            "Unseeded",
            "comes to other values of the model when it plays a round again, as after a crash",
        ),
        ("Elsewhere", "comes to other values of peer.state['count'] when it plays a round again"),
        ("Leaving", "fails in a dry run, in round 1: SystemExit: 3 ("),
        ("Waiting", "in round 1 peer0 and peer1 and peer2 would wait for ever for a token that nobody passes; one"),
        ("Untaken", "in round 1 nobody takes the token `extractor` that peer0 passes; its right neighbour must call"),
        ("Unkept", "declares 'weihgts' as unchanging and keeps nothing under that name; write"),
    ],
)
def test_what_a_run_would_not_tell_is_found_by_check(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "uneven_ones.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text(f"protocol: uneven_ones:{name}\nrounds: 2\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_parameter_is_kept_as_a_crash_would_leave_it() -> None:
    state = State(weights=torch.nn.Parameter(torch.ones(2)))
    assert state["weights"].mul_(2).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["Seeded", "Chain", "Elected"])
def test_a_right_one_is_not_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right_ones.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text(f"protocol: right_ones:{name}\nrounds: 2\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == 0


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("def shares(self, rounds): return (Share('a', 1), Share('a'))", "`a` is declared twice for the same rounds"),
        (
            "records = (Record('a'),)\n    def shares(self, rounds): return (Share('a'),)",
            "are called `a`; give each",
        ),
        ("graph = property(lambda self: 'star')", "is 'star'; it is one of none, directed ring, ring"),
        pytest.param(
            "graph: str = 'complete'",
            "is a hyperparameter, which nothing reads; write `graph: ClassVar = ...`",
            marks=pytest.mark.filterwarnings("ignore:Field name"),
        ),
        ("gamma: float = 0.5", "is a hyperparameter that its code never reads, so that it changes nothing; use it, as"),
        ("def records(self): return ()", "; write it as a value of the class, such as `records = (Record("),
        ("shares = (Share('model'),)", "`shares` is a method; write `def shares(self, rounds): return ...`"),
        ("graph = 'star'", "is 'star'; it is one of none, directed ring, ring"),
        ("def graph(self): return 'ring'", "); write `@property` above it"),
        ("def start(self, peer, init): ...", "cannot be called (/"),
        ("def training(self): return ()", "); write `def training(self, round)`"),
        ("async def local(self): return ()", "); write `def local(self)`"),
        ("async def begin_view(self, peer): yield 1", "has a `yield` (/"),
        ("def __init__(self): ...", "defines `__init__`, which it has to inherit; write its settings as fields"),
        ("def model_post_init(self, context): ...", "defines `model_post_init`, which it has to inherit"),
        ("lr: float = 'fast'", "`protocol.lr`: input should be a valid number"),
        ("lr: 'Flaot' = 0.1", "has a field of the type `Flaot`, which is not defined; import it"),
        ("min_peers = '3'", "is '3', and must be a number from 1"),
        ("def least_members(self, peers): return 0", "P` returned 0; of 3 peers return a number from 1 to 3"),
        ("def least_members(self, peers): return peers + 1", "returned 4; of 3 peers return a number from 1 to 3"),
        ("def least_members(self, peers): return peers / 2", "returned 1.5; of 3 peers return a number from 1 to 3"),
        ("def least_members(self, peers): return peers // 0", "cannot say what it does: ZeroDivisionError"),
        ("common = 'extracter'", "is 'extracter'; it is one of extractor, head, model, None"),
        ("init = 'same'", "is 'same'; it is one of shared, independent"),
        ("def why_data_are_fixed(self): return True", "returned True; return the reason as text, or None"),
        ("by_peer = ('trust',)", "is ('trust',), and must say what a member's row is at first"),
        ("unchanging = 'weights'", "is the text 'weights' and no tuple; write a comma behind it: `('weights',)`"),
        ("unchanging = ('a', 1)", "is ('a', 1), and must be a tuple of names in `peer.state`"),
        ("rate = 0.1", "the field `rate = 0.1` has no type; give it one, such as `rate: float = 0.1`"),
        ("def shares(self, rounds): return (Share('model', like='head'),)", "is a part of the model: leave out"),
        ("def shares(self, rounds): return (Share('a', size=0),)", "`a`: size is 1 or more, not 0"),
    ],
)
def test_a_wrong_declaration_is_told_before_anything_is_made(
    body: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"declared_{abs(hash(body))}"
    code = "from peer import Protocol, Record, Share\nclass P(Protocol):\n    paper, min_peers = 'none', 3\n"
    code += f"    def shares(self, rounds): return ()\n    def local(self): return ()\n    {body}\n"
    (tmp_path / f"{module}.py").write_text(code + "    async def round(self, peer): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text(f"protocol: {module}:P\nrounds: 2\n")
    assert main(["run", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


NOTING = """
import torch
from peer import Protocol
class Noting(Protocol):
    paper, min_peers = "none", 2
    graph = property(lambda self: "none")
    def shares(self, rounds): return ()
    def local(self): return ()
    async def round(self, peer):
        peer.note(norm=float("inf"), losses=[0.5, float("nan")], q=peer.proportions[:1], count=3)
"""


def test_what_is_noted_and_not_finite_stands_as_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noting_ones.py").write_text(NOTING)
    monkeypatch.syspath_prepend(tmp_path)
    federate(tmp_path / "run", {"name": "noting_ones:Noting"}, 2, trace=True)

    def only_json(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    events = (tmp_path / "run" / "peer0" / "events.jsonl").read_text().splitlines()
    notes = [event["notes"] for line in events if "notes" in (event := json.loads(line, parse_constant=only_json))]
    assert len(notes) == 2
    assert all(one == {"norm": None, "losses": [0.5, None], "q": one["q"], "count": 3.0} for one in notes)
    result = json.loads((tmp_path / "run" / "peer0" / "result.json").read_text(), parse_constant=only_json)
    assert [one["notes"] for one in result["history"]] == notes


UNUSUAL = """
import torch
from peer import Protocol, Record, Share
class Own(Protocol):
    paper, min_peers, records = "none", 3, (Record("samples"),)
    def shares(self, rounds): return (Share("memory"), Share("lengths"))
    def local(self): return ()
    async def round(self, peer):
        # A token that the peer had none of before, vectors as long as each likes, as many passes as all agree on.
        if peer.id == "peer0":
            peer.state["memory"] = torch.full((7,), 0.5)
            await peer.pass_token("memory")
            await peer.receive_token("memory")
        else:
            peer.state["memory"] = await peer.receive_token("memory") + 1
            await peer.pass_token("memory")
        told = await peer.gather("samples", torch.tensor([float(peer.samples)]))
        peer.state["lengths"] = torch.ones(int(peer.id[-1]) + 1)
        for _ in range(1 + int(max(told.values())) // 40):
            received = await peer.exchange("lengths")
            peer.state["seen"] = torch.tensor([float(len(one.vector)) for one in received.values()])
"""


def test_vectors_of_the_protocols_own_may_have_lengths_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text("protocol: unusual:Own\nrounds: 2\ndata: {name: digits, limit: 300}\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "4"]) == 0
    run = federate(tmp_path / "run", {"name": "unusual:Own"}, 4, trace=False)
    kept = [run.runtimes[peer].peer.state for peer in run.ids]
    for i, one in enumerate(kept):
        assert one["memory"].tolist() == [0.5 + i] * 7
        assert sorted(one["seen"].tolist()) == sorted([float((i - 1) % 4 + 1), float((i + 1) % 4 + 1)])
    assert {edge["to"] for record in run.audit("peer1") for edge in record["sent"]} == {"peer0", "peer2"}


DRAWING = """
import random
import numpy as np
import torch
from peer import Protocol, Share
class Noise(Protocol):
    paper, min_peers, graph = "none", 2, "ring"
    def shares(self, rounds): return (Share("extractor"),)
    def local(self): return ()
    async def round(self, peer):
        drawn = [await peer.compute(self.draw), await peer.compute(self.draw)]
        peer.note(drawn=[one for row in drawn for one in row])
        await peer.exchange("extractor")
    @staticmethod
    def draw(): return [random.random(), float(np.random.rand()), float(torch.rand(1))]
"""


def test_what_compute_draws_is_the_same_in_each_run_and_nowhere_twice(tmp_path: Path) -> None:
    (tmp_path / "drawing_noise.py").write_text(DRAWING)

    def drawn(name: str) -> list[float]:
        run = federate(
            tmp_path / name, {"name": "drawing_noise:Noise"}, 3, trace=False, code=str(tmp_path), model="mlp"
        )
        return [one for id in run.ids for note in run.result(id)["history"] for one in note["notes"]["drawn"]]

    first = drawn("one")
    assert len(set(first)) == len(first) == 3 * 2 * 6, "peers, rounds, numbers"
    assert drawn("two") == first
