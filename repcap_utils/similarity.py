"""Cosine similarities of all distinct pairs of rows of a matrix, without ever holding the V x V matrix.

`epsilon` of an embedding matrix, the mean plus two standard deviations of the pairwise cosines, is the measured
non-orthogonality of arXiv 2606.02765. The paper samples pairs; here every pair i < j counts, by a Gram identity for the
moments and by tiles of the upper triangle for the histogram, the extremes and the nearest neighbours.

Zero rows have no direction: they are left out and counted. Rows are normalised in float64 whatever the storage type.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repcap_utils.errors import RepcapError
from repcap_utils.kernels import tiles
from repcap_utils.kernels.torch_tiles import MAX_BINS, CosineTile

Matrix = Tensor | np.ndarray

SCRATCH_BYTES = 2**28
SCAN_ROWS = 1024
GRAM_PANEL = 256
CPU_TILE = 2048
GPU_TILE = 8192
# Float32 cosines resolve no finer bins.
NARROWEST_BIN = 1e-7


@dataclass(frozen=True)
class CosineMoments:
    """Moments of the cosines of all pairs i < j of non-zero rows; `std` is the population standard deviation."""

    mean: float
    std: float
    pairs: int
    rows: int
    zero_rows: int
    duplicate_rows: int

    @property
    def epsilon(self) -> float:
        """mean + 2 std (arXiv 2606.02765)."""
        return self.mean + 2.0 * self.std


class _CountsAndEdges(NamedTuple):
    counts: np.ndarray
    edges: np.ndarray


class CosineHistogram(_CountsAndEdges):
    """The pair (`counts` int64 [bins], `edges` float64 [bins + 1]), and what the same pass tells of all pairs.

    Attributes:
        below, above: pairs outside the range; `below + counts.sum() + above` is exactly the number of pairs.
        mean, std: of all pairs, within the range or not, `std` the population standard deviation. They have the
            precision of the tiles: a `std` below about 1e-3 of the mean loses its digits. `cosine_moments` is exact.
        minimum, maximum: of all pairs; `extremes` also names the pairs.
    """

    below: int
    above: int
    mean: float
    std: float
    minimum: float
    maximum: float

    def __new__(
        cls,
        counts: np.ndarray,
        edges: np.ndarray,
        below: int = 0,
        above: int = 0,
        mean: float = math.nan,
        std: float = math.nan,
        minimum: float = math.nan,
        maximum: float = math.nan,
    ) -> "CosineHistogram":
        histogram = super().__new__(cls, counts, edges)
        histogram.below, histogram.above = below, above
        histogram.mean, histogram.std = mean, std
        histogram.minimum, histogram.maximum = minimum, maximum
        return histogram


class Extremes(NamedTuple):
    """The largest and the smallest pairwise cosine, each with its pair of row numbers i < j."""

    maximum: float
    maximum_pair: tuple[int, int]
    minimum: float
    minimum_pair: tuple[int, int]


@dataclass(frozen=True)
class UnitRows:
    """The non-zero rows of a matrix, normalised in blocks on demand.

    `matrix` is V x d, `index` the numbers of its non-zero rows, `peaks` and `norms` (float64, one a kept row) the two
    factors of their lengths: dividing by the largest entry first keeps the squares of float64 rows in range.
    """

    matrix: Tensor
    index: Tensor
    peaks: Tensor
    norms: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def d_model(self) -> int:
        return self.matrix.shape[1]

    @property
    def zero_rows(self) -> int:
        return len(self.matrix) - len(self)

    @property
    def tile_dtype(self) -> torch.dtype:
        """The type of products in tiles: float64 for float64 input, else float32 (cosines good to about 1e-7)."""
        return torch.float64 if self.matrix.dtype == torch.float64 else torch.float32

    def raw(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the non-zero rows, as stored."""
        return self.matrix[start:stop] if len(self) == len(self.matrix) else self.matrix[self.index[start:stop]]

    def block(self, start: int, stop: int) -> Tensor:
        """The same rows, float64, with unit length; always a fresh tensor."""
        return _divided(self.raw(start, stop), self.peaks[start:stop]).div_(self.norms[start:stop, None])

    def chosen(self, positions: Tensor) -> "UnitRows":
        """The rows at these positions among the non-zero rows."""
        return UnitRows(self.matrix, self.index[positions], self.peaks[positions], self.norms[positions])

    def spans(self) -> Iterator[tuple[int, int]]:
        """Starts and stops that cover all non-zero rows in blocks of a size that suits d."""
        return _spans(len(self), block_rows(self.d_model))

    def blocks(self) -> Iterator[Tensor]:
        """All unit rows in order, in blocks."""
        return (self.block(start, stop) for start, stop in self.spans())


