"""Blocks of a spec whose class their `name` chooses."""

import json
from collections.abc import Callable
from typing import Annotated

from pydantic import PlainValidator, SerializeAsAny

from peer.learning.data.sources import Source, source_type
from peer.learning.tasks import Task, task_class
from peer.protocols.base import Protocol
from peer.protocols.registry import protocol_class
from peer.settings import Settings


def _named(find: Callable[[str], type[Settings]]) -> PlainValidator:
    """A block whose class its `name` chooses. What that class finds wrong is told as of the block's own keys."""
    return PlainValidator(
        lambda raw: (
            raw if isinstance(raw, Settings) else find(raw["name"]).model_validate_json(json.dumps(raw), strict=True)
        )
    )


AnyProtocol = Annotated[SerializeAsAny[Protocol], _named(protocol_class)]
AnyTask = Annotated[SerializeAsAny[Task], _named(task_class)]
AnySource = Annotated[SerializeAsAny[Source], _named(source_type)]
