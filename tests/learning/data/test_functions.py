"""Data from a function of the user's."""

import sys
from pathlib import Path
from typing import Any

import pytest
from loading import load, source
from pydantic import ValidationError

from peer.errors import InputError


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_data.py").write_text(
        "import numpy as np\n"
        "def pair(rows=10, root=None):\n"
        "    return np.full((rows, 2), 0.0 if root is None else 1.0), np.arange(rows) % 2\n"
        "def four():\n"
        "    return (*pair(), *pair(4))\n"
        "def bad():\n"
        "    return np.zeros(3)\n"
        "def ragged():\n"
        "    return [[1], [1, 2]], [0, 1]\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_data", raising=False)
    return "users_data"


def test_a_function_of_the_users(own_module: str, tmp_path: Path) -> None:
    assert len(load(f"{own_module}:pair").parts["test"].targets) == 2
    assert len(load(f"{own_module}:four").parts["test"].targets) == 4
    given = load(f"{own_module}:pair", root=tmp_path, options={"rows": 20})
    assert len(given.train_targets) == 16
    assert given.test().x.min() == 1.0
    relative = source(f"{own_module}:pair", root="x").relative_to(tmp_path)
    assert relative.root == tmp_path / "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("pair", {"columns": 2}, "cannot be called with the options given: .*columns"),
        ("bad", {}, r"must return \(x, y\), .* or up to three torch data sets, not a ndarray"),
        ("ragged", {}, "rows of different lengths"),
        ("absent", {}, r"the module `users_data` \(.*\) has no `absent`"),
        ("number", {}, "`users_data:number` is not a function"),
    ],
)
def test_wrong_functions_are_told(own_module: str, function: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"{own_module}:{function}", options=options)


def test_a_missing_module_is_told() -> None:
    with pytest.raises(InputError, match="`no_such_module:f`: no module `no_such_module`"):
        load("no_such_module:f")
    with pytest.raises(ValidationError):
        source("not a name:f")
