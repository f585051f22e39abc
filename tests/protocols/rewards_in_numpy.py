"""CGSV, RFFL and CFFL in numpy, from the papers: every round of a run computed again from what was trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from federations import Vector
from rewards import ROUNDS, Watched

LAYERS = np.split(np.arange(610), [512, 520, 600])


def top(vector: Vector, count: int) -> Vector:
    """The largest entries, zero elsewhere; NaN for those as large as the least of them, where not all have room."""
    sizes = np.abs(vector)
    least = np.sort(sizes)[-count] if count else np.inf
    undecided = (np.abs(sizes - least) < 1e-8) & (sizes > 1e-8) & ((sizes > least - 1e-8).sum() > count)
    return np.where(undecided, np.nan, np.where(sizes > least - 1e-8, vector, 0))


def top_by_layer(vector: Vector, share: float) -> Vector:
    return np.concatenate([top(vector[layer], int(np.ceil(share * len(layer)))) for layer in LAYERS])


def assert_close(found: Any, expected: Vector) -> None:
    known = ~np.isnan(expected)
    assert known.mean() > 0.95
    np.testing.assert_allclose(np.asarray(found)[known], expected[known], atol=2e-6)


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@dataclass
class Expected:
    sent: Vector
    """(N, p) a round."""
    after: Vector
    reputation: Vector
    reward: Vector


def shapes(watched: Watched) -> tuple[Vector, Vector, Vector]:
    """Models at the start of each round, changes (rounds, N, p), samples (N,)."""
    assert watched.run
    start = np.stack([[one["start"] for one in watched.run.traces(t + 1).values()] for t in range(ROUNDS)])
    changes = np.stack([watched.changes[peer] for peer in watched.run.ids], axis=1)
    samples = np.array([runtime.peer.samples for runtime in watched.runtimes.values()], float)
    return start, changes, samples


def cgsv(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    weights, r = samples / samples.sum(), np.zeros(len(samples))
    for start, change, told in zip(models, changes, watched.told(), strict=True):
        scaled = 0.4 * told / np.linalg.norm(told, axis=1, keepdims=True)
        u = weights @ scaled
        r = np.maximum(0.7 * r + 0.3 * np.array([cosine(one, u) for one in scaled]), 1e-3)
        r = weights = r / r.sum()
        q = np.tanh(2 * r) / np.tanh(2 * r).max()
        yield Expected(change, start + np.stack([top_by_layer(u, share) for share in q]), r, q)


def rffl(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    weights, r, staying = samples / samples.sum(), np.zeros(len(samples)), np.ones(len(samples), bool)
    for t, (start, change, told) in enumerate(zip(models, changes, watched.told(), strict=True), 1):
        norms = np.linalg.norm(change, axis=1, keepdims=True)
        own = change * np.minimum(1, 0.4 / norms)
        sent = own * staying[:, None]
        u = weights @ told
        found = [cosine(one, u) if stays else 0 for one, stays in zip(told, staying, strict=True)]
        r = np.maximum(0.3 * r + 0.7 * np.array(found), 0)
        r = r / r.sum()
        if t > 2:
            staying = staying & (r >= 0.9 / staying.sum())
            r = np.where(staying, r, 0) / r[staying].sum()
        weights, q = r, r / r.max()
        rewards = [top_by_layer(u, share) * stays for share, stays in zip(q, staying, strict=True)]
        yield Expected(sent, start + own + np.stack(rewards), r, q)


def cffl(watched: Watched) -> Iterator[Expected]:
    models, changes, samples = shapes(watched)
    public = watched.runtimes["peer0"].peer.validation
    shared, c, staying = models[0, 0], np.zeros(len(samples)), np.ones(len(samples), bool)
    for t, (start, change, told) in enumerate(zip(models, changes, watched.told(), strict=True)):
        sent = np.stack([np.clip(top(one, int(0.3 * 610)), -0.02, 0.02) for one in change]) * staying[:, None]
        scores = np.array([right(shared + one, public) for one in told]) * staying
        c = 0.4 * c + 0.6 * scores / scores.sum()
        c = np.sinh(5 * (1 + t / ROUNDS) * c) * staying
        c = c / c.sum()
        staying = staying & (c >= 0.85 / staying.sum())
        c = np.where(staying, c, 0) / c[staying].sum()
        parts = samples * staying / samples[staying].sum()
        total = parts @ told
        q = c / c.max() * parts / parts.max()
        rewards = [top(total, int(share * 610)) - part * one for share, part, one in zip(q, parts, told, strict=True)]
        shared = shared + total
        yield Expected(sent, start + change + np.stack(rewards) * staying[:, None], c, q)


def right(model: Vector, samples: Any) -> float:
    """The accuracy of `federations:tiny`."""
    w1, b1, w2, b2 = (model[layer] for layer in LAYERS)
    hidden = np.maximum(samples.x.numpy().reshape(-1, 64) @ w1.reshape(8, 64).T + b1, 0)
    return float(((hidden @ w2.reshape(10, 8).T + b2).argmax(1) == samples.y.numpy()).mean())
