"""The tiles in Triton, for CUDA devices: a program computes one block of the product and keeps it in registers.

What leaves a program is its block of weights or its share of the counts, and one partial result for each sum and extreme,
which torch reduces on the device. Rows in float64 take the route of `torch_tiles`: the kernels accumulate in float32.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from repcap_utils.kernels import torch_tiles
from repcap_utils.kernels.torch_tiles import CosineTile, check_power, check_precision

BLOCK = 128
GROUP = 8  # rows of blocks that share columns, and with them the second-level cache
# Depth of a step along d, and stages of its pipeline: 16 KiB of either operand in flight fit sm_80 and later. The exact
# float32 product has no tensor core to feed, and long steps only cost registers.
LAUNCH = {
    "ieee": {"DEPTH": 16, "num_warps": 8, "num_stages": 3},
    "tf32": {"DEPTH": 32, "num_warps": 8, "num_stages": 3},
    "bf16": {"DEPTH": 64, "num_warps": 8, "num_stages": 3},
}
# Up to here a block is counted within its program, beyond with one atomic addition an entry.
LOCAL_SLOTS = 1024
FEWEST_SLOTS = 32  # one for each thread of a warp


def gram_power_tile(
    a: Tensor, b: Tensor, power: int, scale: float, *, diagonal: bool, precision: str = "ieee"
) -> tuple[Tensor, Tensor, Tensor]:
    """As `torch_tiles.gram_power_tile`; "tf32" and "bf16" round the rows to that type, sums are float32 throughout."""
    check_power(power)
    check_precision(precision)
    if a.dtype == torch.float64:
        return torch_tiles.gram_power_tile(a, b, power, scale, diagonal=diagonal, precision=precision)
    a, b = _operand(a, precision), _operand(b, precision)
    grid = _grid(a, b)
    weights = torch.empty(len(a), len(b), dtype=torch.float32, device=a.device)
    largest, total = torch.empty(2, *grid, dtype=torch.float32, device=a.device)
    with torch.cuda.device_of(a):  # Triton launches on the current device
        gram_power_kernel[grid](
            a, b, weights, largest, total, len(a), len(b), a.shape[1], power, 1.0 / scale,
            **constants(precision, diagonal=diagonal), **LAUNCH[precision],
        )  # fmt: skip
    return weights, largest.max(), total.sum(dtype=torch.float64)


def cosine_tile(
    a: Tensor, b: Tensor, *, bins: int, low: float, high: float, diagonal: bool, precision: str = "ieee"
) -> CosineTile:
    """As `torch_tiles.cosine_tile`; "tf32" and "bf16" round the rows to that type, sums are float32 within a block."""
    check_precision(precision)
    if a.dtype == torch.float64:
        return torch_tiles.cosine_tile(a, b, bins=bins, low=low, high=high, diagonal=diagonal, precision=precision)
    a, b = _operand(a, precision), _operand(b, precision)
    grid = _grid(a, b)
    counts = torch.zeros(bins + 2, dtype=torch.int64, device=a.device)
    total, squares = torch.zeros(2, *grid, dtype=torch.float32, device=a.device)
    minimum = torch.full(grid, math.inf, dtype=torch.float32, device=a.device)
    maximum = torch.full(grid, -math.inf, dtype=torch.float32, device=a.device)
    width = bins / (high - low)
    slots = max(FEWEST_SLOTS, triton.next_power_of_2(bins + 2)) if bins + 2 <= LOCAL_SLOTS else 0
    with torch.cuda.device_of(a):  # Triton launches on the current device
        cosine_kernel[grid](
            a, b, counts, total, squares, minimum, maximum, len(a), len(b), a.shape[1], width, 1.0 - low * width, bins,
            SLOTS=slots, **constants(precision, diagonal=diagonal), **LAUNCH[precision],
        )  # fmt: skip
    sums = total.sum(dtype=torch.float64), squares.sum(dtype=torch.float64)
    return CosineTile(counts, *sums, minimum.min(), maximum.max())


def constants(precision: str, *, diagonal: bool) -> dict[str, bool | int | str]:
    """The constants that both kernels are compiled with, beside `LAUNCH`."""
    # tl.dot's precision matters for float32 operands only.
    product = "tf32" if precision == "tf32" else "ieee"
    return {"DIAGONAL": diagonal, "PRECISION": product, "BLOCK": BLOCK, "GROUP": GROUP}


@triton.jit(do_not_specialize=["power"])
def gram_power_kernel(
    a, b, weights, largest, total, n, m, d, power, inverse,
    DIAGONAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (i, j): block (i, j) of the powers of G (a: n x d, b: m x d), its largest |G| and its sum of powers."""
    i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), GROUP)
    gram = _block_product(a, b, i, j, n, m, d, PRECISION, BLOCK, DEPTH)
    rows = i * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = j * BLOCK + tl.arange(0, BLOCK)[None, :]
    if DIAGONAL:
        gram = tl.where(rows == columns, 0.0, gram)
    quotients = gram * inverse
    result = quotients
    square = quotients
    rest = power >> 1
    while rest > 0:
        square = square * square
        if rest & 1:
            result = result * square
        rest = rest >> 1
    tl.store(weights + rows.to(tl.int64) * m + columns, result, mask=(rows < n) & (columns < m))
    program = i * tl.num_programs(1) + j
    # What lies outside n x m is 0 and changes neither.
    tl.store(largest + program, tl.max(tl.abs(gram)))
    tl.store(total + program, tl.sum(result * quotients))


