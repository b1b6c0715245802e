"""What must exist and what cannot: proved lower and upper bounds on the number of lines in R^d at a given coherence.

A set of k lines in R^d has coherence epsilon when the largest |cos| between two of them is epsilon. Upper bounds on k
(equivalently, lower bounds on epsilon) are those of Welch and Rankin, Sidelnikov and Levenshtein, and the orthoplex
bound; lower bounds on k are the greedy covering argument and the explicit constructions of `codes`. Numbers of lines
are given as log10, since they overflow a float long before they stop being interesting.

Arguments broadcast, except in `best_known_capacity`, `best_known_coherence` and `bracket`, which name a construction.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import brentq
from scipy.special import betaln

from repcap_utils import codes, random_packing
from repcap_utils.checks import broadcast, broadcast_whole, whole_numbers
from repcap_utils.errors import RepcapError

MAX_DEGREE = 2**19
"""Largest degree of Levenshtein's polynomials that is tried; beyond it the bounds raise an error."""

WHOLE = 10**15
"""Numbers of lines below this are given as whole numbers too, where a logarithm in float64 still tells them apart."""

_EXACT_SUMS = 2**20  # exponential sums up to which polynomial phases have their exact coherence, not Weil's bound
_LARGEST_P = 2**31  # larger primes are not looked for; 2^31 - 1 is one

REFERENCES = {
    "orthonormal basis": "d lines at right angles",
    "greedy": "double caps around a maximal set cover the sphere: 1/P(|cos| > epsilon) lines exist",
    "Kerdock": "Calderbank, Cameron, Kantor and Seidel, Proc. London Math. Soc. 75 (1997)",
    "Delsarte-Goethals": "Delsarte and Goethals, J. Combin. Theory A 19 (1975)",
    "mutually unbiased bases": "the rows of a Hadamard matrix and the standard basis",
    "polynomial phases": "Weil's bound on exponential sums, Proc. Nat. Acad. Sci. 34 (1948); few sums are computed",
    "Levenshtein": "Levenshtein, Acta Appl. Math. 29 (1992)",
    "orthoplex": "Conway, Hardin and Sloane, Experimental Math. 5 (1996)",
    "Sidelnikov": "Sidelnikov, Math. USSR Sbornik 24 (1974); Welch, IEEE Trans. Inf. Theory 20 (1974)",
}
"""Where each construction and bound is proved."""


class LevenshteinBound(NamedTuple):
    """At most 10^log10_lines lines; `degree` counts the pieces of the bound: 1 is Welch's, 2k - 1 and 2k use Q_k."""

    log10_lines: np.ndarray | float
    degree: np.ndarray | int


class SidelnikovBound(NamedTuple):
    """At most 10^log10_lines lines, by the moment of order 2 `power` of the cosines; power 1 is Rankin's bound."""

    log10_lines: np.ndarray | float
    power: np.ndarray | int


class BestKnown(NamedTuple):
    """At least 10^log10_lines lines exist, by `construction`, whose coherence is at most `coherence`.

    `lines` is their exact number; None where only its logarithm is known (the greedy argument from `WHOLE` on).
    """

    log10_lines: float
    construction: str
    coherence: float
    lines: int | None

    @property
    def reference(self) -> str:
        """Where the construction is proved."""
        return REFERENCES[self.construction.partition(" (")[0]]


class Bracket(NamedTuple):
    """The largest number of lines lies between 10^log10_lower and 10^log10_upper.

    `construction` gives the lower number. `bound` (Levenshtein, orthoplex or Sidelnikov) gives the upper, by a
    polynomial of this `degree` in cos^2; for Levenshtein it is the piece of the bound. `lower` and `upper` are the
    same as whole numbers, rounded so that both stay proved; None from `WHOLE` on.
    """

    log10_lower: float
    construction: str
    log10_upper: float
    degree: int
    bound: str
    lower: int | None
    upper: int | None

    @property
    def exact(self) -> bool:
        """Whether both ends are the same number of lines: then it is the answer."""
        return self.lower is not None and self.lower == self.upper


class _DegreeError(RepcapError):
    """Levenshtein's bound needs polynomials of a degree above `MAX_DEGREE`."""


