"""Members with keys of their own that say whatever the grammar allows, together, to peers that run the real code.

Each liar is twofold. Its process runs the real code, and what that writes on its pipes is changed. Beside it, whoever
holds its key opens streams of its own to the honest members: it asks, repeats, forges and floods, holds answers back,
and never reads. What is said about views is the gang's (tests/views/gang.py), which all liars have in common.
"""

import asyncio
import struct
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from strangers import resealed
from views.gang import MANY, Gang

from faults.clock import Life, in_life
from faults.liars import FAR, Lies, TwoTongued
from launcher.run_files import certificate_files
from peer.network.transport import DisconnectedError, Pipe, Service
from peer.network.wire.frames import HEADER, Key
from peer.network.wire.messages import (
    Announced,
    Answer,
    Beat,
    Hello,
    Position,
    Question,
    Refusal,
    Reply,
    Welcome,
)
from peer.spec.agreement import lasting_digest
from peer.views.decision import Acceptor, Memory, Rules
from peer.views.signing import CertifiedKeyring
from peer.views.statements import (
    Announcement,
    InvalidError,
    Request,
    Signed,
    read_reply,
    read_request,
    written,
)
from peer.views.statements import Reply as ViewReply
from peer.views.view import ViewChain

if TYPE_CHECKING:
    from faults.simulation import Simulation

LONG = 3600.0
"""Seconds that nobody waits for: what is held back for so long never comes."""


@dataclass(frozen=True)
class Listener:
    """One to whom the gang may write."""

    id: str


class Puppet:
    """One liar as the gang sees it: with the memory of its process where that has begun, else with one of its own."""

    proposal = None
    asks: dict[str, Any] = {}  # noqa: RUF012 (the gang proposes nothing of its own here: its processes do)

    def __init__(self, run: "Simulation", id: str, rules: Rules, random: Random) -> None:
        assert run.certificates
        self._run, self._random, self.id, self.up = run, random, id, True
        files = certificate_files(run.certificates, id)
        chain = tuple(files[name].read_bytes() for name in ("ca", "cert", "key"))
        keyring = CertifiedKeyring(id, lasting_digest(run.spec.agreement.digests), lambda: chain)  # type: ignore[arg-type,return-value]
        self._own = Acceptor(Memory(id), rules, keyring)
        self.disk = Memory(id)
        self.life = Life(id, lambda *_: False)
        self.transport = run.wires.transport(None, self.life)

    @property
    def acceptor(self) -> Acceptor:
        lives = self._run.lived.get(self.id)
        return lives._membership.acceptor if lives and lives._membership else self._own

    @property
    def chain(self) -> ViewChain:
        return self.acceptor.chain

    @property
    def inside(self) -> bool:
        return self.acceptor.is_member

    @property
    def lives(self) -> int:
        return self.acceptor.memory.entered

    @property
    def told(self) -> int:
        runtime = self._run.runtimes.get(self.id)
        return runtime.network.durability.own if runtime else -1

    @property
    def announced(self) -> dict[str, Signed[Announcement]]:
        runtime = self._run.runtimes.get(self.id)
        return {**runtime.network.durability.announcements()} if runtime else {}

    def write(self) -> None:
        now = self.acceptor.memory
        self.disk = replace(now, decisions=[*now.decisions], consents=[*now.consents], guilt=[*now.guilt])

    def reread(self) -> None:
        """What was promised and voted for since then is forgotten; what was decided is not."""
        now = self.acceptor.memory
        now.slot, now.promised, now.consents = self.disk.slot, self.disk.promised, [*self.disk.consents]

    def hello(self, to: str) -> Hello | None:
        """The hello that its process would say now; None before there is one."""
        if not (runtime := self._run.runtimes.get(self.id)):
            return None
        network = runtime.network
        return Hello.FromString(network.identity.hello(to, network.durability.own, runtime.peer.round))


