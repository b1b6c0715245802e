"""What must exist and what cannot: proved lower and upper bounds on the number of lines in R^d at a given coherence.

A set of k lines in R^d has coherence epsilon when the largest |cos| between two of them is epsilon. Upper bounds on k
(equivalently, lower bounds on epsilon) are Welch's, the orthoplex bound and Levenshtein's; lower bounds on k are the
greedy covering argument and the explicit constructions of `codes`. Numbers of lines are given as log10, since they
overflow a float long before they stop being interesting.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import brentq

from repcap_utils import codes, random_packing
from repcap_utils.errors import RepcapError

MAX_DEGREE = 20_000
"""Largest degree of Levenshtein's polynomials that is tried; beyond it the bounds raise an error."""


class LevenshteinBound(NamedTuple):
    """At most 10^log10_lines lines; `degree` counts the pieces of the bound: 1 is Welch's, 2k - 1 and 2k use Q_k."""

    log10_lines: float
    degree: int


class BestKnown(NamedTuple):
    """At least 10^log10_lines lines exist, by `construction`, whose coherence is at most `coherence`."""

    log10_lines: float
    construction: str
    coherence: float


def welch(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """Welch's lower bound sqrt((k - d) / (d (k - 1))) on the coherence of k lines in R^d; 0 where k <= d.

    Args:
        k: number of lines, at least 2; scalar or array, broadcast against d.
        d: dimension, at least 1.

    Raises:
        RepcapError: some k < 2 or d < 1, or not finite.

    Source: Welch, IEEE Trans. Inf. Theory 20 (1974); also known as Rankin's simplex bound.
    """
    lines, dimension = _counts(k, d)
    bound = np.sqrt(np.maximum(lines - dimension, 0) / (dimension * (lines - 1)))
    return bound if bound.ndim else float(bound)


def orthoplex(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """The orthoplex bound: 1/sqrt(d) where k > d (d + 1) / 2, else 0, on the coherence of k lines in R^d.

    Arguments and errors as for `welch`. Source: Conway, Hardin and Sloane, arXiv math/0208004, sec. 5.
    """
    lines, dimension = _counts(k, d)
    bound = np.where(lines > dimension * (dimension + 1) / 2, 1 / np.sqrt(dimension), 0.0)
    return bound if bound.ndim else float(bound)


def levenshtein(k: int, d: int) -> float:
    """Levenshtein's lower bound on the coherence of k lines in R^d, the inverse of `levenshtein_capacity`; 0 if k <= d.

    It equals Welch's bound for k <= d (d + 1) / 2 and exceeds it beyond.

    Raises:
        RepcapError: k < 2, d < 1, or k so large that the degree exceeds `MAX_DEGREE`.

    Source: Levenshtein, Acta Appl. Math. 29 (1992).
    """
    _counts(k, d)
    k, d = int(k), int(d)
    if k <= d:
        return 0.0
    if d == 1:
        return 1.0
    step = _breakpoint_below(k, d)
    degree, at_second = step // 2 + step % 2, step % 2 == 0
    if at_second:
        low, high = _largest_zero(degree, d, 1, 0), _largest_zero(degree, d, 1, 1)
    else:
        low, high = _largest_zero(degree - 1, d, 1, 1), _largest_zero(degree, d, 1, 0)
    target = math.log10(k)

    def excess(s: float) -> float:
        return _log10_levenshtein(s, d, degree, second=at_second) - target

    # At the ends the bound is a binomial coefficient: k may equal it, and rounding may then hide the change of sign.
    if excess(low) >= 0:
        return math.sqrt(low)
    if excess(high) <= 0:
        return math.sqrt(high)
    return math.sqrt(brentq(excess, low, high, xtol=1e-18, rtol=1e-14))


def lower_bound(k: int, d: int) -> float:
    """The best proved lower bound here on the coherence of k lines in R^d: Welch, orthoplex and Levenshtein together.

    Raises:
        RepcapError: as for `levenshtein`.
    """
    return max(welch(k, d), orthoplex(k, d), levenshtein(k, d))


def levenshtein_capacity(d: int, epsilon: float) -> LevenshteinBound:
    """Levenshtein's upper bound on the number of lines in R^d with coherence at most epsilon.

    With s = epsilon^2, Q_k^(a,b) the Jacobi polynomials P_k^((d-3)/2 + a, -1/2 + b)(2u - 1) normalised to 1 at u = 1,
    t_k^(a,b) their largest zeros and R_k = C(d + 2k - 1, 2k), the bound is
    (1 - Q_(k-1)^(1,0)(s) / Q_k^(0,0)(s)) R_(k-1) for t_(k-1)^(1,1) <= s <= t_k^(1,0), and
    (1 - Q_k^(1,0)(s) / Q_k^(0,1)(s)) R_k for t_k^(1,0) <= s <= t_k^(1,1).

    Args:
        d: dimension, at least 1.
        epsilon: coherence, strictly between 0 and 1.

    Returns:
        log10 of the bound (accurate to about 1e-11) and the degree, 2k - 1 or 2k, of the piece that gives it.

    Raises:
        RepcapError: d < 1, epsilon outside (0, 1), or so near to 1 that the degree exceeds `MAX_DEGREE`.

    Source: Levenshtein, Acta Appl. Math. 29 (1992); Handbook of Coding Theory (1998).
    """
    _check_capacity_arguments(d, epsilon)
    if d == 1:
        return LevenshteinBound(0.0, 0)
    s = epsilon * epsilon
    degree = _degree(s, d)
    second = s > _largest_zero(degree, d, 1, 0)
    return LevenshteinBound(_log10_levenshtein(s, d, degree, second=second), 2 * degree - 1 + second)


def greedy_capacity(d: int, epsilon: float) -> float:
    """log10 of 1 / P, a number of lines with coherence at most epsilon that certainly exists in R^d.

    P is the probability that two random unit vectors have |cos| > epsilon. A maximal set of lines exists in which no
    |cos| exceeds epsilon; the double caps around its members cover the sphere, so it has at least 1 / P of them.

    Raises:
        RepcapError: d < 1 or epsilon outside (0, 1).
    """
    _check_capacity_arguments(d, epsilon)
    return max(0.0, -float(random_packing.log_exceedance(epsilon, d)) / math.log(10))


def best_known_capacity(d: int, epsilon: float) -> BestKnown:
    """The largest number of lines in R^d with coherence at most epsilon that this package can prove to exist.

    The candidates are an orthonormal basis, the greedy argument, the Kerdock and Delsarte-Goethals lines of the largest
    2^m <= d, and the polynomial phases of the largest prime p <= d/2; zero padding keeps the coherence.

    Raises:
        RepcapError: d < 1 or epsilon outside (0, 1).
    """
    _check_capacity_arguments(d, epsilon)
    d = int(d)
    candidates = [
        BestKnown(math.log10(d), "orthonormal basis", 0.0),
        BestKnown(greedy_capacity(d, epsilon), "greedy", epsilon),
        *_quadratic_form_candidates(d, epsilon),
        *_polynomial_candidates(d, epsilon),
    ]
    return max(candidates, key=lambda candidate: candidate.log10_lines)


def _quadratic_form_candidates(d: int, epsilon: float) -> list[BestKnown]:
    m = d.bit_length() - 1
    found = []
    for r in codes.delsarte_goethals_orders(m):
        coherence = codes.delsarte_goethals_coherence(m, r)
        if coherence <= epsilon:
            name = f"Kerdock (m = {m})" if m % 2 == 0 and r == 0 else f"Delsarte-Goethals (m = {m}, r = {r})"
            found.append(BestKnown(math.log10(codes.delsarte_goethals_lines(m, r)), name, coherence))
    return found


def _polynomial_candidates(d: int, epsilon: float) -> list[BestKnown]:
    """At most one: both the number of lines and the degree that epsilon allows grow with p, so the largest p wins."""
    p = _largest_prime(d // 2)
    if p < 3:
        return []
    degree = min(p - 1, 1 + round(epsilon * math.sqrt(p)))
    if degree >= 2 and codes.polynomial_phases_coherence(p, degree) > epsilon:
        degree -= 1
    if degree < 2:
        return []
    lines = codes.polynomial_phases_lines(p, degree)
    name = f"polynomial phases (p = {p}, t = {degree})"
    return [BestKnown(math.log10(lines), name, codes.polynomial_phases_coherence(p, degree))]


@cache
def _largest_prime(limit: int) -> int:
    """The largest prime up to `limit`, or 0."""
    return next((n for n in range(limit, 1, -1) if codes.is_prime(n)), 0)


def _log10_levenshtein(s: float, d: int, degree: int, *, second: bool) -> float:
    """log10 of the bound at s = epsilon^2 on one of the two pieces that belong to `degree`."""
    z = 1 - s
    numerator = _jacobi(degree if second else degree - 1, d, 1, 0, z)
    denominator = _jacobi(degree, d, 0, 1 if second else 0, z)
    ratio = numerator[0] / denominator[0] * math.exp(numerator[1] - denominator[1])
    order = 2 * degree if second else 2 * degree - 2
    return math.log10(1 - ratio) + math.log10(math.comb(d + order - 1, order))


def _degree(s: float, d: int) -> int:
    """The smallest k with s <= t_k^(1,1)."""
    low, high = 0, 1
    while _largest_zero(high, d, 1, 1) < s:
        if high >= MAX_DEGREE:
            raise RepcapError(
                f"epsilon = {math.sqrt(s):.12g} at d = {d} needs polynomials of degree above {MAX_DEGREE}; "
                "take an epsilon farther below 1"
            )
        low, high = high, min(2 * high, MAX_DEGREE)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _largest_zero(middle, d, 1, 1) < s else (low, middle)
    return high


def _breakpoint_below(k: int, d: int) -> int:
    """The largest j with C(d + j - 1, j) <= k: the values that the bound takes where its pieces meet."""
    j, value = 1, d
    while True:
        following = value * (d + j) // (j + 1)
        if following > k:
            return j
        j, value = j + 1, following
        if j > 2 * MAX_DEGREE:
            raise RepcapError(f"k = {k:.6g} lines at d = {d} need polynomials of degree above {MAX_DEGREE}; take fewer")


def _recurrence(n: np.ndarray | int, d: int, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    """A_n, C_n of -z Q_n = A_n Q_(n+1) - (A_n + C_n) Q_n + C_n Q_(n-1), where z = 1 - u and Q_n(u = 1) = 1."""
    n = np.asarray(n, dtype=float)
    alpha, beta = (d - 3) / 2 + a, b - 0.5
    total = alpha + beta
    # At n = 0 the general forms are 0/0 for some (alpha, beta); their limits are written out.
    m = np.maximum(n, 1)
    up = (m + total + 1) * (m + alpha + 1) / ((2 * m + total + 1) * (2 * m + total + 2))
    down = m * (m + beta) / ((2 * m + total) * (2 * m + total + 1))
    return np.where(n == 0, (alpha + 1) / (total + 2), up), np.where(n == 0, 0.0, down)


def _jacobi(degree: int, d: int, a: int, b: int, z: float) -> tuple[float, float]:
    """Q_degree^(a,b) at u = 1 - z as (value, log of a factor): the product may underflow, the parts do not."""
    up, down = (c.tolist() for c in _recurrence(np.arange(degree), d, a, b))
    previous, value, log_factor = 0.0, 1.0, 0.0
    for n in range(degree):
        previous, value = value, ((up[n] + down[n] - z) * value - down[n] * previous) / up[n]
        size = max(abs(value), abs(previous))
        if size < 1e-100:
            previous, value, log_factor = previous / size, value / size, log_factor + math.log(size)
    return value, log_factor


def _largest_zero(degree: int, d: int, a: int, b: int) -> float:
    """The largest zero in u of Q_degree^(a,b), from the Jacobi matrix of z = 1 - u; 0 for degree 0."""
    if degree == 0:
        return 0.0
    up, down = _recurrence(np.arange(degree), d, a, b)
    off_diagonal = np.sqrt(up[:-1] * down[1:])
    smallest = eigh_tridiagonal(up + down, off_diagonal, eigvals_only=True, select="i", select_range=(0, 0))
    return max(0.0, 1 - float(smallest[0]))


def _counts(k: ArrayLike, d: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    lines, dimension = np.asarray(k, dtype=float), np.asarray(d, dtype=float)
    if not np.all(np.isfinite(lines) & (lines >= 2)):
        raise RepcapError(f"k = {k} must be at least 2 lines and finite")
    if not np.all(np.isfinite(dimension) & (dimension >= 1)):
        raise RepcapError(f"d = {d} must be at least 1 and finite")
    return lines, dimension


def _check_capacity_arguments(d: int, epsilon: float) -> None:
    if not d >= 1 or d != int(d):
        raise RepcapError(f"d = {d} must be a whole number of at least 1")
    if not 0 < epsilon < 1:
        raise RepcapError(f"epsilon = {epsilon} must lie strictly between 0 and 1")