def welch(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """Welch's lower bound sqrt((k - d) / (d (k - 1))) on the coherence of k lines in R^d; 0 where k <= d.

    Args:
        k: number of lines, at least 2; scalar or array, broadcast against d.
        d: dimension, at least 2.

    Raises:
        RepcapError: some k < 2 or d < 2, or not finite.

    Source: Welch, IEEE Trans. Inf. Theory 20 (1974); also known as Rankin's simplex bound.
    """
    lines, dimension = broadcast(k=(k, 2), d=(d, 2))
    bound = np.sqrt(np.maximum(lines - dimension, 0) / (dimension * (lines - 1)))
    return bound if bound.ndim else float(bound)


def orthoplex(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """The orthoplex bound: 1/sqrt(d) where k > d (d + 1) / 2, else 0, on the coherence of k lines in R^d.

    Arguments and errors as for `welch`. Source: Conway, Hardin and Sloane, arXiv math/0208004, sec. 5.
    """
    lines, dimension = broadcast(k=(k, 2), d=(d, 2))
    bound = np.where(lines > dimension * (dimension + 1) / 2, 1 / np.sqrt(dimension), 0.0)
    return bound if bound.ndim else float(bound)


def levenshtein(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """Levenshtein's lower bound on the coherence of k lines in R^d, the inverse of `levenshtein_capacity`; 0 if k <= d.

    It equals Welch's bound for k <= d (d + 1) / 2 and exceeds it beyond.

    Args:
        k: number of lines, at least 2; scalar or array, whole numbers of any size (10**400, say).
        d: dimension, a whole number, at least 2, broadcast against k.

    Raises:
        RepcapError: k < 2, d < 2, not whole, or k so large that the degree exceeds `MAX_DEGREE`.

    Source: Levenshtein, Acta Appl. Math. 29 (1992).
    """
    lines, dimension = broadcast_whole(k=(k, 2), d=(d, 2))
    bound = np.array([_levenshtein(n, m) for n, m in zip(lines.flat, dimension.flat, strict=True)], dtype=float)
    return bound.reshape(lines.shape) if lines.ndim else float(bound[0])


def lower_bound(k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
    """The best proved lower bound here on the coherence of k lines in R^d: Welch, orthoplex and Levenshtein together.

    Arguments and errors as for `levenshtein`, except that k must be a number that a float can hold.
    """
    return np.maximum.reduce([welch(k, d), orthoplex(k, d), levenshtein(k, d)])[()]


def rankin_capacity(d: ArrayLike, epsilon: ArrayLike) -> np.ndarray | float:
    """log10 of Rankin's upper bound d (1 - epsilon^2) / (1 - d epsilon^2); inf where d epsilon^2 >= 1.

    The inverse of `welch`. Arguments and errors as for `levenshtein_capacity`; they broadcast.

    Source: Rankin, Proc. Glasgow Math. Assoc. 2 (1955).
    """
    dimension, coherence = _capacity_arguments(d, epsilon)
    room = 1 - dimension * coherence**2
    bound = np.log10(dimension * (1 - coherence**2)) - np.log10(np.where(room > 0, room, 1))
    return np.where(room > 0, bound, np.inf)[()]


def sidelnikov_capacity(d: ArrayLike, epsilon: ArrayLike) -> SidelnikovBound:
    """The higher-order Welch bound of Sidelnikov on the number of lines in R^d with coherence at most epsilon.

    With c_p = (2p - 1)!! / (d (d + 2) .. (d + 2p - 2)), the mean of cos^(2p) over the sphere, every p with
    epsilon^(2p) < c_p gives (1 - epsilon^(2p)) / (c_p - epsilon^(2p)); this is the smallest of them.

    Arguments and errors as for `levenshtein_capacity`; they broadcast.

    Source: Sidelnikov, Math. USSR Sbornik 24 (1974); Welch, IEEE Trans. Inf. Theory 20 (1974).
    """
    dimension, coherence = _capacity_arguments(d, epsilon)
    dimension, coherence = dimension[..., None], coherence[..., None]
    # The best p for the denominator alone, and its neighbours, since the numerator depends on p too.
    powers = np.maximum(1, _largest_gap(dimension, coherence) + np.arange(-4, 5))
    log_moment, log_power = _log_moment(dimension, powers), 2 * powers * np.log(coherence)
    valid = log_power < log_moment
    gap = np.where(valid, log_power - log_moment, -1.0)
    bound = np.log(-np.expm1(log_power)) - log_moment - np.log(-np.expm1(gap))
    bound = np.where(valid, bound, np.inf) / math.log(10)
    best = np.argmin(bound, axis=-1, keepdims=True)
    found, power = (np.take_along_axis(array, best, axis=-1)[..., 0] for array in (bound, powers))
    return SidelnikovBound(found, power.astype(int)) if found.ndim else SidelnikovBound(float(found), int(power))


def levenshtein_capacity(d: ArrayLike, epsilon: ArrayLike) -> LevenshteinBound:
    """Levenshtein's upper bound on the number of lines in R^d with coherence at most epsilon.

    With s = epsilon^2, Q_k^(a,b) the Jacobi polynomials P_k^((d-3)/2 + a, -1/2 + b)(2u - 1) normalised to 1 at u = 1,
    t_k^(a,b) their largest zeros and R_k = C(d + 2k - 1, 2k), the bound is
    (1 - Q_(k-1)^(1,0)(s) / Q_k^(0,0)(s)) R_(k-1) for t_(k-1)^(1,1) <= s <= t_k^(1,0), and
    (1 - Q_k^(1,0)(s) / Q_k^(0,1)(s)) R_k for t_k^(1,0) <= s <= t_k^(1,1).

    Args:
        d: dimension, a whole number, at least 2; scalar or array, broadcast against epsilon.
        epsilon: coherence, strictly between 0 and 1.

    Returns:
        log10 of the bound and the degree, 2k - 1 or 2k, of the piece that gives it. The logarithm is accurate to about
        1e-11 for d up to a million, beyond that to about 1e-11 d / 10^6.

    Raises:
        RepcapError: d < 2, epsilon outside (0, 1), or so near to 1 that the degree exceeds `MAX_DEGREE`.

    Source: Levenshtein, Acta Appl. Math. 29 (1992); Handbook of Coding Theory (1998).
    """
    dimension, coherence = _capacity_arguments(d, epsilon)
    found = [_levenshtein_capacity(int(n), float(e)) for n, e in zip(dimension.flat, coherence.flat, strict=True)]
    if not dimension.ndim:
        return found[0]
    log10_lines, degree = np.array([bound[0] for bound in found]), np.array([bound[1] for bound in found], dtype=int)
    return LevenshteinBound(log10_lines.reshape(dimension.shape), degree.reshape(dimension.shape))


def greedy_capacity(d: ArrayLike, epsilon: ArrayLike) -> np.ndarray | float:
    """log10 of 1 / P, a number of lines with coherence at most epsilon that certainly exists in R^d.

    P is the probability that two random unit vectors have |cos| > epsilon. A maximal set of lines exists in which no
    |cos| exceeds epsilon; the double caps around its members cover the sphere, so it has at least 1 / P of them.

    Arguments and errors as for `levenshtein_capacity`; they broadcast.
    """
    dimension, coherence = _capacity_arguments(d, epsilon)
    bound = np.maximum(0.0, -random_packing.log_exceedance(coherence, dimension) / math.log(10))
    return bound if bound.ndim else float(bound)


def best_known_capacity(d: int, epsilon: float) -> BestKnown:
    """The largest number of lines in R^d with coherence at most epsilon that this package can prove to exist.

    The candidates are an orthonormal basis; the greedy argument; the Kerdock and Delsarte-Goethals lines of the largest
    2^m <= d, and for odd m its two mutually unbiased bases; the polynomial phases of the largest prime p <= d/2 (at most
    2^31), and of every smaller p and degree t with p^t <= 2^20, whose coherence is computed where Weil's bound is too
    coarse. Zero padding keeps the coherence.

    Raises:
        RepcapError: d < 2, no whole number, or epsilon outside (0, 1), or an array.
    """
    d, epsilon = _single_capacity_arguments(d, epsilon)
    candidates = [
        BestKnown(math.log10(d), "orthonormal basis", 0.0, d),
        _greedy(d, epsilon),
        *(candidate for candidate in _constructions(d) if candidate.coherence <= epsilon),
    ]
    best = max(candidates, key=lambda candidate: candidate.log10_lines)
    largest = _phases_prime(d)
    for p, degree in ((largest, _weil_degree(largest, epsilon)), *_few_sums(d)):
        # An exact coherence costs time: it is computed only where the set would win. None is below 1/sqrt(p).
        if degree >= 2 and 1 / math.sqrt(p) <= epsilon:
            lines = codes.polynomial_phases_lines(p, degree)
            if math.log10(lines) > best.log10_lines and _phases_coherence(p, degree) <= epsilon:
                best = _phases(p, degree, _phases_coherence)
    return best


def best_known_coherence(k: int, d: int, *, weil: bool = False) -> BestKnown:
    """The smallest coherence at which one of the explicit constructions of `best_known_capacity` has k lines in R^d.

    The greedy argument, which proves that lines exist without giving them, is no candidate here.

    Args:
        k, d: whole numbers, at least 2.
        weil: take Weil's bound for every set of polynomial phases, also where their exact coherence is computed.

    Raises:
        RepcapError: k < 2 or d < 2, no whole numbers, or arrays; or no construction here has so many lines.
    """
    arguments = broadcast_whole(k=(k, 2), d=(d, 2))
    if arguments[0].ndim:
        raise RepcapError("k and d: a construction is named for one pair at a time; call it for each")
    lines, dimension = (array.item() for array in arguments)
    if lines <= dimension:
        return BestKnown(math.log10(dimension), "orthonormal basis", 0.0, dimension)
    candidates = [candidate for candidate in _constructions(dimension) if candidate.lines >= lines]
    best = min(candidates, key=lambda candidate: candidate.coherence, default=None)
    largest = _phases_prime(dimension)
    degrees = range(2, min(largest, lines.bit_length() + 1))
    enough = next((degree for degree in degrees if codes.polynomial_phases_lines(largest, degree) >= lines), 0)
    coherence = codes.polynomial_phases_coherence if weil else _phases_coherence
    for p, degree in ((largest, enough), *_few_sums(dimension)):
        limit = best.coherence if best else 1.0
        if degree >= 2 and 1 / math.sqrt(p) < limit and codes.polynomial_phases_lines(p, degree) >= lines:
            best = _phases(p, degree, coherence) if coherence(p, degree) < limit else best
    if best is None:
        count = f"{lines}" if lines < WHOLE else f"10^{math.log10(lines):.2f}"
        raise RepcapError(
            f"no construction here has {count} lines in {dimension} dimensions; take fewer, or a larger d"
        )
    return best


def bracket(d: int, epsilon: float) -> Bracket:
    """How many lines with coherence at most epsilon R^d surely has room for, and how many it surely has not.

    The lower number is `best_known_capacity`. The upper is `levenshtein_capacity`, or d (d + 1) / 2 by the orthoplex
    bound where that is smaller, just below epsilon = 1/sqrt(d). Where Levenshtein's degree exceeds `MAX_DEGREE` it is
    `sidelnikov_capacity`.

    Raises:
        RepcapError: as for `best_known_capacity`.
    """
    d, epsilon = _single_capacity_arguments(d, epsilon)
    known = best_known_capacity(d, epsilon)
    log10_upper, upper, bound, degree = _upper_bound(d, epsilon)
    lower = known.lines if known.lines is not None and known.lines < WHOLE else None
    # Where a construction attains the bound, rounding may put the bound below it.
    log10_upper = max(known.log10_lines, log10_upper)
    upper = max(lower, upper) if lower and upper else upper
    return Bracket(known.log10_lines, known.construction, log10_upper, degree, bound, lower, upper)


def _upper_bound(d: int, epsilon: float) -> tuple[float, int | None, str, int]:
    """The smallest upper bound here: its log10, the whole number (None from `WHOLE` on), its name and its degree."""
    try:
        (log10_lines, degree), name = levenshtein_capacity(d, epsilon), "Levenshtein"
    except _DegreeError:
        (log10_lines, degree), name = sidelnikov_capacity(d, epsilon), "Sidelnikov"
    orthoplex_lines = d * (d + 1) // 2
    if epsilon < 1 / math.sqrt(d) and math.log10(orthoplex_lines) < log10_lines:
        whole = orthoplex_lines if orthoplex_lines < WHOLE else None
        return math.log10(orthoplex_lines), whole, "orthoplex", 1
    # Ten times the error of the logarithm, so that the whole number is never below the bound.
    margin = 1e-10 * max(1.0, d / 1e6)
    whole = math.floor(10**log10_lines * (1 + margin)) if log10_lines < math.log10(WHOLE) else None
    return log10_lines, whole, name, degree


def _greedy(d: int, epsilon: float) -> BestKnown:
    """The greedy argument: at least 1/P lines, hence the whole number above it."""
    log10_lines = greedy_capacity(d, epsilon)
    if log10_lines >= math.log10(WHOLE):
        return BestKnown(log10_lines, "greedy", epsilon, None)
    # 1/P is known to about 1e-10; where it may be a whole number, that number is what is proved.
    lines = math.ceil(10**log10_lines * (1 - 1e-9))
    return BestKnown(math.log10(lines), "greedy", epsilon, lines)


def _constructions(d: int) -> list[BestKnown]:
    """Sets from quadratic forms in the largest 2^m <= d; a smaller m has fewer lines at each coherence."""
    m = d.bit_length() - 1
    found = []
    if m % 2:
        lines = 2 ** (m + 1)
        found.append(BestKnown(math.log10(lines), f"mutually unbiased bases (m = {m})", 2 ** (-m / 2), lines))
    for r in codes.delsarte_goethals_orders(m) if m > 1 else ():
        name = f"Kerdock (m = {m})" if m % 2 == 0 and r == 0 else f"Delsarte-Goethals (m = {m}, r = {r})"
        lines = codes.delsarte_goethals_lines(m, r)
        found.append(BestKnown(math.log10(lines), name, codes.delsarte_goethals_coherence(m, r), lines))
    return found


def _phases_prime(d: int) -> int:
    """The p of the polynomial phases in R^d whose coherence is Weil's bound: lines and degree grow with p."""
    return codes.largest_prime(min(d // 2, _LARGEST_P))


def _few_sums(d: int) -> list[tuple[int, int]]:
    """(p, degree) of the polynomial phases in R^d that have an exact coherence; it is no monotone function of p."""
    return [(p, degree) for p, degree in _all_few_sums() if 2 * p <= d]


@cache
def _all_few_sums() -> list[tuple[int, int]]:
    """Largest p first, since these are the ones to have a low coherence. Degree 2 attains Weil's bound."""
    primes = [p for p in range(round(_EXACT_SUMS ** (1 / 3)), 3, -1) if codes.is_prime(p)]
    return [(p, degree) for p in primes for degree in range(3, p) if p**degree <= _EXACT_SUMS]


def _weil_degree(p: int, epsilon: float) -> int:
    """The largest degree whose Weil bound is at most epsilon; below 2 where there is none."""
    if p < 3:
        return 0
    degree = min(p - 1, 1 + round(epsilon * math.sqrt(p)))
    return degree - 1 if degree >= 2 and codes.polynomial_phases_coherence(p, degree) > epsilon else degree


@cache
def _phases_coherence(p: int, degree: int) -> float:
    """Exact where the exponential sums are few, else Weil's bound."""
    weil = codes.polynomial_phases_coherence(p, degree)
    if (p, degree) not in _all_few_sums():
        return weil
    return min(weil, codes.polynomial_phases_exact_coherence(p, degree))


def _phases(p: int, degree: int, coherence: Callable[[int, int], float]) -> BestKnown:
    lines, name = codes.polynomial_phases_lines(p, degree), f"polynomial phases (p = {p}, t = {degree})"
    return BestKnown(math.log10(lines), name, coherence(p, degree), lines)


def _log_moment(d: np.ndarray, p: np.ndarray) -> np.ndarray:
    """ln of the mean of cos^(2p) between a fixed and a random direction of R^d."""
    return betaln(p + 0.5, (d - 1) / 2) - betaln(0.5, (d - 1) / 2)


def _largest_gap(d: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """The p >= 1 at which c_p - epsilon^(2p) is largest, as a float.

    Going from p to p + 1 the difference grows while A(p) = epsilon^(2p) / c_p (d + 2p) (1 - epsilon^2) / (d - 1) > 1.
    A rises up to some p and falls from there on, so the largest difference is where A last falls to 1.
    """

    def grows(p: np.ndarray) -> np.ndarray:
        log_a = 2 * p * np.log(epsilon) - _log_moment(d, p) + np.log((d + 2 * p) / (d - 1)) + np.log1p(-(epsilon**2))
        return log_a > 0

    peak = (epsilon**2 * (d + 2) - 1) / (2 * (1 - epsilon**2))
    low = np.maximum(1, np.ceil(peak))
    # From about 1e12 on whole numbers need not be told apart, and beyond 2^53 they cannot be.
    high = low + np.maximum(1, 1e-12 * low)
    while grows(high).any():
        high = np.where(grows(high), low + 2 * (high - low), high)
    while (high - low > np.maximum(1, 2e-12 * low)).any():
        middle = np.floor((low + high) / 2)
        low, high = np.where(grows(middle), middle, low), np.where(grows(middle), high, middle)
    return np.where(grows(low), high, low)


def _levenshtein(k: int, d: int) -> float:
    if k <= d:
        return 0.0
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


def _levenshtein_capacity(d: int, epsilon: float) -> LevenshteinBound:
    s = epsilon * epsilon
    degree = _degree(s, d)
    second = s > _largest_zero(degree, d, 1, 0)
    return LevenshteinBound(_log10_levenshtein(s, d, degree, second=second), 2 * degree - 1 + second)


def _log10_levenshtein(s: float, d: int, degree: int, *, second: bool) -> float:
    """log10 of the bound at s = epsilon^2 on one of the two pieces that belong to `degree`."""
    z = 1 - s
    numerator = _jacobi(degree if second else degree - 1, d, 1, 0, z)
    denominator = _jacobi(degree, d, 0, 1 if second else 0, z)
    ratio = numerator[0] / denominator[0] * math.exp(numerator[1] - denominator[1])
    order = 2 * degree if second else 2 * degree - 2
    return math.log10(1 - ratio) + math.log10(math.comb(d + order - 1, order))


def _degree(s: float, d: int) -> int:
    """The smallest k >= 1 with s <= t_k^(1,1); s may underflow to 0."""
    # Start where the largest zero lies in the limit of large degree and dimension; it is approached from below.
    low = max(0, math.floor(((d - 1) / math.sqrt(1 - s) - d) / 4)) if s < 1 else MAX_DEGREE
    low = min(low, MAX_DEGREE)
    if _largest_zero(low, d, 1, 1) >= s:
        low = 0
    high, stride = max(low, 1), 1
    while _largest_zero(high, d, 1, 1) < s:
        if high >= MAX_DEGREE:
            raise _DegreeError(
                f"epsilon = {math.sqrt(s):.12g} at d = {d} needs polynomials of degree above {MAX_DEGREE}; "
                "take an epsilon farther below 1"
            )
        low, high, stride = high, min(high + stride, MAX_DEGREE), 2 * stride
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
            raise RepcapError(
                f"k = 10^{math.log10(k):.2f} lines at d = {d} need polynomials of degree above {MAX_DEGREE}; take fewer"
            )


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


@cache
def _largest_zero(degree: int, d: int, a: int, b: int) -> float:
    """The largest zero in u of Q_degree^(a,b), from the Jacobi matrix of z = 1 - u; 0 for degree 0."""
    if degree == 0:
        return 0.0
    up, down = _recurrence(np.arange(degree), d, a, b)
    off_diagonal = np.sqrt(up[:-1] * down[1:])
    smallest = eigh_tridiagonal(up + down, off_diagonal, eigvals_only=True, select="i", select_range=(0, 0))
    return max(0.0, 1 - float(smallest[0]))


def _capacity_arguments(d: ArrayLike, epsilon: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """d and epsilon as float64 arrays of one shape, once both are known to be usable."""
    dimension, coherence = broadcast(d=(d, 2), epsilon=(epsilon, -np.inf))
    whole_numbers("d", dimension, 2)
    outside = (coherence <= 0) | (coherence >= 1)
    if outside.any():
        raise RepcapError(f"epsilon = {coherence[outside][0]:g} must lie strictly between 0 and 1")
    return dimension, coherence


def _single_capacity_arguments(d: int, epsilon: float) -> tuple[int, float]:
    """d and epsilon as single numbers, once both are known to be usable."""
    dimension, coherence = _capacity_arguments(d, epsilon)
    if dimension.ndim:
        raise RepcapError("d and epsilon: a construction is named for one pair at a time; call it for each")
    return int(dimension), float(coherence)
