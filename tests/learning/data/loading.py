"""Sources by their settings, as a spec would have them."""

from typing import Any

import numpy as np

from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Samples
from peer.learning.data.sources import Source, source_type


def source(name: str, **settings: Any) -> Source:
    return source_type(name).model_validate({"name": name, **settings})


def load(name: str, **settings: Any) -> Dataset:
    return source(name, **settings).load()


def everything(dataset: Dataset) -> tuple[Samples, Samples]:
    return dataset.train(np.arange(len(dataset.train_targets))), dataset.test()
