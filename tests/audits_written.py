"""Audits that a test has made up, as they are read from what peers write."""

from collections.abc import Mapping
from typing import Any

from launcher.reports.peer_files import AuditedRound


def as_read(audits: Mapping[str, Any]) -> dict[str, list[AuditedRound]]:
    """audits: by id {"rounds": [...]}, each round as a line of audit.jsonl has it."""
    return {id: [AuditedRound.model_validate(one) for one in audit["rounds"]] for id, audit in audits.items()}