@triton.jit
def cosine_kernel(
    a, b, counts, total, squares, minimum, maximum, n, m, d, width, offset, bins,
    SLOTS: tl.constexpr, DIAGONAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (i, j): count, sums and extremes of block (i, j) of the product of a (n x d) and b (m x d).

    `width` and `offset` map a cosine to its place in `counts`; SLOTS is 0 or a power of two not below bins + 2.
    """
    i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), GROUP)
    if DIAGONAL and i > j:  # nothing above the diagonal; the partial results hold what changes nothing
        return
    cosines = _block_product(a, b, i, j, n, m, d, PRECISION, BLOCK, DEPTH)
    rows = i * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = j * BLOCK + tl.arange(0, BLOCK)[None, :]
    counted = (rows < n) & (columns < m)
    if DIAGONAL:
        counted = counted & (rows < columns)
    slots = tl.minimum(tl.maximum(cosines * width + offset, 0.0), bins + 1.0).to(tl.int32)
    if SLOTS > 0:
        local = tl.histogram(tl.reshape(slots, [BLOCK * BLOCK]), SLOTS, mask=tl.reshape(counted, [BLOCK * BLOCK]))
        places = tl.arange(0, SLOTS)
        tl.atomic_add(counts + places, local.to(tl.int64), mask=local > 0, sem="relaxed")
    else:
        tl.atomic_add(counts + slots, tl.full([BLOCK, BLOCK], 1, tl.int64), mask=counted, sem="relaxed")
    program = i * tl.num_programs(1) + j
    kept = tl.where(counted, cosines, 0.0)
    tl.store(total + program, tl.sum(kept))
    tl.store(squares + program, tl.sum(kept * kept))
    tl.store(minimum + program, tl.min(tl.where(counted, cosines, float("inf"))))
    tl.store(maximum + program, tl.max(tl.where(counted, cosines, float("-inf"))))


@triton.jit
def _block_product(
    a, b, i, j, n, m, d, PRECISION: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Block (i, j) of a @ b.T (row-major n x d and m x d) in float32; 0 outside n x m."""
    rows = i * BLOCK + tl.arange(0, BLOCK)
    columns = j * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, DEPTH)
    left = a + rows.to(tl.int64)[:, None] * d + depth[None, :]
    right = b + columns.to(tl.int64)[None, :] * d + depth[:, None]
    product = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in range(0, d, DEPTH):
        inside = start + depth < d
        x = tl.load(left + start, mask=(rows < n)[:, None] & inside[None, :], other=0.0)
        y = tl.load(right + start, mask=(columns < m)[None, :] & inside[:, None], other=0.0)
        product = tl.dot(x, y, product, input_precision=PRECISION)
    return product


def _operand(rows: Tensor, precision: str) -> Tensor:
    """The rows (n x d), contiguous, in the type of the product, rounded to nearest."""
    if precision == "bf16":
        rows = rows.to(torch.bfloat16).contiguous()
        # Triton's interpreter takes bfloat16 for integers; in float32 the products of the same numbers are the same.
        return rows.to(torch.float32) if triton.knobs.runtime.interpret else rows
    rows = rows.to(torch.float32).contiguous()
    if precision == "ieee":
        return rows
    # A tensor core drops the 13 lowest bits of a float32: rounding first keeps the product free of bias.
    bits = rows.view(torch.int32)
    to_even = (bits >> 13).bitwise_and_(1)
    return to_even.add_(bits).add_((1 << 12) - 1).bitwise_and_(-1 << 13).view(torch.float32)


def _grid(a: Tensor, b: Tensor) -> tuple[int, int]:
    return triton.cdiv(len(a), BLOCK), triton.cdiv(len(b), BLOCK)
