"""The words that stand below each field of a class: its entry in the reference, read when somebody asks for it."""

import ast
import inspect
from itertools import pairwise
from textwrap import dedent


def field_words(kind: type) -> dict[str, str]:
    """What stands below each field of a class in the source, by name; of those that it inherits, too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        found |= _own_words(one)
    return found


def _own_words(kind: type) -> dict[str, str]:
    try:
        source = dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # made without a file, or built in
        return {}
    found: dict[str, str] = {}
    body = ast.parse(source).body[0]
    for field, words in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
        match field, words:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
