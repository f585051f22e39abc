from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "id", "to", "view", "spec", "manifest", "durable", "round", "life")
    class SpecEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    to: str
    view: int
    spec: _containers.ScalarMap[str, str]
    manifest: str
    durable: int
    round: int
    life: int
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., to: _Optional[str] = ..., view: _Optional[int] = ..., spec: _Optional[_Mapping[str, str]] = ..., manifest: _Optional[str] = ..., durable: _Optional[int] = ..., round: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("welcome", "refusal", "beat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    beat: Beat
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("durable", "round", "positions", "life")
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    durable: int
    round: int
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    life: int
    def __init__(self, durable: _Optional[int] = ..., round: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., life: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("round", "step", "next")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    next: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "detail", "keys", "durable", "settings")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Refusal.Reason]
        VERSION: _ClassVar[Refusal.Reason]
        IDENTITY: _ClassVar[Refusal.Reason]
        STRANGER: _ClassVar[Refusal.Reason]
        FEDERATION: _ClassVar[Refusal.Reason]
        MANIFEST: _ClassVar[Refusal.Reason]
        VIEW: _ClassVar[Refusal.Reason]
        DAMAGED: _ClassVar[Refusal.Reason]
        UNDECLARED: _ClassVar[Refusal.Reason]
        LOST: _ClassVar[Refusal.Reason]
    UNKNOWN: Refusal.Reason
    VERSION: Refusal.Reason
    IDENTITY: Refusal.Reason
    STRANGER: Refusal.Reason
    FEDERATION: Refusal.Reason
    MANIFEST: Refusal.Reason
    VIEW: Refusal.Reason
    DAMAGED: Refusal.Reason
    UNDECLARED: Refusal.Reason
    LOST: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    detail: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    durable: int
    settings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., detail: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., durable: _Optional[int] = ..., settings: _Optional[_Iterable[str]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("durable", "round", "state", "resources", "taken", "others", "obstacle", "heard")
    class OthersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    durable: int
    round: int
    state: str
    resources: Resources
    taken: int
    others: _containers.ScalarMap[str, int]
    obstacle: Obstacle
    heard: int
    def __init__(self, durable: _Optional[int] = ..., round: _Optional[int] = ..., state: _Optional[str] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., taken: _Optional[int] = ..., others: _Optional[_Mapping[str, int]] = ..., obstacle: _Optional[_Union[Obstacle, _Mapping]] = ..., heard: _Optional[int] = ...) -> None: ...

class Obstacle(_message.Message):
    __slots__ = ("address", "reason")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    address: str
    reason: str
    def __init__(self, address: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("cpus", "free_cpus", "memory_bytes", "free_memory_bytes", "gpu", "gpu_memory_bytes", "free_gpu_memory_bytes", "load", "samples", "bytes_per_second", "gpu_busy")
    class BytesPerSecondEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CPUS_FIELD_NUMBER: _ClassVar[int]
    FREE_CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GPU_BUSY_FIELD_NUMBER: _ClassVar[int]
    cpus: int
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    gpu: str
    gpu_memory_bytes: int
    free_gpu_memory_bytes: int
    load: float
    samples: int
    bytes_per_second: _containers.ScalarMap[str, float]
    gpu_busy: float
    def __init__(self, cpus: _Optional[int] = ..., free_cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., free_memory_bytes: _Optional[int] = ..., gpu: _Optional[str] = ..., gpu_memory_bytes: _Optional[int] = ..., free_gpu_memory_bytes: _Optional[int] = ..., load: _Optional[float] = ..., samples: _Optional[int] = ..., bytes_per_second: _Optional[_Mapping[str, float]] = ..., gpu_busy: _Optional[float] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("counter", "proposer")
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    counter: int
    proposer: str
    def __init__(self, counter: _Optional[int] = ..., proposer: _Optional[str] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("number", "members", "first", "planned", "entrants", "reason", "expelled")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    ENTRANTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    number: int
    members: _containers.RepeatedScalarFieldContainer[str]
    first: int
    planned: bool
    entrants: _containers.RepeatedCompositeFieldContainer[Entrant]
    reason: str
    expelled: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., first: _Optional[int] = ..., planned: _Optional[bool] = ..., entrants: _Optional[_Iterable[_Union[Entrant, _Mapping]]] = ..., reason: _Optional[str] = ..., expelled: _Optional[_Iterable[str]] = ...) -> None: ...

class Entrant(_message.Message):
    __slots__ = ("id", "private")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    id: str
    private: int
    def __init__(self, id: _Optional[str] = ..., private: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("version", "id", "to", "spec", "number", "ballot", "prepare", "accept", "release", "decided", "ask", "enter", "leave", "expel", "poll")
    class SpecEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    ENTER_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    EXPEL_FIELD_NUMBER: _ClassVar[int]
    POLL_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    to: str
    spec: _containers.ScalarMap[str, str]
    number: int
    ballot: Ballot
    prepare: Prepare
    accept: View
    release: Release
    decided: Views
    ask: Ask
    enter: Entrant
    leave: Leave
    expel: str
    poll: Poll
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., to: _Optional[str] = ..., spec: _Optional[_Mapping[str, str]] = ..., number: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., accept: _Optional[_Union[View, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., decided: _Optional[_Union[Views, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., enter: _Optional[_Union[Entrant, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., expel: _Optional[str] = ..., poll: _Optional[_Union[Poll, _Mapping]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ask(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Poll(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Views(_message.Message):
    __slots__ = ("views",)
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    views: _containers.RepeatedCompositeFieldContainer[View]
    def __init__(self, views: _Optional[_Iterable[_Union[View, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("refusal", "promise", "accepted", "outdone", "decided", "behind", "heard", "consents", "denied")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    OUTDONE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CONSENTS_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    promise: Promise
    accepted: Ballot
    outdone: Ballot
    decided: Views
    behind: int
    heard: Heard
    consents: Consents
    denied: str
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., accepted: _Optional[_Union[Ballot, _Mapping]] = ..., outdone: _Optional[_Union[Ballot, _Mapping]] = ..., decided: _Optional[_Union[Views, _Mapping]] = ..., behind: _Optional[int] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., consents: _Optional[_Union[Consents, _Mapping]] = ..., denied: _Optional[str] = ...) -> None: ...

class Consents(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("ballot", "durable", "oldest", "started", "private", "accepted", "view")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    durable: int
    oldest: int
    started: int
    private: int
    accepted: Ballot
    view: View
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., durable: _Optional[int] = ..., oldest: _Optional[int] = ..., started: _Optional[int] = ..., private: _Optional[int] = ..., accepted: _Optional[_Union[Ballot, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("id", "federation", "state", "round", "rounds", "neighbours", "accuracy", "bytes_sent", "bytes_received", "resources", "figure", "view", "first", "outside")
    class Neighbour(_message.Message):
        __slots__ = ("id", "address", "state", "reason", "durable", "resources")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        DURABLE_FIELD_NUMBER: _ClassVar[int]
        RESOURCES_FIELD_NUMBER: _ClassVar[int]
        id: str
        address: str
        state: str
        reason: str
        durable: int
        resources: Resources
        def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., durable: _Optional[int] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    FIGURE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    id: str
    federation: str
    state: str
    round: int
    rounds: int
    neighbours: _containers.RepeatedCompositeFieldContainer[StatusReply.Neighbour]
    accuracy: float
    bytes_sent: int
    bytes_received: int
    resources: Resources
    figure: float
    view: int
    first: int
    outside: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., federation: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., neighbours: _Optional[_Iterable[_Union[StatusReply.Neighbour, _Mapping]]] = ..., accuracy: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., figure: _Optional[float] = ..., view: _Optional[int] = ..., first: _Optional[int] = ..., outside: _Optional[_Iterable[str]] = ...) -> None: ...
