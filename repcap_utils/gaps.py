"""Whether a gap in sorted values is wider than draws from one population would leave.

The population is normal, or the smoothest with a single mode that the values allow: their kernel density at the smallest
bandwidth at which it has one mode (Silverman 1981), from which draws are a smoothed bootstrap of unchanged variance.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from repcap_utils.errors import RepcapError

NORMAL, UNIMODAL = "normal", "one mode"
GRID = 1000


class Gap(NamedTuple):
    """The widest gap found, the median of the widest gaps of draws, and the probability of one as wide in a draw."""

    width: float
    typical: float
    probability: float


def widest_inner(values: np.ndarray, fewest: int) -> np.ndarray:
    """Widest gap between neighbours in order that has at least `fewest` values on each side, along the last axis.

    Raises:
        RepcapError: too few values.
    """
    count = values.shape[-1]
    if fewest < 1 or count < 2 * fewest:
        raise RepcapError(f"{count} values cannot have {fewest} on each side of a gap; ask for fewer, at least 1")
    return np.diff(np.sort(values, axis=-1), axis=-1)[..., fewest - 1 : count - fewest].max(axis=-1)


def compare(values: np.ndarray, fewest: int, population: str, *, draws: int, seed: int) -> Gap:
    """The widest inner gap of some values [n] against that of `draws` samples of the same size.

    The probability counts the values themselves as one of the draws, so that it is never 0.

    Args:
        values: the observations.
        fewest: how many of them a gap must have on each side.
        population: NORMAL (the values' mean and standard deviation) or UNIMODAL.
        draws, seed: of the simulation.

    Raises:
        RepcapError: see `widest_inner`; an unknown population.
    """
    width = float(widest_inner(values, fewest))
    generator = np.random.default_rng(seed)
    widths = widest_inner(_sampler(population)(values, draws, generator), fewest)
    return Gap(width, float(np.median(widths)), (1 + int((widths >= width).sum())) / (1 + draws))


def critical_bandwidth(values: np.ndarray) -> float:
    """The smallest bandwidth at which the Gaussian kernel density of some values [n] has a single mode, to 0.1 %.

    The number of modes never rises with the bandwidth, so bisection finds it.
    """
    low, high = 1e-6 * np.ptp(values), np.ptp(values)
    while high > 1.001 * low:
        middle = np.sqrt(low * high)
        low, high = (low, middle) if _modes(values, middle) == 1 else (middle, high)
    return float(high)


def _modes(values: np.ndarray, bandwidth: float) -> int:
    grid = np.linspace(values.min() - bandwidth, values.max() + bandwidth, GRID)
    density = stats.norm.pdf((grid[:, None] - values) / bandwidth).sum(axis=1)
    rising = np.diff(density) > 0
    return int((rising[:-1] & ~rising[1:]).sum())


def _sampler(population: str) -> Callable[[np.ndarray, int, np.random.Generator], np.ndarray]:
    samplers = {NORMAL: _normal, UNIMODAL: _unimodal}
    if population not in samplers:
        raise RepcapError(f"unknown population {population!r}; choose {' or '.join(samplers)}")
    return samplers[population]


def _normal(values: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    return generator.normal(values.mean(), values.std(ddof=1), (draws, len(values)))


def _unimodal(values: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    bandwidth = critical_bandwidth(values)
    centre, variance = values.mean(), values.var(ddof=1)
    chosen = generator.choice(values, (draws, len(values))) + bandwidth * generator.normal(size=(draws, len(values)))
    return centre + (chosen - centre) / np.sqrt(1.0 + bandwidth**2 / variance)
