"""The tiles on a CPU with the elementwise work of the Gram power compiled into one pass; without a compiler, those of torch.

torch.compile turns squarings, maximum, weights and sum into one loop over the tile in registers. It takes seconds to compile,
once for each number of squarings, so it pays in long runs only, as `kernels.tiles` decides.
"""

import logging
from functools import cache

import torch
from torch import Tensor

from repcap_utils.kernels import torch_tiles
from repcap_utils.kernels.torch_tiles import CosineTile, cosine_tile

__all__ = ["CosineTile", "compiles", "cosine_tile", "gram_power_tile"]

ROWS = 512  # of the tiles that are compiled: every other size would need a version of its own
LEAST_SQUARINGS = 6  # torch.compile keeps eight versions of a function: 6 to 13 squarings, up to where float32 ends

_log = logging.getLogger(__name__)


def gram_power_tile(
    a: Tensor, b: Tensor, power: int, scale: float, *, diagonal: bool, precision: str = "ieee"
) -> tuple[Tensor, Tensor, Tensor]:
    """As `torch_tiles.gram_power_tile`, to rounding; compiled for float32 tiles of `ROWS` x `ROWS`."""
    if len(a) != ROWS or len(b) != ROWS or a.dtype != torch.float32 or not compiles():
        return torch_tiles.gram_power_tile(a, b, power, scale, diagonal=diagonal, precision=precision)
    torch_tiles.check_power(power)
    quotients, weights = torch_tiles.quotients(a, b, scale, diagonal=diagonal, precision=precision, buffers=2)
    largest, total = _fused(quotients, weights, _binary(power >> 1))
    return weights, largest * scale, total


@cache
def compiles() -> bool:
    """Whether torch.compile works here: it needs a C++ compiler. Tried once, on a small tile."""
    quotients, weights = torch.zeros(2, ROWS, ROWS)
    try:
        _fused(quotients, weights, _binary(1))
    except Exception as error:  # whatever a missing or broken compiler raises
        _log.info("elementwise work is not compiled: %s", type(error).__name__)
        return False
    return True


@cache
def _binary(number: int) -> Tensor:
    """The binary digits of `number`, the lowest first, as bool, padded to `LEAST_SQUARINGS`."""
    length = max(LEAST_SQUARINGS, number.bit_length())
    return torch.tensor([bool(number >> place & 1) for place in range(length)])


@torch.compile(dynamic=False, fullgraph=True)
def _fused(quotients: Tensor, weights: Tensor, digits: Tensor) -> tuple[Tensor, Tensor]:
    """Fill `weights` with quotients^(1 + 2 * the number of the digits); max |quotient| and sum of quotient * weight."""
    last = factor = quotients
    for place in range(len(digits)):
        factor = factor * factor
        last = torch.where(digits[place], last * factor, last)
    weights.copy_(last)
    return quotients.abs().amax(), (last * quotients).sum()