def random_floor(d_model: int) -> float:
    """2 / sqrt(d): the epsilon of many independent random directions (mean 0, standard deviation 1 / sqrt(d)).

    Raises:
        RepcapError: `d_model` is below 1.
    """
    if d_model < 1:
        raise RepcapError(f"d_model is {d_model}; it must be at least 1")
    return 2.0 / math.sqrt(d_model)


def as_matrix(weight: Matrix, device: str | torch.device | None = None) -> Tensor:
    """`weight` as a detached V x d floating-point tensor on `device` (None: where it lies).

    Raises:
        RepcapError: not a floating-point matrix, empty, or a device that is not there.
    """
    tensor = weight.detach() if isinstance(weight, Tensor) else _from_numpy(weight)
    if tensor.ndim != 2:
        raise RepcapError(f"weight has shape {tuple(tensor.shape)}; pass a matrix, one vector a row")
    if tensor.numel() == 0:
        raise RepcapError(f"weight is empty (shape {tuple(tensor.shape)}); pass at least two rows")
    if not tensor.is_floating_point():
        raise RepcapError(f"weight has type {tensor.dtype}; convert it to a real floating-point type")
    if device is None:
        return tensor
    try:
        return tensor.to(torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:
        raise RepcapError(f"device {str(device)!r} cannot be used here; pass 'cpu', 'cuda' or None") from error


def unit_rows(weight: Matrix, *, device: str | torch.device | None = None) -> UnitRows:
    """Scan `weight` (V x d) once for the lengths of its rows and drop the zero rows.

    Raises:
        RepcapError: see `as_matrix`; a row with a NaN or an infinity (the first is named).
    """
    matrix = as_matrix(weight, device)
    peaks = torch.ones(len(matrix), dtype=torch.float64, device=matrix.device)
    norms = torch.empty_like(peaks)
    for start, stop in _spans(len(matrix), block_rows(matrix.shape[1])):
        raw = matrix[start:stop]
        if raw.dtype == torch.float64:
            peak = torch.linalg.vector_norm(raw, ord=math.inf, dim=1)
            peaks[start:stop] = torch.where(peak == 0, 1.0, peak)
        norms[start:stop] = torch.linalg.vector_norm(_divided(raw, peaks[start:stop]), dim=1)
        bad = torch.nonzero(~torch.isfinite(norms[start:stop]))
        if len(bad):
            raise RepcapError(f"row {start + int(bad[0])} of weight holds a NaN or an infinity; remove or repair it")
    index = torch.nonzero(norms).squeeze(1)
    return UnitRows(matrix, index, peaks[index], norms[index])


def block_rows(d_model: int, most: int = SCAN_ROWS) -> int:
    """Rows of a block, at most `most`, such that a few float64 copies of it take about 256 MB."""
    return max(16, min(most, SCRATCH_BYTES // (32 * d_model)))


def cosine_moments(weight: Matrix, *, device: str | torch.device | None = None) -> CosineMoments:
    """Exact mean and standard deviation of the cosines of all pairs i < j of non-zero rows of `weight` (V x d).

    With unit rows u_i = m + v_i about their mean m, c_ij - |m|^2 = m.v_i + m.v_j + v_i.v_j, so sums over all pairs of
    the value and of its square need only V x d passes and the d x d matrix sum_i v_i v_i^T: O(V d^2) operations in
    float64 and d x d + O(d) scratch. Centring first keeps the variance when the rows nearly agree.

    Raises:
        RepcapError: see `unit_rows`; fewer than two non-zero rows.
    """
    return moments_of(unit_rows(weight, device=device))


def moments_of(rows: UnitRows, *, duplicates: int | None = None) -> CosineMoments:
    """`cosine_moments` of rows whose lengths are known already, and the number of duplicates too where it is given.

    Raises:
        RepcapError: fewer than two rows.
    """
    _at_least_two(rows)
    moments = _direct_moments(rows) if _are_few(rows) else _gram_moments(rows)
    return _cosine_moments(rows, *moments, duplicates)


def moments_with_and_without(
    rows: UnitRows, dropped: Tensor, *, duplicates: int | None = None
) -> tuple[CosineMoments, CosineMoments]:
    """`moments_of` all rows, and of those that remain without the positions `dropped`, for the price of the first.

    The sums of the Gram identity are sums over rows, so those of the dropped rows are computed about the same centre and
    taken away.

    Args:
        rows: all of them.
        dropped: positions among them.
        duplicates: the number of rows equal to an earlier one, if it is known already and all of these are dropped.

    Raises:
        RepcapError: fewer than two rows remain.
    """
    is_kept = torch.ones(len(rows), dtype=torch.bool, device=rows.index.device)
    is_kept[dropped] = False
    kept = _at_least_two(rows.chosen(is_kept.nonzero().squeeze(1)))
    left = None if duplicates is None else 0
    if _are_few(kept):
        without = _cosine_moments(kept, *_direct_moments(kept), left)
        return moments_of(rows, duplicates=duplicates), replace(without, zero_rows=rows.zero_rows)
    centre = _centre(rows)
    sums = _gram_sums(rows, centre)
    whole = _cosine_moments(rows, *_moments_about(centre, sums), duplicates)
    if len(kept) < len(rows):
        for total, part in zip(sums, _gram_sums(rows.chosen(dropped), centre), strict=True):
            total.sub_(part)
    without = _cosine_moments(kept, *_moments_about(centre, sums), left)
    return whole, replace(without, zero_rows=rows.zero_rows)


def cosine_histogram(
    weight: Matrix,
    bins: int = 200,
    range: tuple[float, float] = (-1.0, 1.0),
    *,
    device: str | torch.device | None = None,
    tile: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CosineHistogram:
    """Histogram of the cosines of all pairs i < j of non-zero rows of `weight` (V x d), counted in int64, with moments.

    Bins are half-open on the right. Cosines that leave [-1, 1] by rounding, and 1 itself, belong to the end bins when
    the range reaches that far; pairs outside a narrower range are counted in `below` and `above`. Products are float32
    (float64 for float64 input), so a cosine within about 1e-7 of an edge may fall on either side, and the mean, standard
    deviation and extremes of the same pass are no better than that (see `CosineHistogram`).

    Args:
        weight: V x d.
        bins: number of equal bins, 1 to 1,000,000.
        range: lower end of the first and upper end of the last bin.
        device: where to compute; None is where `weight` lies.
        tile: rows of a tile; None chooses by device and d, for at most about 256 MB of scratch on a CPU.
        progress: called after each tile with the pairs done and the pairs in all.

    Raises:
        RepcapError: see `cosine_moments`; bins, range or tile that make no sense.
    """
    low, high = _checked_range(range)
    if not 1 <= bins <= MAX_BINS:
        raise RepcapError(f"bins is {bins}; it must lie between 1 and {MAX_BINS}")
    if (high - low) / bins < NARROWEST_BIN:
        raise RepcapError(f"{bins} bins over {low} to {high} are narrower than {NARROWEST_BIN:g}; ask for fewer")
    rows = _at_least_two(unit_rows(weight, device=device))
    cosine_tile = tiles(rows.matrix.device).cosine_tile
    whole, done = None, 0
    for i, j, a, b in upper_tiles(rows, tile):
        part = cosine_tile(a, b, bins=bins, low=low, high=high, diagonal=i == j)
        whole = part if whole is None else _together(whole, part)
        done += len(a) * (len(a) - 1) // 2 if i == j else len(a) * len(b)
        if progress is not None:
            progress(done, _pairs(rows))
    return _histogram(whole, _pairs(rows), low, high)


def extremes(weight: Matrix, *, device: str | torch.device | None = None) -> Extremes:
    """The largest and the smallest cosine of all pairs i < j of non-zero rows of `weight` (V x d).

    Row numbers are those of `weight`, zero rows included. The search runs in float32 tiles (float64 for float64 input),
    so of pairs that agree to about 1e-7 any may be named; its cosine is then evaluated in float64.

    Raises:
        RepcapError: see `cosine_moments`.
    """
    rows = _at_least_two(unit_rows(weight, device=device))
    top, bottom = -math.inf, math.inf
    top_pair = bottom_pair = (0, 1)
    for i, j, a, b in upper_tiles(rows):
        cosines = a @ b.T
        # The lower triangle repeats the upper one and the diagonal is no pair: both get a value that cannot win.
        over = _without_lower(cosines, -math.inf) if i == j else cosines
        under = _without_lower(cosines, math.inf) if i == j else cosines
        largest, smallest = float(over.max()), float(under.min())
        if largest > top:
            top, top_pair = largest, _position(over.argmax(), i, j, len(b))
        if smallest < bottom:
            bottom, bottom_pair = smallest, _position(under.argmin(), i, j, len(b))
    return Extremes(*_evaluated(rows, top_pair), *_evaluated(rows, bottom_pair))


def nearest_neighbours(
    weight: Matrix, k: int = 1, *, device: str | torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """The `k` rows of largest cosine to each row of `weight` (V x d), itself excluded, best first.

    Returns:
        values: V x k, float32 (float64 for float64 input), clamped to [-1, 1]; 0.0 for a zero row.
        indices: V x k int64 row numbers of `weight`; -1 for a zero row. Equal values go to the lower number.

    Raises:
        RepcapError: see `cosine_moments`; `k` below 1 or not below the number of non-zero rows.
    """
    rows = _at_least_two(unit_rows(weight, device=device))
    if not 1 <= k < len(rows):
        raise RepcapError(f"k is {k}; with {len(rows)} non-zero rows it must lie between 1 and {len(rows) - 1}")
    best = torch.full((len(rows), k), -math.inf, dtype=rows.tile_dtype, device=rows.matrix.device)
    where = torch.full((len(rows), k), -1, dtype=torch.int64, device=rows.matrix.device)
    for i, j, a, b in upper_tiles(rows):
        cosines = (a @ b.T).clamp_(-1.0, 1.0)
        if i == j:
            cosines.fill_diagonal_(-math.inf)
        else:
            _merge(
                best[j : j + len(b)], where[j : j + len(b)], cosines.T.clone(memory_format=torch.contiguous_format), i
            )
        _merge(best[i : i + len(a)], where[i : i + len(a)], cosines, j)
    values = torch.zeros(len(rows.matrix), k, dtype=best.dtype, device=best.device)
    indices = torch.full((len(rows.matrix), k), -1, dtype=torch.int64, device=best.device)
    values[rows.index], indices[rows.index] = best, rows.index[where]
    return values, indices


def duplicate_rows(rows: UnitRows) -> Tensor:
    """Positions (ascending) of the rows that equal an earlier one as stored.

    Rows are sorted by a hash, then compared entry by entry with the first of their hash.
    """
    hashes = _hashes(rows)
    waiting = torch.argsort(hashes, stable=True)
    found = [waiting[:0]]
    while len(waiting) > 1:
        key = hashes[waiting]
        repeats = torch.zeros(len(waiting), dtype=torch.bool, device=key.device)
        repeats[1:] = key[1:] == key[:-1]
        firsts = waiting[~repeats][torch.cumsum(~repeats, dim=0) - 1]
        equal = _rows_equal(rows, waiting[repeats], firsts[repeats])
        found.append(waiting[repeats][equal])
        # A row that shares only the hash starts the next round.
        waiting = waiting[repeats][~equal]
    return torch.cat(found).sort().values


def add_gram(total: Tensor, block: Tensor) -> None:
    """Add `block.T @ block` (block n x d) to the upper triangle of `total` (d x d); below it `total` is undefined."""
    for start, stop in _spans(len(total), GRAM_PANEL):
        total[start:stop, start:].addmm_(block[:, start:stop].T, block[:, start:])


def _from_numpy(weight: np.ndarray) -> Tensor:
    array = np.asarray(weight)
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise RepcapError(f"weight has type {array.dtype}; pass float16, float32 or float64, or a torch tensor")
    # torch can neither share read-only memory nor negative strides.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _divided(raw: Tensor, peaks: Tensor) -> Tensor:
    """`raw` in float64, a fresh tensor; squares of shorter types are in float64's range without a division."""
    return raw / peaks[:, None] if raw.dtype == torch.float64 else raw.to(torch.float64)


def _spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, count)) for start in range(0, count, size))


def _pairs(rows: UnitRows) -> int:
    return len(rows) * (len(rows) - 1) // 2


def _at_least_two(rows: UnitRows) -> UnitRows:
    if len(rows) < 2:
        raise RepcapError(
            f"weight of shape {tuple(rows.matrix.shape)} has {len(rows)} non-zero rows; a pair needs two or more"
        )
    return rows


def _are_few(rows: UnitRows) -> bool:
    """Whether the cosines themselves are no larger than a d x d matrix."""
    return len(rows) <= max(rows.d_model, GRAM_PANEL)


def _cosine_moments(rows: UnitRows, mean: float, variance: float, duplicates: int | None) -> CosineMoments:
    return CosineMoments(
        mean=mean,
        std=math.sqrt(max(variance, 0.0)),
        pairs=_pairs(rows),
        rows=len(rows),
        zero_rows=rows.zero_rows,
        duplicate_rows=len(duplicate_rows(rows)) if duplicates is None else duplicates,
    )


def _direct_moments(rows: UnitRows) -> tuple[float, float]:
    unit = rows.block(0, len(rows))
    cosines = unit @ unit.T
    ordered = 2 * _pairs(rows)
    mean = float(cosines.fill_diagonal_(0.0).sum()) / ordered
    deviations = cosines.sub_(mean).fill_diagonal_(0.0)
    return mean, float(deviations.square_().sum()) / ordered


def _gram_moments(rows: UnitRows) -> tuple[float, float]:
    centre = _centre(rows)
    return _moments_about(centre, _gram_sums(rows, centre))


def _centre(rows: UnitRows) -> Tensor:
    return sum(block.sum(dim=0) for block in rows.blocks()) / len(rows)


class _GramSums(NamedTuple):
    """Sums over rows i of what the Gram identity needs, with v_i = u_i - centre and a_i = centre.v_i.

    `scalars` holds those of 1, a_i, a_i^2, x_ii and x_ii^2, where x_ii = 2 a_i + |v_i|^2 is what the diagonal adds;
    `vectors` (2 x d) those of v_i and a_i v_i; `gram` (d x d, upper triangle) that of v_i v_i^T.
    """

    scalars: Tensor
    vectors: Tensor
    gram: Tensor


def _gram_sums(rows: UnitRows, centre: Tensor) -> _GramSums:
    d = rows.d_model
    gram = torch.zeros(d, d, dtype=torch.float64, device=centre.device)
    vectors = torch.zeros(2, d, dtype=torch.float64, device=centre.device)
    scalars = torch.zeros(5, dtype=torch.float64, device=centre.device)
    for block in rows.blocks():
        v = block.sub_(centre)
        a = v @ centre
        x = 2.0 * a + torch.linalg.vector_norm(v, dim=1).square_()
        add_gram(gram, v)
        vectors[0] += v.sum(dim=0)
        vectors[1] += v.T @ a
        scalars += torch.stack([torch.ones_like(a).sum(), a.sum(), a.square().sum(), x.sum(), x.square().sum()])
    return _GramSums(scalars, vectors, gram)


def _moments_about(centre: Tensor, sums: _GramSums) -> tuple[float, float]:
    """Mean and variance of the cosines of all pairs of the rows behind the sums."""
    count, sum_a, sum_a2, sum_x, sum_x2 = sums.scalars.tolist()
    sum_v, sum_av = sums.vectors
    # By panels: a triangle of all of it would be a second d x d matrix.
    above = sum(
        float(sums.gram[start:stop, start:].triu(1).square_().sum()) for start, stop in _spans(len(centre), GRAM_PANEL)
    )
    frobenius = float(sums.gram.diagonal().square().sum()) + 2.0 * above
    first = 2.0 * count * sum_a + float(sum_v @ sum_v) - sum_x
    second = 2.0 * count * sum_a2 + 2.0 * sum_a**2 + 4.0 * float(sum_av @ sum_v) + frobenius - sum_x2
    ordered = count * (count - 1.0)
    return float(centre @ centre) + first / ordered, second / ordered - (first / ordered) ** 2


def _hashes(rows: UnitRows) -> Tensor:
    """An int64 a row, equal for equal rows: the bits of its entries times fixed random odd numbers, modulo 2^64."""
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, (rows.d_model,), generator=generator).mul_(2).add_(1).to(rows.matrix.device)
    hashes = torch.empty(len(rows), dtype=torch.int64, device=rows.matrix.device)
    integer = torch.int64 if rows.tile_dtype == torch.float64 else torch.int32
    for start, stop in rows.spans():
        # Adding 0.0 gives -0.0 the bits of 0.0, which it equals. Folding fills the zero low bits of short types.
        bits = (rows.raw(start, stop).to(rows.tile_dtype) + 0.0).view(integer)
        hashes[start:stop] = (bits ^ (bits >> 15)).to(torch.int64).mul_(odd).sum(dim=1)
    return hashes


def _rows_equal(rows: UnitRows, left: Tensor, right: Tensor) -> Tensor:
    equal = torch.empty(len(left), dtype=torch.bool, device=left.device)
    for start, stop in _spans(len(left), block_rows(rows.d_model)):
        pair = (rows.matrix[rows.index[side[start:stop]]] for side in (left, right))
        equal[start:stop] = torch.eq(*pair).all(dim=1)
    return equal


def upper_tiles(rows: UnitRows, tile: int | None = None, first: int = 0) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """The tiles of the upper triangle: first row, first column (equal on the diagonal) and the two unit blocks.

    They come by row blocks from row `first` on, those of a block from its diagonal to the last column.

    Raises:
        RepcapError: `tile` is below 1 row.
    """
    if tile is None:
        tile = block_rows(rows.d_model, CPU_TILE if rows.matrix.device.type == "cpu" else GPU_TILE)
    elif tile < 1:
        raise RepcapError(f"tile is {tile}; it must be at least 1 row")
    for start, stop in _spans(len(rows) - first, tile):
        i, i_stop = first + start, first + stop
        a = rows.block(i, i_stop).to(rows.tile_dtype)
        yield i, i, a, a
        for j, j_stop in _spans(len(rows) - i_stop, tile):
            yield i, i_stop + j, a, rows.block(i_stop + j, i_stop + j_stop).to(rows.tile_dtype)


def _checked_range(ends: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError) as error:
        raise RepcapError(f"range is {ends!r}; pass two numbers, the lower one first") from error
    if not (low < high and math.isfinite(high - low)):
        raise RepcapError(f"range is ({low}, {high}); pass two finite numbers, the lower one first")
    return low, high


def _together(one: CosineTile, other: CosineTile) -> CosineTile:
    return CosineTile(
        one.counts + other.counts,
        one.total + other.total,
        one.squares + other.squares,
        torch.minimum(one.minimum, other.minimum),
        torch.maximum(one.maximum, other.maximum),
    )


def _histogram(whole: CosineTile, pairs: int, low: float, high: float) -> CosineHistogram:
    slots = whole.counts.cpu().numpy()
    below, counts, above = int(slots[0]), slots[1:-1].copy(), int(slots[-1])
    if low <= -1.0:
        counts[0] += below
        below = 0
    if high >= 1.0:
        counts[-1] += above
        above = 0
    mean = float(whole.total) / pairs
    std = math.sqrt(max(float(whole.squares) / pairs - mean**2, 0.0))
    minimum, maximum = max(-1.0, float(whole.minimum)), min(1.0, float(whole.maximum))
    return CosineHistogram(counts, np.linspace(low, high, len(counts) + 1), below, above, mean, std, minimum, maximum)


def _without_lower(cosines: Tensor, value: float) -> Tensor:
    return cosines.masked_fill(torch.ones_like(cosines, dtype=torch.bool).tril_(), value)


def _position(flat: Tensor, i: int, j: int, columns: int) -> tuple[int, int]:
    row, column = divmod(int(flat), columns)
    return i + row, j + column


def _evaluated(rows: UnitRows, pair: tuple[int, int]) -> tuple[float, tuple[int, int]]:
    first, second = (rows.block(at, at + 1)[0] for at in pair)
    cosine = min(1.0, max(-1.0, float(first @ second)))
    return cosine, (int(rows.index[pair[0]]), int(rows.index[pair[1]]))


def _merge(best: Tensor, where: Tensor, cosines: Tensor, first_column: int) -> None:
    """Update a block's running best (n x k, in place) with a tile of later columns; `cosines` is used up."""
    values, columns = [best], [where]
    for _ in range(min(best.shape[1], cosines.shape[1])):
        value, column = cosines.max(dim=1, keepdim=True)
        cosines.scatter_(1, column, -math.inf)
        values.append(value)
        columns.append(column + first_column)
    # Candidates stand in the order of their columns wherever they tie, and a stable sort keeps it.
    value, order = torch.sort(torch.cat(values, dim=1), dim=1, descending=True, stable=True)
    best.copy_(value[:, : best.shape[1]])
    where.copy_(torch.cat(columns, dim=1).gather(1, order[:, : best.shape[1]]))