class Conspiracy:
    """All liars of one federation, for as long as they are there."""

    def __init__(self, run: "Simulation", seed: int) -> None:
        spec = run.spec
        self.run, self.random, self.ids = run, Random(f"conspiracy {seed}"), spec.ids
        self.liars = frozenset(run.wires.weather.traitors)
        self.rules = Rules(spec.ids, spec.rounds, spec.tolerated(True), spec.protocol.min_peers, spec.absence)
        those = [id for id in spec.ids if id in self.liars]
        self.machines = {id: Puppet(run, id, self.rules, self.random) for id in those}
        self.honest = [Listener(id) for id in spec.ids if id not in self.liars]
        self.letters: list[tuple[str, str, Request]] = []
        self.gang = Gang(self, seed)  # type: ignore[arg-type]
        self.words = Words(self, seed)
        self.zeal = self.random.choice([0.5, 2.0, 8.0])
        """Acts a second."""

    def begin(self) -> None:
        for puppet in self.machines.values():
            self._do(puppet, self._scheme(puppet))

    def end(self) -> None:
        """Nothing more comes of them."""
        for puppet in self.machines.values():
            puppet.life.dead = True
            self.run.wires.gone(puppet.life)

    @property
    def lives(self) -> list[Life]:
        return [puppet.life for puppet in self.machines.values()]

    def _do(self, puppet: Puppet, work: Any) -> None:
        puppet.life.tasks.append(self.run.loop.create_task(work, context=in_life(puppet.life)))

    def pipe(self, wire: Pipe, service: Service, dialled: bool, life: Life) -> Pipe:
        """An end of a pipe as a liar's process has it; what is done beside it says on its own pipes what it wants."""
        puppet = self.machines[life.id]
        return wire if life is puppet.life else Lying(wire, service, dialled, self, puppet)

    # What the gang calls.

    def letter(self, liar: str, to: str, request: Request) -> tuple[str, str, Request]:
        return liar, to, request

    # What they do of their own accord.

    async def _scheme(self, puppet: Puppet) -> None:
        random = self.random
        acts: list[Callable[[Puppet], None]] = [self._lie, self._lie, self._lie, self._flood, self._open, self._open]
        while True:
            await asyncio.sleep(random.expovariate(self.zeal))
            random.choice(acts)(puppet)

    def _lie(self, _puppet: Puppet) -> None:
        """About views: the gang tells which of them says what to whom."""
        self.gang.act(quick=True)
        self._post()

    def _post(self) -> None:
        letters, self.letters = self.letters, []
        for liar, to, request in letters:
            self._do(self.machines[liar], self._ask(self.machines[liar], to, request))

    def _flood(self, puppet: Puppet) -> None:
        """Ask the same question many times at once."""
        if self.gang.requests:
            request, to = self.random.choice(self.gang.requests), self.random.choice(self.honest).id
            for _ in range(self.random.randint(5, 30)):
                self._do(puppet, self._ask(puppet, to, request))

    def _open(self, puppet: Puppet) -> None:
        """Streams of every kind, one or several."""
        to = self.random.choice(self.honest).id
        service: Service = self.random.choice(["Tensors", "Fetch", "Fetch", "Heartbeat", "Heartbeat", "Views"])
        for _ in range(self.random.choice([1, 1, 1, 8])):
            self._do(puppet, self._hold(puppet, to, service))

    async def _dial(self, puppet: Puppet, to: str, service: Service) -> Pipe:
        address = self.run.spec.addresses[to]
        assert address
        return await puppet.transport.dial(address, service)

    async def _ask(self, puppet: Puppet, to: str, request: Request) -> None:
        """One question; the answer is read, or it is not."""
        random = self.random
        question = self.words.question(puppet, to)
        with suppress(DisconnectedError, TimeoutError, InvalidError):
            pipe = await self._dial(puppet, to, "Views")
            try:
                await self._wait()
                await pipe.send(question.SerializeToString())
                await self._wait()
                await pipe.send(self.words.text(request))
                if random.random() < 0.2:
                    await asyncio.sleep(random.choice([0.0, 1.0, 30.0]))
                    return
                async with asyncio.timeout(20):
                    answer = Answer.FromString(await pipe.receive())
                if not answer.HasField("refusal"):
                    self.gang.note(read_reply(answer.reply))
            finally:
                pipe.abort()

    async def _wait(self) -> None:
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.choice([0.1, 1.0, 5.0]))

    async def _hold(self, puppet: Puppet, to: str, service: Service) -> None:
        """A stream of its own: silent, deaf, talkative, or one on which the word that is waited for comes late."""
        random = self.random
        late = partial(self._be_late, puppet)
        kinds: list[Callable[[Pipe, Service], Awaitable[None]]] = [self._mute, self._talk, self._talk, late]
        act = random.choice(kinds)
        hello = puppet.hello(to)
        with suppress(DisconnectedError, TimeoutError):
            pipe = await self._dial(puppet, to, service)
            try:
                if hello and random.random() < 0.9:
                    await pipe.send(self.words.hello(hello, 0.2).SerializeToString())
                await act(pipe, service)
            finally:
                pipe.abort()

    async def _mute(self, _pipe: Pipe, _service: Service) -> None:
        """Says nothing and reads nothing."""
        await asyncio.sleep(self.random.choice([1.0, 15.0, 60.0]))

    async def _talk(self, pipe: Pipe, service: Service) -> None:
        """What comes is read, or it is not."""
        random, reads = self.random, self.random.random() < 0.5
        for _ in range(random.randint(1, 12)):
            await pipe.send(self.words.anything(service, pipe.identity or ""))
            if reads:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice([0.01, 0.5])):
                        await pipe.receive()
            await asyncio.sleep(random.expovariate(2.0))

    async def _be_late(self, puppet: Puppet, pipe: Pipe, service: Service) -> None:
        """Act like an honest caller, but so late that its view may be over; then read what comes for a while."""
        await pipe.receive()
        await asyncio.sleep(self.random.uniform(0.1, 19.0))
        if service == "Fetch" and (hello := puppet.hello(pipe.identity or "")):
            welcome = Welcome(durable=hello.durable, round=hello.round, life=hello.life)
            await pipe.send(Reply(welcome=welcome).SerializeToString())
        elif service == "Heartbeat":
            await pipe.send(Beat(durable=-1, state="training").SerializeToString())
        async with asyncio.timeout(self.random.choice([0.1, 5.0])):
            while True:
                await pipe.receive()


