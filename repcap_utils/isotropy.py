"""How much of the pairwise cosine is common to all rows: the mean row and the top principal directions removed.

Word vectors share a large mean and a few dominating directions; taking both away before normalising is the
"all-but-the-top" treatment of arXiv 1702.01417. What is left of epsilon is nearer to the geometry of the features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy import linalg
from torch import Tensor

from repcap_utils.errors import RepcapError
from repcap_utils.similarity import (
    CosineMoments,
    Matrix,
    UnitRows,
    add_gram,
    moments_of,
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
    """The common part of the rows in units of `peak`: the mean (d) and the top directions (d x n, strongest first)."""

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
    return _residual(rows, _common(rows, components, centre=centre), components)


def epsilon_profile(
    weight: Matrix,
    components: Sequence[int] = (0, 1, 4, 16),
    *,
    device: str | torch.device | None = None,
    stored: CosineMoments | None = None,
) -> list[ProfileStep]:
    """Moments of the cosines as stored, then with the mean row and each number of `components` removed.

    One covariance serves all steps. The first step is the untouched matrix (`centred` False, 0 components); its moments
    are `stored` where they are known already. What is left of the rows is computed block by block and never held whole.

    Raises:
        RepcapError: see `remove_common_directions` and `similarity.cosine_moments`.
    """
    rows = _checked(weight, components, device)
    stored = stored or moments_of(rows)
    steps = [ProfileStep(False, 0, stored)]
    common = _common(rows, max(components, default=0), centre=True)
    for count in components:
        left = _residual_rows(rows, common, count)
        # as long as nothing is lost the rows that repeat others are the same ones
        duplicates = stored.duplicate_rows if len(left) == len(rows) else None
        steps.append(ProfileStep(True, count, moments_of(left, duplicates=duplicates)))
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


def _common(rows: UnitRows, components: int, *, centre: bool) -> _Common:
    d, device = rows.d_model, rows.matrix.device
    # The lengths of rows count here, unlike in cosines; a common unit keeps their squares in range.
    peak = float(torch.stack(rows.matrix.aminmax()).abs().max())
    mean = torch.zeros(d, dtype=torch.float64, device=device)
    if centre:
        mean = sum(_scaled(rows, peak, *span).sum(dim=0) for span in rows.spans()) / len(rows)
    directions = torch.zeros(d, 0, dtype=torch.float64, device=device)
    if components > 0:
        covariance = torch.zeros(d, d, dtype=torch.float64, device=device)
        for span in rows.spans():
            add_gram(covariance, _scaled(rows, peak, *span).sub_(mean))
        directions = _top_eigenvectors(covariance, components)
    return _Common(peak, mean, directions)


def _top_eigenvectors(covariance: Tensor, count: int) -> Tensor:
    """The eigenvectors (d x count) of the largest eigenvalues of a matrix given by its upper triangle, strongest first.

    LAPACK finds a few of them with a fraction of the operations and of the memory that all would take.
    """
    d = len(covariance)
    # in the column order of LAPACK the upper triangle of rows is the lower one, and nothing is copied
    columns = covariance.cpu().numpy().T
    vectors = linalg.eigh(columns, lower=True, overwrite_a=True, subset_by_index=[d - count, d - 1])[1]
    return torch.from_numpy(vectors[:, ::-1].copy()).to(covariance.device)


@dataclass(frozen=True)
class _ResidualRows(UnitRows):
    """Unit rows of what is left of a matrix; `norms` are those of the residuals, and rows without any are not counted."""

    common: _Common
    components: int

    def block(self, start: int, stop: int) -> Tensor:
        residual, _ = _left_over(self.raw(start, stop), self.common, self.components)
        return residual.div_(self.norms[start:stop, None])


def _residual_rows(rows: UnitRows, common: _Common, components: int) -> _ResidualRows:
    norms = torch.empty_like(rows.norms)
    for start, stop in rows.spans():
        residual, is_left = _left_over(rows.raw(start, stop), common, components)
        norms[start:stop] = torch.linalg.vector_norm(residual, dim=1).mul_(is_left)
    kept = norms.nonzero().squeeze(1)
    return _ResidualRows(rows.matrix, rows.index[kept], rows.peaks[kept], norms[kept], common, components)


def _residual(rows: UnitRows, common: _Common, components: int) -> Tensor:
    result = torch.zeros(rows.matrix.shape, dtype=rows.tile_dtype, device=rows.matrix.device)
    for start, stop in rows.spans():
        residual, is_left = _left_over(rows.raw(start, stop), common, components)
        residual[~is_left] = 0.0
        result[rows.index[start:stop]] = residual.mul_(common.peak).to(result.dtype)
    if not bool(torch.isfinite(torch.stack(result.aminmax())).all()):
        raise RepcapError(f"entries of weight as large as {common.peak:g} overflow {result.dtype}; rescale it first")
    return result


def _left_over(raw: Tensor, common: _Common, components: int) -> tuple[Tensor, Tensor]:
    """Rows without their common part in units of the peak, float64, and which of them hold more than rounding."""
    removed = common.directions[:, :components]
    residual = raw.to(torch.float64) / common.peak
    lengths = torch.linalg.vector_norm(residual, dim=1)
    residual.sub_(common.mean)
    residual.sub_((residual @ removed) @ removed.T)
    return residual, torch.linalg.vector_norm(residual, dim=1) > NOTHING_LEFT * lengths


def _scaled(rows: UnitRows, peak: float, start: int, stop: int) -> Tensor:
    return rows.raw(start, stop).to(torch.float64) / peak
