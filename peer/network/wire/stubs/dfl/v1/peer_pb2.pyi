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
    __slots__ = ("version", "id", "to", "view", "spec", "manifest", "durable", "round", "life", "oldest", "release")
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
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    to: str
    view: int
    spec: _containers.ScalarMap[str, str]
    manifest: str
    durable: int
    round: int
    life: int
    oldest: int
    release: str
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., to: _Optional[str] = ..., view: _Optional[int] = ..., spec: _Optional[_Mapping[str, str]] = ..., manifest: _Optional[str] = ..., durable: _Optional[int] = ..., round: _Optional[int] = ..., life: _Optional[int] = ..., oldest: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("durable", "round", "positions", "life", "release")
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    durable: int
    round: int
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    life: int
    release: str
    def __init__(self, durable: _Optional[int] = ..., round: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., life: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("durable", "round", "state", "resources", "taken", "others", "obstacle", "heard", "announced")
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
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    durable: int
    round: int
    state: str
    resources: Resources
    taken: int
    others: _containers.ScalarMap[str, int]
    obstacle: Obstacle
    heard: int
    announced: _containers.RepeatedCompositeFieldContainer[Announced]
    def __init__(self, durable: _Optional[int] = ..., round: _Optional[int] = ..., state: _Optional[str] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., taken: _Optional[int] = ..., others: _Optional[_Mapping[str, int]] = ..., obstacle: _Optional[_Union[Obstacle, _Mapping]] = ..., heard: _Optional[int] = ..., announced: _Optional[_Iterable[_Union[Announced, _Mapping]]] = ...) -> None: ...

class Announced(_message.Message):
    __slots__ = ("id", "round", "signature", "certificate")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    id: str
    round: int
    signature: bytes
    certificate: bytes
    def __init__(self, id: _Optional[str] = ..., round: _Optional[int] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

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

class Question(_message.Message):
    __slots__ = ("version", "id", "to", "spec", "oldest", "release")
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
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: str
    to: str
    spec: _containers.ScalarMap[str, str]
    oldest: int
    release: str
    def __init__(self, version: _Optional[int] = ..., id: _Optional[str] = ..., to: _Optional[str] = ..., spec: _Optional[_Mapping[str, str]] = ..., oldest: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("refusal", "reply")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    reply: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., reply: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("id", "federation", "state", "round", "rounds", "neighbours", "accuracy", "bytes_sent", "bytes_received", "resources", "figure", "view", "first", "outside", "shortage", "certificate_expires", "release", "durable")
    class Neighbour(_message.Message):
        __slots__ = ("id", "address", "state", "reason", "durable", "resources", "release")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        DURABLE_FIELD_NUMBER: _ClassVar[int]
        RESOURCES_FIELD_NUMBER: _ClassVar[int]
        RELEASE_FIELD_NUMBER: _ClassVar[int]
        id: str
        address: str
        state: str
        reason: str
        durable: int
        resources: Resources
        release: str
        def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., durable: _Optional[int] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., release: _Optional[str] = ...) -> None: ...
    class Shortage(_message.Message):
        __slots__ = ("here", "members", "needed", "tie_breaker", "seconds", "awaited")
        class Awaited(_message.Message):
            __slots__ = ("id", "address", "reason")
            ID_FIELD_NUMBER: _ClassVar[int]
            ADDRESS_FIELD_NUMBER: _ClassVar[int]
            REASON_FIELD_NUMBER: _ClassVar[int]
            id: str
            address: str
            reason: str
            def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
        HERE_FIELD_NUMBER: _ClassVar[int]
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        NEEDED_FIELD_NUMBER: _ClassVar[int]
        TIE_BREAKER_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        AWAITED_FIELD_NUMBER: _ClassVar[int]
        here: int
        members: int
        needed: int
        tie_breaker: str
        seconds: float
        awaited: _containers.RepeatedCompositeFieldContainer[StatusReply.Shortage.Awaited]
        def __init__(self, here: _Optional[int] = ..., members: _Optional[int] = ..., needed: _Optional[int] = ..., tie_breaker: _Optional[str] = ..., seconds: _Optional[float] = ..., awaited: _Optional[_Iterable[_Union[StatusReply.Shortage.Awaited, _Mapping]]] = ...) -> None: ...
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
    SHORTAGE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
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
    shortage: StatusReply.Shortage
    certificate_expires: float
    release: str
    durable: int
    def __init__(self, id: _Optional[str] = ..., federation: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., neighbours: _Optional[_Iterable[_Union[StatusReply.Neighbour, _Mapping]]] = ..., accuracy: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., figure: _Optional[float] = ..., view: _Optional[int] = ..., first: _Optional[int] = ..., outside: _Optional[_Iterable[str]] = ..., shortage: _Optional[_Union[StatusReply.Shortage, _Mapping]] = ..., certificate_expires: _Optional[float] = ..., release: _Optional[str] = ..., durable: _Optional[int] = ...) -> None: ...
