"""What older kubectls read of an OpenAPI document before they ask a server for a dry run, as protobuf."""

from collections.abc import Iterable

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def document(kinds: Iterable[tuple[str, str]]) -> bytes:
    """That objects of these groups and kinds can be patched, with a parameter `dryRun`."""
    return field(
        8, b"".join(field(2, field(1, f"/{kind}") + field(2, field(8, patch(group, kind)))) for group, kind in kinds)
    )


def patch(group: str, kind: str) -> bytes:
    query = field(2, "query") + field(4, "dryRun")
    parameter = field(1, field(2, field(3, query)))
    told = f"group: '{group}'\nkind: {kind}\nversion: v1\n"
    extension = field(1, "x-kubernetes-group-version-kind") + field(2, field(2, told))
    return field(8, parameter) + field(13, extension)


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])
