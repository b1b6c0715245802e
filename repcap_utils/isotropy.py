"""How much of the pairwise cosine is common to all rows: the mean row and the top principal directions removed.

Word vectors share a large mean and a few dominating directions; taking both away before normalising is the
"all-but-the-top" treatment of arXiv 1702.01417. What is left of epsilon is nearer to the geometry of the features.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repcap_utils.errors import RepcapError
from repcap_utils.similarity import (
    CosineMoments,
    Matrix,
    UnitRows,
    add_gram,
    cosine_moments,
    unit_rows,
)

# A row that lies in what is removed leaves only rounding, whose direction means nothing.
NOTHING_LEFT = 1e-10


class ProfileStep(NamedTuple):
    """The moments after removing the mean row (if `centred`) and `components` principal directions."""

    centred: bool
    components: int
    moments: CosineMoments


class _Common(NamedTuple):
    """The common part of the rows in units of `peak`: the mean (d) and the directions (d x d, strongest first)."""

    peak: float
    mean: Tensor
    directions: Tensor


def remove_common_directions(
    weight: Matrix, components: int = 0, *, centre: bool = True, device: str | torch.device | None = None
) -> Tensor:
    """Subtract the mean row of `weight` (V x d), then project out the top principal directions (arXiv 1702.01417).

    The mean and the directions are those of the non-zero rows, from a d x d covariance in float64; zero rows stay zero,
    and so does what is left of a row that lies in the removed part. With `centre=False` nothing is subtracted and the
    directions are the principal ones about the origin.

    Returns:
        V x d, float32 (float64 for float64 input), not normalised.

    Raises:
        RepcapError: see `similarity.unit_rows`; no non-zero row; `components` not in 0 to d - 1; a result that
            overflows its type.
    """
    rows = _checked(weight, [components], device)
    return _residual(rows, _common(rows, centre=centre, any_directions=components > 0), components)


def epsilon_profile(
    weight: Matrix, components: Sequence[int] = (0, 1, 4, 16), *, device: str | torch.device | None = None
) -> list[ProfileStep]:
    """Moments of the cosines as stored, then with the mean row and each number of `components` removed.

    One covariance serves all steps. The first step is the untouched matrix (`centred` False, 0 components).

    Raises:
        RepcapError: see `remove_common_directions` and `similarity.cosine_moments`.
    """
    rows = _checked(weight, components, device)
    steps = [ProfileStep(False, 0, cosine_moments(rows.matrix))]
    common = _common(rows, centre=True, any_directions=any(components))
    for count in components:
        steps.append(ProfileStep(True, count, cosine_moments(_residual(rows, common, count))))
    return steps


def _checked(weight: Matrix, components: Sequence[int], device: str | torch.device | None) -> UnitRows:
    rows = unit_rows(weight, device=device)
    for count in components:
        if not 0 <= count < rows.d_model:
            raise RepcapError(
                f"components is {count}; with d_model {rows.d_model} it must lie in 0 to {rows.d_model - 1}"
            )
    if len(rows) == 0:
        raise RepcapError(f"weight of shape {tuple(rows.matrix.shape)} has no non-zero row; nothing is common to none")
    return rows


def _common(rows: UnitRows, *, centre: bool, any_directions: bool) -> _Common:
    d, device = rows.d_model, rows.matrix.device
    # The lengths of rows count here, unlike in cosines; a common unit keeps their squares in range.
    peak = float(torch.stack(rows.matrix.aminmax()).abs().max())
    mean = torch.zeros(d, dtype=torch.float64, device=device)
    if centre:
        mean = sum(_scaled(rows, peak, *span).sum(dim=0) for span in rows.spans()) / len(rows)
    directions = torch.zeros(d, 0, dtype=torch.float64, device=device)
    if any_directions:
        covariance = torch.zeros(d, d, dtype=torch.float64, device=device)
        for span in rows.spans():
            add_gram(covariance, _scaled(rows, peak, *span).sub_(mean))
        directions = torch.linalg.eigh(covariance, UPLO="U").eigenvectors.flip(1)
    return _Common(peak, mean, directions)


def _residual(rows: UnitRows, common: _Common, components: int) -> Tensor:
    removed = common.directions[:, :components]
    result = torch.zeros(rows.matrix.shape, dtype=rows.tile_dtype, device=rows.matrix.device)
    for start, stop in rows.spans():
        block = _scaled(rows, common.peak, start, stop)
        lengths = torch.linalg.vector_norm(block, dim=1)
        block.sub_(common.mean)
        block.sub_((block @ removed) @ removed.T)
        block[torch.linalg.vector_norm(block, dim=1) <= NOTHING_LEFT * lengths] = 0.0
        result[rows.index[start:stop]] = block.mul_(common.peak).to(result.dtype)
    if not bool(torch.isfinite(torch.stack(result.aminmax())).all()):
        raise RepcapError(f"entries of weight as large as {common.peak:g} overflow {result.dtype}; rescale it first")
    return result


def _scaled(rows: UnitRows, peak: float, start: int, stop: int) -> Tensor:
    return rows.raw(start, stop).to(torch.float64) / peak
