"""Names of container images."""

import re
from typing import Annotated

from pydantic import Field

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]+)?"
NAME = rf"^(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z0-9_+.-]+:[0-9a-fA-F]{{32,}})?$"
"""As engines and clusters read it (distribution/reference): [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""

Image = Annotated[str, Field(pattern=NAME, max_length=512)]
WANTED = "the name of an image, such as dfl or registry.example.org/dfl:1"


def is_image(name: str) -> bool:
    return len(name) <= 512 and re.fullmatch(NAME, name, re.ASCII) is not None