class Words:
    """What is said beside questions about views: hellos, welcomes, refusals, beats and frames."""

    def __init__(self, plot: Conspiracy, seed: int) -> None:
        self._plot, self._random = plot, plot.random
        self._lies = Lies(plot.random, plot.ids, plot.run.spec.rounds)
        self.frames: dict[str, list[bytes]] = {}
        """Some that were sent, by receiver: what was meant for another could take the place of what it lacks."""
        self._spoils = Random(f"spoils {seed}")
        self._spoilt = self._spoils.choice([0.0, 0.0, 0.02, 0.1])
        """How many messages are left out, or are others than their receiver waits for."""
        self._spoilt_keys: dict[tuple[str, Key], str] = {}

    def round(self) -> int:
        random, rounds = self._random, self._plot.rules.rounds
        return random.choice([-1, 0, rounds, random.randint(0, rounds), random.randint(0, rounds), FAR, -9])

    def hello(self, hello: Hello, often: float) -> Hello:
        """With one thing changed, now and then."""
        random = self._random
        if random.random() < often:
            match random.randrange(8):
                case 0:
                    hello.view = random.choice([0, hello.view + 1, max(0, hello.view - 1), 2**31])
                case 1:
                    hello.durable = self.round()
                case 2:
                    hello.round = random.choice([0, random.randint(0, 20), 2**31])
                case 3:
                    hello.life = random.getrandbits(64)
                case 4:
                    hello.to = random.choice(self._plot.ids)
                case 5:
                    hello.id = random.choice(self._plot.ids)
                case 6:
                    hello.spec["rounds"] = "0" * 64
                case 7:
                    hello.manifest = ""
        hello = self._lies.introduction(hello)
        if self._lies.names.random() < often / 4:  # versions that nobody here speaks
            hello.version, hello.oldest = self._lies.names.choice([(0, 0), (2**32 - 1, 2**32 - 1), (4, 9), (1, 0)])
        return hello

    def question(self, puppet: Puppet, to: str) -> Question:
        return self._lies.introduction(Question(id=puppet.id, to=to, spec=self._plot.run.spec.agreement.digests))

    def welcome(self) -> Welcome:
        random = self._random
        positions = [
            Position(round=random.randint(0, 20), step=random.randint(0, 9), next=random.choice([0, 1, 2**31]))
            for _ in range(random.choice([0, 0, 1, 200]))
        ]
        life = random.choice([0, random.getrandbits(64)])
        return Welcome(
            durable=self.round(),
            round=random.choice([0, 3, 2**31]),
            positions=positions,
            life=life,
            release=self._lies.release(),
        )

    def refusal(self) -> Refusal:
        refusal = self._lies.refusal()
        if self._random.random() < 0.5:
            refusal.durable = self.round()
        if self._random.random() < 0.3:
            refusal.settings.extend(["`seed` 1"] * self._random.choice([1, 1000]))
        return refusal

    def beat(self, beat: Beat, puppet: Puppet | None) -> Beat:
        """What it says of itself and of others, its signed announcements too, as it likes."""
        random = self._random
        if random.random() < 0.3:
            beat = self._lies.beat(beat)
        if random.random() < 0.15:
            beat.durable = self.round()
        if random.random() < 0.1:
            beat.heard = self.round()
        if random.random() < 0.1:
            beat.obstacle.address, beat.obstacle.reason = "\x1b[2J:1", "x" * random.choice([1, 500])
        if random.random() < 0.1:
            beat.resources.bytes_per_second["nobody"] = random.choice([-1.0, float("nan"), 1e300])
        while puppet and random.random() < 0.4:
            beat.announced.append(self.announced(puppet))
        if beat.announced and random.random() < 0.2:
            del beat.announced[random.randrange(len(beat.announced))]
        return beat

    def announced(self, puppet: Puppet) -> Announced:
        """An announcement of its own, of another member, or signed by another than it says."""
        random, signed = self._random, self._plot.gang.announcement(puppet)
        self._plot.gang._take_apart(signed)
        signature, certificate = b64decode(signed.signature), b64decode(signed.certificate)
        id = signed.signer if random.random() < 0.9 else random.choice([*self._plot.ids, "nobody"])
        round = signed.statement.round if random.random() < 0.9 else self.round()
        signature = signature if random.random() < 0.9 else signature[:-1] or b"?"
        certificate = certificate if random.random() < 0.7 else random.choice([b"", certificate[:99], b"?" * 3000])
        return Announced(id=id, round=round, signature=signature, certificate=certificate)

    def frame(self, to: str, data: bytes) -> bytes:
        """A frame of the real code's, some of which are kept; of a codec's now and then with an end that nobody can
        decode, under a right checksum. Empty where the message is left out."""
        if len(data) < HEADER.size:
            return data
        if not (data := self._spoilt_frame(to, data)):
            return data
        if len(frames := self.frames.setdefault(to, [])) < 40:
            frames.append(data)
        if self._plot.run.spec.wire.kind == "codec" and len(data) > HEADER.size and self._random.random() < 0.5:
            return resealed(data[:-1] + bytes([self._random.choice([0, 8, 9, 10])]))
        return data

    def _spoilt_frame(self, to: str, data: bytes) -> bytes:
        """What becomes of it to that receiver, each time that it is sent: now and then its message is left out, is one
        of the next round, of another call or vector, or has numbers (sums of weights, decisions) that cannot be."""
        magic, payload, doubles, view, round, step, call, index, *rest = HEADER.unpack_from(data)
        said, body = (to, Key(view, round, step)), data[HEADER.size :]
        if said not in self._spoilt_keys:
            kinds = ["out", "later", "call", "payload", "-1", "1e300"]
            spoilt = self._spoils.random() < self._spoilt
            self._spoilt_keys[said] = self._spoils.choice(kinds) if spoilt else ""
        match self._spoilt_keys[said]:
            case "out":
                return b""
            case "later":
                round += 1
            case "call":
                call ^= 1
            case "payload":
                payload ^= 1
            case "-1" | "1e300" as number if index == 0:
                body = struct.pack(f"<{doubles}d", *[float(number)] * doubles) + body[8 * doubles :]
        return resealed(HEADER.pack(magic, payload, doubles, view, round, step, call, index, *rest) + body)

    def anything(self, service: Service, to: str) -> bytes:
        """A message to that member that has its place on such a stream, or on another."""
        random = self._random
        puppet = random.choice([*self._plot.machines.values()])
        if random.random() < 0.1:
            return random.randbytes(random.choice([0, 1, 64, 2000]))
        match random.choice([service, service, service, "Tensors", "Fetch", "Heartbeat", "Views"]):
            case "Tensors":
                frame = random.choice(self.frames.get(to, [b"DFL2"]))
                place = random.randrange(len(frame))
                return frame if random.random() < 0.5 else frame[:place] + b"?" + frame[place + 1 :]
            case "Fetch":
                kinds = [
                    Reply(welcome=self.welcome()),
                    Reply(refusal=self.refusal()),
                    Reply(beat=self.beat(Beat(), puppet)),
                ]
                return random.choice([*kinds, Reply()]).SerializeToString()
            case "Heartbeat":
                return self.beat(Beat(durable=-1, state="training"), puppet).SerializeToString()
        requests = self._plot.gang.requests
        return self.text(random.choice(requests)) if requests else b"Ask {}"

    def text(self, said: Request | ViewReply) -> bytes:
        """What is said about views; now and then one of its lists is full of what has no place there, or is none."""
        text, random = written(said), self._random
        if random.random() > 0.05 or not (lists := [place for place, byte in enumerate(text) if byte == ord("[")]):
            return text
        place, wrong = random.choice(lists), random.choice([b"null", b"0", b"true", b'""', b"[]", b"{}"])
        rest = text[place + 1 :]
        if random.random() < 0.2:
            return text[:place] + wrong + rest[rest.index(b"]") + 1 :]
        return text[: place + 1] + b",".join([wrong] * MANY) + (b"" if rest.startswith(b"]") else b",") + rest


