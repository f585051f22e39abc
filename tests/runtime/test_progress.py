"""When all peers end early: by a rule on what all of them know, whoever was killed meanwhile."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from peer.runtime.rounds.reports import UNDEFINED_FIGURE, Better, EarlyStopping, RunProgress, figure_to_send
from peer.spec.blocks import StopEarly
from peer.telemetry.results import Best

FIGURES = st.floats(-1e3, 1e3)
RUNS = st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(FIGURES, min_size=n, max_size=n), min_size=1, max_size=30))
RULES = st.builds(StopEarly, patience=st.integers(1, 5), min_rounds=st.integers(1, 12), margin=st.floats(0, 10))
BETTER = st.sampled_from(["up", "down"])


def end(run: Sequence[Sequence[float]], rule: StopEarly, better: Better, replayed: bool = False) -> int | None:
    """The round after which a run ends; `replayed`: its peer dies in each round and goes on from its checkpoint."""
    course = RunProgress(better)
    for round, told in enumerate(run, start=1):
        for _ in range(1 + replayed):
            resumed = RunProgress(better)
            resumed.load_state_dict(json.loads(json.dumps(course.state_dict())))
            resumed.progress = resumed.progress.after(round, told, better, rule.margin)
            resumed.stopped_early = resumed.progress.should_stop(round, rule)
        course = resumed
        if course.stopped_early:
            return round
    return None


def by_definition(run: Sequence[Sequence[float]], rule: StopEarly, better: Better) -> int | None:
    sign = 1 if better == "up" else -1
    best, since = None, 0
    for round, told in enumerate(run, start=1):
        mean = sign * sum(figure / len(told) for figure in told)
        if best is None or mean - best > rule.margin:
            best, since = mean, round
        if round - since >= rule.patience and round >= rule.min_rounds:
            return round
    return None


@given(RUNS, RULES, BETTER)
def test_a_run_ends_once_patience_rounds_have_brought_no_more_than_the_margin(
    run: list[list[float]], rule: StopEarly, better: Better
) -> None:
    assert end(run, rule, better) == by_definition(run, rule, better)


@given(RUNS, RULES, BETTER)
def test_who_is_killed_in_every_round_decides_as_the_others(
    run: list[list[float]], rule: StopEarly, better: Better
) -> None:
    assert end(run, rule, better, replayed=True) == end(run, rule, better)


@given(RUNS, RULES)
def test_what_falls_is_judged_as_its_mirror_image(run: list[list[float]], rule: StopEarly) -> None:
    assert end(run, rule, "down") == end([[-figure for figure in told] for told in run], rule, "up")


@given(RUNS, RULES, BETTER)
def test_nothing_ends_before_its_time(run: list[list[float]], rule: StopEarly, better: Better) -> None:
    ended = end(run, rule, better)
    assert ended is None or ended >= max(rule.min_rounds, rule.patience + 1)


def test_a_figure_that_is_no_number_counts_as_the_worst() -> None:
    for figure in (float("nan"), float("inf"), float("-inf")):
        for better in ("up", "down"):
            told = figure_to_send(figure, better)  # type: ignore[arg-type]
            first = EarlyStopping().after(1, [told] * 3, better, 0.0)  # type: ignore[arg-type]
            then = first.after(2, [0.5] * 3, better, 0.0)  # type: ignore[arg-type]
            assert (then.round, then.waited) == (2, 0)
    assert figure_to_send(0.25, "up") == 0.25


def test_a_figure_that_is_not_defined_at_a_peer_is_in_no_mean() -> None:
    """As the AUROC at a site without positives, which would else end every run after `patience` evaluations."""
    for better, course in (("up", [0.5, 0.6, 0.7]), ("down", [0.7, 0.6, 0.5])):
        run = [[figure, UNDEFINED_FIGURE, figure] for figure in course]
        assert end(run, StopEarly(patience=1), better) is None  # type: ignore[arg-type]
        nothing = [[UNDEFINED_FIGURE] * 3] * 3
        assert end(nothing, StopEarly(patience=1), better, replayed=True) == 2  # type: ignore[arg-type]


def test_figures_from_before_a_drift_count_no_more() -> None:
    progress = EarlyStopping().after(3, [0.9], "up", 0.0).after(4, [0.5], "up", 0.0)
    assert progress.since(3) == progress
    assert progress.since(5) == EarlyStopping()


def test_the_best_of_equal_rounds_is_the_earliest_and_what_is_no_number_is_never_best() -> None:
    course = RunProgress("down")
    assert course.is_best(0.5, since=1)
    assert not course.is_best(float("nan"), since=1)
    course.best = Best(round=2, figure=0.5, model_sha256="0")
    assert not course.is_best(0.5, since=1)
    assert not course.is_best(0.6, since=2)
    assert course.is_best(0.4, since=1)
    assert course.is_best(0.6, since=3)  # the data have drifted since
