"""The tiles in plain torch, for any device and floating-point type: the reference, and the route on a CPU."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_BINS = 1_000_000
PRECISIONS = ("ieee", "tf32", "bf16")


class CosineTile(NamedTuple):
    """What the histogram and the moments need of a tile of cosines; every field lies on the tile's device.

    Attributes:
        counts: int64 [bins + 2]: entries below the range, the bins in order, entries at or above its end.
        total: float64 0-d, the sum of the entries.
        squares: float64 0-d, the sum of their squares.
        minimum: 0-d, the smallest entry; infinity when there is none.
        maximum: 0-d, the largest entry; minus infinity when there is none.
    """

    counts: Tensor
    total: Tensor
    squares: Tensor
    minimum: Tensor
    maximum: Tensor


def gram_power_tile(
    a: Tensor, b: Tensor, power: int, scale: float, *, diagonal: bool, precision: str = "ieee"
) -> tuple[Tensor, Tensor, Tensor]:
    """An odd power of the entries of G = `a @ b.T`, with the largest |G_ij| and the sum of the next even power.

    Args:
        a: n x d block of rows.
        b: m x d block of the same type and device.
        power: odd, at least 1, so that the sign survives.
        scale: divides G first; positive, about the largest |G_ij|, so that no power overflows.
        diagonal: `a` and `b` are the same rows: entries with row == column are left out and get the weight 0.
        precision: "ieee", or "bf16" to round the rows to bfloat16 first; "tf32" is computed as "ieee".

    Returns:
        (G / scale)^power (n x m, a view of a buffer of three such tiles); max |G_ij| and sum |G_ij / scale|^(power + 1),
        both 0-d on the device.

    Raises:
        ValueError: an even power or an unknown precision.
    """
    check_power(power)
    base, square, weights = quotients(a, b, scale, diagonal=diagonal, precision=precision, buffers=3)
    low, high = torch.aminmax(base)
    weights = _odd_power(base, power, square, weights)
    # torch.sum adds in a cascade, where a dot product of this length would lose digits.
    total = torch.mul(base, weights, out=square).sum()
    return weights, torch.maximum(-low, high) * scale, total


def quotients(a: Tensor, b: Tensor, scale: float, *, diagonal: bool, precision: str, buffers: int) -> Tensor:
    """`buffers` x n x m: first `a @ b.T` / `scale`, with zeros in the diagonal where asked for, then room for as many more.

    Raises:
        ValueError: an unknown precision.
    """
    a, b = _rounded(a, b, precision)
    # One allocation for all: the C library gives freed memory back to the system when several of this size meet.
    tile = a.new_empty(buffers, len(a), len(b))
    torch.addmm(tile[0], a, b.T, beta=0.0, alpha=1.0 / scale, out=tile[0])
    if diagonal:
        tile[0].fill_diagonal_(0.0)
    return tile


def cosine_tile(
    a: Tensor, b: Tensor, *, bins: int, low: float, high: float, diagonal: bool, precision: str = "ieee"
) -> CosineTile:
    """Count the entries of `a @ b.T` in `bins` equal bins of [low, high), with their moments and extremes.

    An entry within rounding of an edge may fall on either side of it; the counts add up to exactly the number of entries
    looked at.

    Args:
        a: n x d floating-point block of unit rows.
        b: m x d block of the same type and device.
        bins: number of bins, 1 to `MAX_BINS` (a bin's index must be exact in float32).
        low: lower end of the first bin.
        high: upper end of the last bin, above `low`.
        diagonal: look only at the entries above the main diagonal (`a` and `b` are the same rows).
        precision: "ieee", or "bf16" to round the rows to bfloat16 first; "tf32" is computed as "ieee".

    Raises:
        ValueError: an unknown precision.
    """
    a, b = _rounded(a, b, precision)
    cosines = a @ b.T
    # The sum of all products is the product of the sums: exact, and cheaper than a pass over the tile.
    total = a.sum(dim=0, dtype=torch.float64) @ b.sum(dim=0, dtype=torch.float64)
    if diagonal:
        # The lower triangle repeats the upper one: half of what is off the diagonal.
        total = (total - torch.linalg.vector_norm(a, dtype=torch.float64).square()) / 2.0
        squares = _sum_of_squares(cosines.fill_diagonal_(0.0)) / 2.0
        minimum, maximum = cosines.fill_diagonal_(math.inf).amin(), cosines.fill_diagonal_(-math.inf).amax()
    else:
        squares = _sum_of_squares(cosines)
        minimum, maximum = torch.aminmax(cosines)
    # Slots: 0 is for entries not to be counted, 1 below, then the bins, then above. One byte a slot keeps the memory
    # traffic of the count below that of the product.
    width = bins / (high - low)
    slots = torch.add(cosines.new_tensor(2.0 - low * width), cosines, alpha=width, out=cosines).clamp_(1, bins + 2)
    index = slots.to(torch.uint8 if bins + 2 <= 255 else torch.int32)
    if diagonal:
        index.triu_(1)
    counts = torch.bincount(index.view(-1), minlength=bins + 3)[1:]
    return CosineTile(counts, total, squares, minimum, maximum)


def check_power(power: int) -> None:
    """Refuse a power that would lose the sign.

    Raises:
        ValueError: `power` is even or below 1.
    """
    if power < 1 or power % 2 == 0:
        raise ValueError(f"power is {power}; it must be odd and at least 1")


def check_precision(precision: str) -> None:
    """Refuse a name that is not in `PRECISIONS`.

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}")


def _rounded(a: Tensor, b: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    check_precision(precision)
    if precision != "bf16":
        return a, b
    return a.to(torch.bfloat16).to(a.dtype), b.to(torch.bfloat16).to(b.dtype)


def _odd_power(base: Tensor, power: int, square: Tensor, result: Tensor) -> Tensor:
    """base^power for an odd power by repeated squaring in the last two buffers; `base` itself is the power 1."""
    last, factor = base, base
    while power := power >> 1:
        factor = torch.square(factor, out=square)
        if power & 1:
            last = torch.mul(last, factor, out=result)
    return last


def _sum_of_squares(cosines: Tensor) -> Tensor:
    # by rows: one float32 sum over millions of entries would lose digits
    return torch.linalg.vector_norm(cosines, dim=1).double().square_().sum()
