"""Wrong input that comes up between two views is no refusal: another start may help."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.errors import FailedError, InputError
from peer.runtime.membership import view_runner
from peer.runtime.membership.view_runner import ViewRunner
from peer.telemetry.telemetry import Telemetry

TAKEN = "cannot listen at 127.0.0.1:7701: address already in use"


@pytest.mark.parametrize(("rounds", "error"), [([3, 0], FailedError), ([0, 0], InputError), ([0], InputError)])
async def test_a_port_that_is_taken_is_wrong_input_until_a_round_has_begun(
    rounds: list[int], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rounds: which round each view came to; a peer listens anew in each, and in the last it cannot."""

    class OneView:
        def __init__(self, setup: int, *_: object) -> None:
            self.setup, self.lifecycle = setup, SimpleNamespace(round=rounds[setup])

        async def run(self) -> bool:
            if self.setup == len(rounds) - 1:
                raise InputError(TAKEN)
            return False

    async def all_views(self: ViewRunner) -> None:
        for view in range(len(rounds)):
            await self._play(cast(Any, view))

    monkeypatch.setattr(view_runner, "Runtime", OneView)
    monkeypatch.setattr(ViewRunner, "_run", all_views)
    setup, none = cast(Any, SimpleNamespace(out=tmp_path)), cast(Any, None)
    with pytest.raises(error, match=TAKEN):
        await ViewRunner(setup, none, none, Telemetry()).run()
