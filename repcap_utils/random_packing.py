"""The coherence of random vectors: in closed form, and by simulation.

k independent uniform unit vectors in R^d have k(k-1)/2 pairs. The cosine of one pair exceeds e in absolute value with
probability P(e; d) = I_(1-e^2)((d-1)/2, 1/2), the regularised incomplete beta function, and pairs are pairwise
independent, so that the coherence has nearly the distribution function of independent pairs,

    F(e) = (1 - P)^(k(k-1)/2), close to exp(-lambda) with lambda = P k(k-1)/2.

The error is at most 8 lambda / k (`chen_stein_error`; Arratia, Goldstein and Gordon 1989). The limit law is that of Cai, Fan
and Jiang (arXiv 1306.0256). The product is exact at k = 2, and the two agree to a relative P / 2 elsewhere.

`trials` is the number T of independent sets among which the smallest coherence is recorded, as the paper does
(arXiv 2606.02765, sec. 3.2): P(smallest > e) = (1 - F(e))^T. Logarithms are carried throughout, so k = 1e100 works.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special, stats

from repcap_utils.capacity import check_cells, power10
from repcap_utils.checks import broadcast, numbers, whole_number
from repcap_utils.errors import RepcapError
from repcap_utils.resources import require_memory, torch_device

if TYPE_CHECKING:
    import torch

_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(32)
_LOGIT_STEP = 0.5
_LOGITS = np.arange(-36, 36.25, _LOGIT_STEP)
_PANEL = 2**24  # entries of a panel of cosines in a simulation: 64 MiB


class KsTest(NamedTuple):
    """Kolmogorov-Smirnov test of data against the closed form: distance, p-value, number of cells."""

    statistic: float
    pvalue: float
    n: int


def exceedance(e: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """P(e; d): the probability that two random unit vectors in R^d have abs cos above `e`; 1 below 0, 0 from 1 on.

    Below 1e-308 the result is 0; `log_exceedance` goes on.

    Raises:
        RepcapError: d below 1, or a value that is not finite.
    """
    return np.exp(log_exceedance(e, d))[()]


def log_exceedance(e: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """Natural logarithm of `exceedance`, also where that underflows; -inf from e = 1 on."""
    e, d = np.broadcast_arrays(numbers("e", e), numbers("d", d, 1))
    return _log_exceedance(np.clip(e, 0, 1) ** 2, d)[()]


def cdf(e: ArrayLike, k: ArrayLike, d: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """Probability that the smallest coherence of `trials` sets of k random unit vectors in R^d is at most `e`.

    Raises:
        RepcapError: k below 2, d or trials below 1, or a value that is not finite.
    """
    e, k, d, trials = broadcast(e=(e, -np.inf), k=(k, 2), d=(d, 1), trials=(trials, 1))
    log_rate = _log_rate(np.clip(e, 0, 1) ** 2, k, d)
    return (0.0 - np.expm1(-trials * _minus_log_survival(log_rate)))[()]


def chen_stein_error(e: ArrayLike, k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """How far the distribution function of one set of k random vectors can be from exp(-lambda), lambda = P k(k-1)/2.

    min(1, 1/lambda) k(k-1)/2 (4k - 7) P^2, at most 8 lambda / k. It is an absolute error: where `cdf` is small, as at
    the smallest of many sets, it can exceed the value itself.

    Raises:
        RepcapError: k below 2, d below 1, or a value that is not finite.

    Source: Arratia, Goldstein and Gordon, Ann. Probab. 17 (1989), for pairwise independent pairs.
    """
    e, k, d = broadcast(e=(e, -np.inf), k=(k, 2), d=(d, 1))
    log_p = _log_exceedance(np.clip(e, 0, 1) ** 2, d)
    log_lambda = _log_pairs(k) + log_p
    with np.errstate(over="ignore"):  # a bound above 1 says nothing, however large
        return np.minimum(1.0, np.exp(np.minimum(0, -log_lambda) + log_lambda + np.log(4 * k - 7) + log_p))[()]


def quantile(k: ArrayLike, d: ArrayLike, *, trials: ArrayLike = 1, q: ArrayLike = 0.5) -> np.ndarray | float:
    """The coherence that the smallest of `trials` sets of k random unit vectors in R^d stays below with probability q.

    The median by default. All arguments broadcast; the inverse of `cdf`.

    Raises:
        RepcapError: k below 2, d or trials below 1, q outside the open interval 0..1, or a value that is not finite.
    """
    k, d, trials, q = broadcast(k=(k, 2), d=(d, 1), trials=(trials, 1), q=(q, 0))
    if (q <= 0).any() or (q >= 1).any():
        raise RepcapError(f"q = {q[(q <= 0) | (q >= 1)][0]:g}; it must lie between 0 and 1, both excluded")
    # Pairs are independent, so each must exceed e with P = 1 - F^(1/pairs).
    log_share = np.log(_rate(trials, q)) - _log_pairs(k)
    return np.sqrt(_square_exceeded(_log_one_minus_exp(log_share), d))[()]


def mean(k: ArrayLike, d: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """The expected coherence of the smallest of `trials` sets of k random unit vectors in R^d.

    The integral of `quantile` over q, by the trapezoidal rule in the logit of q (exponentially convergent).

    Raises:
        RepcapError: as `quantile`.
    """
    k, d, trials = broadcast(k=(k, 2), d=(d, 1), trials=(trials, 1))
    q = special.expit(_LOGITS)
    values = quantile(k[..., None], d[..., None], trials=trials[..., None], q=q)
    return (values @ (q * (1 - q) * _LOGIT_STEP))[()]


def capacity(d: ArrayLike, epsilon: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """The k (a real number) whose median coherence, the smallest of `trials` sets, is `epsilon`; inf above 1.7e308.

    The whole number of vectors is the integer part; below 2 not even two are that orthogonal.

    Raises:
        RepcapError: epsilon outside the open interval 0..1, d or trials below 1, or a value that is not finite.
    """
    return power10(log10_capacity(d, epsilon, trials=trials))


def log10_capacity(d: ArrayLike, epsilon: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """log10 of `capacity`, without its upper limit."""
    d, epsilon, trials = broadcast(d=(d, 1), epsilon=(epsilon, 0), trials=(trials, 1))
    if (epsilon <= 0).any() or (epsilon >= 1).any():
        bad = epsilon[(epsilon <= 0) | (epsilon >= 1)][0]
        raise RepcapError(f"epsilon = {bad:g}; it must lie between 0 and 1, both excluded")
    log_pair = _log_pair_rate(_log_exceedance(epsilon**2, d))
    log_pairs = np.log(_rate(trials, np.asarray(0.5))) - log_pair
    # k from 2 pairs = k (k - 1): k = (1 + sqrt(1 + 8 pairs)) / 2, with the square root taken in logarithms.
    log_root = np.logaddexp(0, np.log(8) + log_pairs) / 2
    return ((np.logaddexp(0, log_root) - np.log(2)) / np.log(10))[()]


def expansion(k: ArrayLike, d: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """The median coherence for d far above ln k, to the order of a constant in d e^2.

    d e^2 = 4 ln k - ln ln k - ln(8 pi) - 2 ln(-ln(1 - 2^(-1/T))): the quantile of the limit law of Cai, Fan and Jiang
    (arXiv 1306.0256).

    Raises:
        RepcapError: k below 2, d or trials below 1, or k too small for the expansion (d e^2 negative).
    """
    k, d, trials = broadcast(k=(k, 2), d=(d, 1), trials=(trials, 1))
    square = _leading(np.log(k), trials)
    if (square < 0).any():
        raise RepcapError(f"k = {k[square < 0][0]:g}: too small for the expansion; use quantile")
    return np.sqrt(square / d)[()]


def effective_c(k: ArrayLike, d: ArrayLike, *, trials: ArrayLike = 1) -> np.ndarray | float:
    """C = d e^2 / ln k of the median coherence e: what the constant of eps = sqrt(C ln k / d) is at this k and d.

    It tends to 4 for 1 << ln k << d, and differs from that at every size one can compute.
    """
    return (np.asarray(d, dtype=float) * np.square(quantile(k, d, trials=trials)) / np.log(numbers("k", k, 2)))[()]


def trials_from_data(cells: pd.DataFrame) -> tuple[float, float]:
    """How many sets each recorded coherence is the smallest of: the maximum-likelihood T, and its standard error.

    With U = F(epsilon) of a single set, -ln(1 - U) is exponential with rate T, hence T = 1 / mean(-ln(1 - U)), with
    standard error T / sqrt(n).

    Args:
        cells: columns k, d, epsilon.

    Raises:
        RepcapError: unusable cells (see `capacity.check_cells`), or coherences of 0 or 1 that no T explains.
    """
    minus_log = _minus_log_survival(_cell_log_rate(cells))
    mean = float(minus_log.mean())
    if mean == 0:
        raise RepcapError("cells: every epsilon is far below what any number of random sets reaches; T is unbounded")
    return 1 / mean, 1 / mean / float(np.sqrt(len(minus_log)))


def ks_test(cells: pd.DataFrame, trials: float) -> KsTest:
    """Kolmogorov-Smirnov test that each epsilon of `cells` is the smallest coherence of `trials` random sets.

    Raises:
        RepcapError: unusable cells (see `capacity.check_cells`), trials below 1.
    """
    trials = float(numbers("trials", trials, 1))
    uniform = -np.expm1(-trials * _minus_log_survival(_cell_log_rate(cells)))
    result = stats.kstest(uniform, "uniform")
    return KsTest(float(result.statistic), float(result.pvalue), len(uniform))


def simulate(
    k: int, d: int, *, draws: int, trials: int = 1, seed: int, device: str = "cpu", first: int = 0
) -> np.ndarray:
    """Coherence of random vectors by drawing them: `draws` values, each the smallest over `trials` sets.

    Draw i takes its random numbers from SeedSequence([seed, k, d, i]) on the CPU, so that it is the same in any run
    and on any device up to the rounding of float32; a run is continued with `first`. The Gram matrix is never held:
    memory is that of the vectors (4 k d bytes, on the device too) and of one panel.

    Args:
        first: number of the first draw.

    Returns:
        float64, shape (draws,).

    Raises:
        RepcapError: k below 2, d, draws or trials below 1, a negative seed or first, a device that is not there.
    """
    least = {
        "k": (k, 2),
        "d": (d, 1),
        "draws": (draws, 1),
        "trials": (trials, 1),
        "seed": (seed, 0),
        "first": (first, 0),
    }
    for name, (value, minimum) in least.items():
        whole_number(name, value, minimum)
    place = torch_device(device)
    require_memory(8 * k * d + 8 * _PANEL, f"{k} x {d} random vectors")
    smallest = np.empty(draws)
    for i in range(draws):
        rng = np.random.default_rng(np.random.SeedSequence([seed, k, d, first + i]))
        smallest[i] = min(_one_coherence(rng, k, d, place) for _ in range(trials))
    return smallest


def _one_coherence(rng: np.random.Generator, k: int, d: int, place: "torch.device") -> float:
    import torch

    vectors = torch.from_numpy(rng.standard_normal((k, d), dtype=np.float32)).to(place)
    # In one dimension float32 draws an exact 0 once in about 1e7; that vector then counts for nothing.
    vectors /= torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min(1e-30)
    step = max(1, _PANEL // k)
    largest = torch.zeros((), device=place)
    for start in range(0, k, step):
        cosines = vectors[start : start + step] @ vectors[start:].T
        cosines.fill_diagonal_(0)
        low, high = torch.aminmax(cosines)
        largest = torch.maximum(largest, torch.maximum(high, -low))
    return min(float(largest), 1.0)


def _log_pairs(k: np.ndarray) -> np.ndarray:
    return 2 * np.log(k) + np.log1p(-1 / k) - np.log(2)


def _rate(trials: np.ndarray, q: np.ndarray) -> np.ndarray:
    """-ln F of a single set at the q quantile of the smallest of `trials`."""
    share = -np.log1p(-q) / trials
    small = share < 1e-12
    return -np.where(small, np.log(-np.log1p(-q)) - np.log(trials), np.log(-np.expm1(-np.where(small, 1.0, share))))


def _leading(log_k: np.ndarray, trials: np.ndarray) -> np.ndarray:
    return 4 * log_k - np.log(log_k) - np.log(8 * np.pi) - 2 * np.log(_rate(trials, np.asarray(0.5)))


def _log_pair_rate(log_p: np.ndarray) -> np.ndarray:
    """ln(-ln(1 - P)) of ln P: what a pair adds to -ln F."""
    small = log_p < -30
    p = np.exp(np.where(small, -30.0, log_p))
    with np.errstate(divide="ignore"):  # P = 1, where F is 0 and its logarithm -inf
        return np.where(small, log_p, np.log(-np.log1p(-p)))


def _log_one_minus_exp(log_share: np.ndarray) -> np.ndarray:
    """ln(1 - exp(-share)) of ln share: the inverse of `_log_pair_rate`."""
    small = log_share < -30
    share = np.exp(np.where(small, 0.0, log_share))
    return np.where(small, log_share, np.log(-np.expm1(-share)))


def _log_rate(square: np.ndarray, k: np.ndarray, d: np.ndarray) -> np.ndarray:
    """ln(-ln F) of a single set of k vectors at e^2 = `square`."""
    return _log_pairs(k) + _log_pair_rate(_log_exceedance(square, d))


def _minus_log_survival(log_rate: np.ndarray) -> np.ndarray:
    """-ln(1 - F) of ln(-ln F)."""
    small = log_rate < -30
    rate = np.exp(np.where(small, 0.0, np.minimum(log_rate, 7)))
    return np.where(small, -log_rate, -np.log(-np.expm1(-rate)))


def _cell_log_rate(cells: pd.DataFrame) -> np.ndarray:
    table = check_cells(cells)
    k, d, e = (table[name].to_numpy() for name in ("k", "d", "epsilon"))
    if (d < 2).any() or (e >= 1).any():
        raise RepcapError("cells: d = 1 or epsilon = 1 somewhere; such a cell says nothing about T, leave it out")
    return _log_rate(e**2, k, d)


def _log_exceedance(square: np.ndarray, d: np.ndarray) -> np.ndarray:
    """ln P of e^2 = `square` in 0..1."""
    square, d = np.broadcast_arrays(square, d)
    a = np.where(d > 1, (d - 1) / 2, 1.0)
    inside = (square < 1) & (d > 1)
    log_x = np.log1p(-np.where(inside, square, 0.0))
    with np.errstate(divide="ignore"):  # the beta function underflows only where the series below takes over
        log_p = np.where(a * log_x > -200, np.log(special.betaincc(0.5, a, square)), _log_tail(log_x, a))
    return np.where(inside, log_p, np.where(square < 1, 0.0, -np.inf))


def _log_tail(log_x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """ln I_x(a, 1/2) for a ln x far below 0.

    Substituting u = x exp(-r/a) in the integral of u^(a-1) (1-u)^(-1/2) leaves exp(-r) times a function that is smooth
    on the scale of -a ln x, so Gauss-Laguerre quadrature is exact to rounding.
    """
    log_x, a = np.minimum(log_x, -1e-300)[..., None], a[..., None]
    mean = np.sum(_WEIGHTS / np.sqrt(-np.expm1(log_x - _NODES / a)), axis=-1)
    return (a * log_x - np.log(a) - special.betaln(a, 0.5))[..., 0] + np.log(mean)


def _square_exceeded(log_p: np.ndarray, d: np.ndarray) -> np.ndarray:
    """e^2 with ln P(e; d) = `log_p`; 1 in one dimension."""
    log_p, d = np.broadcast_arrays(log_p, d)
    a = np.where(d > 1, (d - 1) / 2, 1.0)
    deep = log_p < -200
    square = special.betainccinv(0.5, a, np.exp(np.where(deep, -200.0, log_p)))
    if deep.any():
        square = np.where(deep, _deep_square(np.where(deep, log_p, -200.0), a), square)
    return np.where(d > 1, square, 1.0)


def _deep_square(log_p: np.ndarray, a: np.ndarray) -> np.ndarray:
    # Newton's method in ln x, where ln P is nearly linear with slope a.
    log_x = log_p / a
    for _ in range(50):
        value = _log_tail(log_x, a)
        log_slope = a * log_x - special.betaln(a, 0.5) - np.log(-np.expm1(log_x)) / 2 - value
        step = (value - log_p) / np.exp(log_slope)
        log_x = np.minimum(log_x - step, -1e-300)
        if np.all(np.abs(step) <= 1e-14 * np.abs(log_x)):
            break
    return -np.expm1(log_x)
