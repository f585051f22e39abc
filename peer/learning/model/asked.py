"""What a trained model is asked: inputs as people have them, or one sentence about what is wrong with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.errors import InputError, nearest


def as_inputs(x: Any, columns: Sequence[str], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An array or tensor as it is; of a table (a pandas DataFrame) the columns in the model's order.

    InputError where a column lacks or is unknown, and for a value that is no finite number.
    """
    if not hasattr(x, "columns"):
        batch = torch.as_tensor(x, dtype=dtype, device=device)
    else:
        named = _in_order(x, columns) if columns else x
        numbers = [_numbers(named[name], name) for name in named.columns]
        batch = torch.as_tensor(np.stack(numbers, axis=1), dtype=dtype, device=device)
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        _refuse(batch, columns)
    return batch


def _in_order(table: Any, columns: Sequence[str]) -> Any:
    found = [str(name).strip() for name in table.columns]
    for name in columns:
        if found.count(name) != 1:
            why = nearest(name, found) if name not in found else "rename one of them"
            lacks = "there is no column" if name not in found else "there are several columns"
            raise InputError(f"{lacks} `{name}`, which the model goes by; {why}")
    if unknown := [name for name in found if name not in columns]:
        raise InputError(f"the model knows no column `{unknown[0]}`; leave it out, it goes by {', '.join(columns)}")
    table = table.set_axis(found, axis=1)
    return table[[*columns]]


def _numbers(column: Any, name: Any) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.asarray(column, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"column `{name}` holds what is no number ({error}); convert it") from error


def _refuse(batch: Tensor, columns: Sequence[str]) -> None:
    """InputError for the first value that is not finite."""
    rows = batch[None] if batch.ndim < 2 else batch
    place = torch.argwhere(~torch.isfinite(rows))[0].tolist()
    row, column = place[0], place[-1]
    where = f" in column {f'`{columns[column]}`' if column < len(columns) else column + 1}" if rows.ndim == 2 else ""
    raise InputError(
        f"row {row + 1} of the inputs has {float(rows[tuple(place)])}{where}; fill it in or leave the row out, as "
        "a model answers to finite numbers only"
    )
