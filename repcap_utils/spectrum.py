"""Epsilon as a function of two numbers of the unit rows: the length of their mean and the spectrum of their second moment.

With unit rows u_i (V x d), m their mean and M = (1/V) sum u_i u_i^T with eigenvalues l_1 >= l_2 >= ..., which sum to 1,
the cosines of all pairs i < j have
    mean           (V |m|^2 - 1) / (V - 1)
    mean square    (V sum l_i^2 - 1) / (V - 1),
exactly: the sums over all i, j are V^2 |m|^2 and V^2 tr M^2, and the diagonal, which is no pair, adds V to each. So epsilon
(arXiv 2606.02765) sees second moments only, never a tail.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from repcap_utils import similarity
from repcap_utils.errors import RepcapError

# Nodes in log t of the integral for Gaussian rows: what lies outside is below 1e-14, and the step resolves it to that.
_LOG_T = np.arange(-68.0, 32.0, 0.05)


@dataclass(frozen=True)
class Moments:
    """What the moments of the cosines depend on.

    Attributes:
        mean_length_squared: |m|^2, the mean over all i, j of the cosines, i = j among them.
        squares: sum l_i^2, the same of their squares.
        rows: V; math.inf for a distribution instead of a matrix.
    """

    mean_length_squared: float
    squares: float
    rows: float

    @property
    def effective_dimension(self) -> float:
        """1 / sum l_i^2, the participation ratio: d if all directions are used alike, 1 if only one is."""
        return 1.0 / self.squares

    @property
    def mean(self) -> float:
        """Mean of the cosines of all pairs i < j."""
        return _of_pairs(self.mean_length_squared, self.rows)

    @property
    def std(self) -> float:
        """Their population standard deviation."""
        return math.sqrt(max(_of_pairs(self.squares, self.rows) - self.mean**2, 0.0))

    @property
    def epsilon(self) -> float:
        """mean + 2 std, as `similarity.cosine_moments` finds it."""
        return self.mean + 2.0 * self.std


@dataclass(frozen=True)
class Spectrum(Moments):
    """The same with the principal directions of the unit rows about the origin, strongest first.

    Attributes:
        eigenvalues: of M, descending; they sum to 1 [d].
        along_mean: squared part of the mean row along each of these directions; they sum to |m|^2 [d].
    """

    eigenvalues: np.ndarray
    along_mean: np.ndarray


def of_rows(weight: similarity.Matrix) -> Spectrum:
    """The spectrum of the non-zero rows of `weight` (V x d), float64, in O(V d^2).

    Raises:
        RepcapError: see `similarity.unit_rows`; fewer than two non-zero rows.
    """
    rows = similarity.unit_rows(weight)
    if len(rows) < 2:
        raise RepcapError(f"weight of shape {tuple(rows.matrix.shape)} has {len(rows)} non-zero rows; a pair needs two")
    mean, second = unit_moments(rows)
    return of_moments(mean, second, len(rows))


def unit_moments(rows: similarity.UnitRows) -> tuple[np.ndarray, np.ndarray]:
    """The mean m [d] and the second moment M [d, d] of unit rows, float64."""
    total = torch.zeros(rows.d_model, dtype=torch.float64)
    gram = torch.zeros(rows.d_model, rows.d_model, dtype=torch.float64)
    for block in rows.blocks():
        total += block.sum(dim=0)
        similarity.add_gram(gram, block)
    # only the upper triangle is summed
    whole = gram.triu() + gram.triu(1).T
    return (total / len(rows)).numpy(), (whole / len(rows)).numpy()


def of_moments(mean: np.ndarray, second: np.ndarray, rows: float = math.inf) -> Spectrum:
    """The spectrum of `rows` unit rows with mean m [d] and second moment M [d, d], without bound by default."""
    values, vectors = np.linalg.eigh(second)
    along = (mean @ vectors) ** 2
    return Spectrum(float(mean @ mean), float((second**2).sum()), rows, values[::-1].copy(), along[::-1].copy())


def effective_dimension_bounds(epsilon: float) -> tuple[float, float, float]:
    """What an epsilon says of the effective dimension D of many rows: at least, exactly if m = 0, and at most.

    The mean square q = 1/D of the cosines is mu^2 + (epsilon - mu)^2 / 4 with 0 <= mu <= epsilon (mu = |m|^2 in the limit
    of many rows): epsilon^2 at mu = epsilon, epsilon^2 / 4 at mu = 0, and epsilon^2 / 5, the least, at mu = epsilon / 5.

    Raises:
        RepcapError: epsilon is not positive.
    """
    if not epsilon > 0:
        raise RepcapError(f"epsilon is {epsilon}; give a positive number")
    return 1.0 / epsilon**2, 4.0 / epsilon**2, 5.0 / epsilon**2


def of_gaussian(mean: np.ndarray, covariance: np.ndarray) -> Spectrum:
    """The spectrum of g / |g| for normal rows g with this mean [d] and covariance [d, d]: no draw, one integral.

    With 1/|g|^2 the integral of exp(-t |g|^2) over t > 0, and 1/|g| that of t^(-1/2) exp(-t |g|^2) / sqrt(pi), the moments
    of the unit rows become integrals of those of a normal distribution times exp(-t |g|^2), which are known: along
    principal axis k with variance v and mean a they are those of a normal distribution with variance v / (1 + 2 t v) and
    mean a / (1 + 2 t v), times (1 + 2 t v)^(-1/2) exp(-t a^2 / (1 + 2 t v)). The trapezoidal rule in log t is exact to
    rounding for a covariance of rank two and more, and to 1e-7 for one of rank one, or nearly so.

    Raises:
        RepcapError: a covariance that vanishes or is not positive semidefinite.
    """
    values, vectors = np.linalg.eigh(covariance)
    if not values[-1] > 0 or values[0] < -1e-9 * values[-1]:
        raise RepcapError("the covariance has no positive or a negative eigenvalue; pass that of some rows")
    centre = mean @ vectors
    # lengths are immaterial: a mean square length of 1 centres the integral
    scale = values.clip(min=0.0).sum() + centre @ centre
    variance, centre = values.clip(min=0.0) / scale, centre / math.sqrt(scale)
    t = np.exp(_LOG_T)
    shrink = 1.0 / (1.0 + 2.0 * np.outer(t, variance))
    log_weight = 0.5 * np.log(shrink).sum(axis=1) - t * (shrink @ centre**2)
    weight = np.exp(log_weight + _LOG_T) * (_LOG_T[1] - _LOG_T[0])
    means = shrink * centre
    first = (weight / np.sqrt(np.pi * t)) @ means
    second = means.T @ (weight[:, None] * means) + np.diag(weight @ (shrink * variance))
    return of_moments(first, second)


def _of_pairs(average: float, rows: float) -> float:
    """An average over all i, j of the cosines or of their squares -> the average over i != j: the diagonal holds ones."""
    return average if math.isinf(rows) else (rows * average - 1.0) / (rows - 1.0)
