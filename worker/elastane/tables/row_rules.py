"""Optimizers of rows: how a push updates the rows for which it has gradients.

Every operation is rounded separately to the row's type, in the order written here, so that all machines get
the same bits; only `row_sgd` uses torch's function, to have the stock optimizer's bits. g: gradient of a row,
w: its values, d: their number.

    row_sgd          w = w - lr g                           as torch.optim.SGD on a coalesced gradient
    rowwise_adagrad  s = s + sum_j(g_j^2) / d               one number s a row, at first
                     w = w - g / (sqrt(s) + eps) lr         initial_accumulator_value
    lazy_adam        t = t + 1                              the row's own count: torch's SparseAdam has
                     m = m + (g - m) (1 - beta1)            one for the whole table
                     v = v beta2 + g^2 (1 - beta2)
                     w = w - m / (sqrt(v) / sqrt(1 - beta2^t) + eps) (lr / (1 - beta1^t))

The sum pads the row with zeros to a power of two, and repeatedly adds its halves until one number is left.
Row-wise Adagrad: Naumov et al., "Deep learning recommendation model", 2019; lazy Adam: TensorFlow Addons'
LazyAdam.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

#: Columns of a rule besides the values: name; elements per row (0: a scalar, -1: as many as the values); type
#: (None: that of the values).
STATES: Final[dict[str, tuple[tuple[str, int, DTypeLike | None], ...]]] = {
    "row_sgd": (),
    "rowwise_adagrad": (("sum", 0, None),),
    "lazy_adam": (("steps", 0, np.int32), ("average", -1, None), ("square", -1, None)),
}

Columns = Sequence[NDArray[Any]]


def first_state(rule: str, numbers: Sequence[float]) -> float:
    """Return the initial value of a rule's first column; the others start with 0."""
    return numbers[1] if rule == "rowwise_adagrad" else 0.0


def updated(rule: str, rows: Columns, gradients: NDArray[Any], numbers: Sequence[float]) -> Columns:
    """Return the columns after a step. rows: values and states of the rows, copies that may be changed.

    numbers: of the rule, as `rates.NAMES` has them.
    """
    if rule == "row_sgd":
        torch.from_numpy(rows[0]).add_(torch.from_numpy(gradients), alpha=-numbers[0])
        return rows
    with np.errstate(all="ignore"):  # values that are not finite are not checked here, as in torch
        if rule == "rowwise_adagrad":
            return _rowwise_adagrad(rows, gradients, *numbers)
        return _lazy_adam(rows, gradients, *numbers)


def _rowwise_adagrad(
    rows: Columns, gradients: NDArray[Any], lr: float, initial: float, eps: float
) -> Columns:
    values, sums = rows
    sums += halved_sum(gradients * gradients) / gradients.shape[1]
    scaled = gradients / (np.sqrt(sums) + eps)[:, None]
    scaled *= lr
    values -= scaled
    return values, sums


def _lazy_adam(
    rows: Columns, gradients: NDArray[Any], lr: float, beta1: float, beta2: float, eps: float
) -> Columns:
    values, steps, average, square = rows
    steps += 1
    average += (gradients - average) * (1 - beta1)
    square *= beta2
    square += gradients * gradients * (1 - beta2)
    counts, of_row = np.unique(steps, return_inverse=True)
    # In Python, as in torch, because numpy's powers depend on the machine.
    sizes = np.array([lr / (1 - beta1 ** int(count)) for count in counts]).astype(values.dtype)
    roots = np.array([sqrt(1 - beta2 ** int(count)) for count in counts]).astype(values.dtype)
    denominator = np.sqrt(square)
    denominator /= roots[of_row][:, None]
    denominator += eps
    scaled = average / denominator
    scaled *= sizes[of_row][:, None]
    values -= scaled
    return values, steps, average, square


def halved_sum(squares: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of each row, in an order that depends only on its length."""
    width = squares.shape[1]
    size = 1 << max(width - 1, 0).bit_length()
    if size != width:
        squares = np.concatenate([squares, np.zeros((len(squares), size - width), squares.dtype)], axis=1)
    while size > 1:
        size //= 2
        squares = squares[:, :size] + squares[:, size:]
    summed: NDArray[Any] = squares[:, 0]
    return summed