class Lying(TwoTongued):
    """One end of a pipe of a liar's process: what the real code writes there is changed, held back, or left out."""

    def __init__(self, pipe: Pipe, service: Service, dialled: bool, plot: Conspiracy, puppet: Puppet) -> None:
        refuses = plot.random.random() < 0.1
        super().__init__(pipe, service, dialled, plot.words._lies, refuses)
        self._plot, self._puppet, self._random = plot, puppet, plot.random
        self._received = 0
        self._asked: Request | None = None

    async def send(self, data: bytes) -> None:
        if self._service == "Views":
            data = self._view_said(data)
        elif self._messages == 0 and self._dialled:
            data = self._plot.words.hello(Hello.FromString(data), 0.03).SerializeToString()
        elif self._service == "Heartbeat" and self._dialled:
            data = self._plot.words.beat(Beat.FromString(data), self._puppet).SerializeToString()
        elif self._service != ("Tensors" if self._dialled else "Fetch") or self._messages == 0:
            data = self._reply(Reply.FromString(data))
        else:
            data = self._plot.words.frame(self.identity or "", data)
        self._messages += 1
        await self._hold_back()
        if not data and self._service == "Views":
            await asyncio.sleep(LONG)
        if data:
            await self._pipe.send(data)

    async def _hold_back(self) -> None:
        draw = self._random.random()
        if draw < (0.15 if self._service == "Views" else 0.02):
            await asyncio.sleep(self._random.choice([0.05, 0.5, 3.0]))

    def _view_said(self, data: bytes) -> bytes:
        """Empty for nothing."""
        gang = self._plot.gang
        if self._dialled and self._messages == 0:
            return data
        if self._dialled:
            request = gang.request(read_request(data))
            return self._plot.words.text(request) if request else b""
        answer = Answer.FromString(data)
        if answer.HasField("refusal") or not self._asked:
            return data
        reply = gang.reply(self._puppet, self._asked, read_reply(answer.reply))  # type: ignore[arg-type]
        return Answer(reply=self._plot.words.text(reply)).SerializeToString() if reply else b""

    def _reply(self, reply: Reply) -> bytes:
        words = self._plot.words
        if reply.HasField("beat"):
            reply.beat.CopyFrom(words.beat(reply.beat, self._puppet))
        elif self._random.random() < 0.05:
            reply = Reply(refusal=words.refusal())
        elif reply.HasField("welcome") and self._random.random() < 0.05:
            reply = Reply(welcome=words.welcome())
        return reply.SerializeToString()

    async def receive(self) -> bytes:
        data = await self._pipe.receive()
        self._received += 1
        if self._service == "Views":
            with suppress(InvalidError):
                self._overhear(data)
        return data

    def _overhear(self, data: bytes) -> None:
        if self._dialled:
            answer = Answer.FromString(data)
            if not answer.HasField("refusal"):
                self._plot.gang.note(read_reply(answer.reply))
        elif self._received == 2:
            self._asked = read_request(data)
            self._plot.gang.note(self._asked)
