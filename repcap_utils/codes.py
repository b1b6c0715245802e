"""Explicit sets of lines with a known coherence: Kerdock, Delsarte-Goethals, polynomial phases, mutually unbiased bases.

A line is a unit vector up to sign; the coherence of a set is the largest |cos| between two of its lines. The Kerdock
and Delsarte-Goethals lines come from quadratic forms over F_2 (Delsarte and Goethals, J. Combin. Theory A 19, 1975;
Calderbank, Cameron, Kantor and Seidel, Proc. LMS 75, 1997), the polynomial phases from Weil's bound on exponential
sums (1948). Line counts are exact Python integers, however large.

For a quadratic form Q on F_2^m the vectors 2^(-m/2) (-1)^(Q(x) + l.x), one for each l, are an orthonormal basis of
R^D, D = 2^m: a frame. Two frames whose forms differ by a form of rank 2h have cross products 0 and +-2^-h. So the
coherence of a set of frames follows from ranks over F_2, or from Walsh-Hadamard transforms of products of signs.

Lines are numbered, and each can be built without the others: `delsarte_goethals_line`, `polynomial_phases_line`. The
sets themselves are float64 arrays, built only where they fit into memory. Functions that return lines take the
dimension d; those about forms, frames and numbers of lines take m, where d = 2^m, or the prime p, where d = 2p.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
import psutil
from scipy.linalg import hadamard

from repcap_utils.checks import is_whole, whole_number
from repcap_utils.errors import RepcapError

LARGEST_M = 16
"""Vectors, transforms and ranks of quadratic forms are computed for m up to this; lines are counted for any m."""

_PRIMITIVE_POLYNOMIALS = {
    1: 0b11,
    3: 0b1011,
    5: 0b100101,
    7: 0b10000011,
    9: 0b1000010001,
    11: 0b100000000101,
    13: 0b10000000011011,
    15: 0b1000000000000011,
}
_MOST_DIFFERENCES = 2**26  # half a minute of ranks
_BLOCK = 2**16  # differences or transforms that are held at a time
_MOST_SUMS = 2**27  # exponential sums of an exact coherence


# Kerdock and Delsarte-Goethals lines


def kerdock(d: int) -> np.ndarray:
    """The d (d/2 + 1) Kerdock lines in R^d, with coherence exactly 1/sqrt(d).

    They are d/2 orthonormal bases made of the signs of quadratic forms, and the standard basis. No set of lines with
    this coherence is larger: Levenshtein's bound is attained.

    Args:
        d: a power of 4, at least 4.

    Returns:
        As `delsarte_goethals`. Every entry is 0 or a power of two up to sign, hence exact.

    Raises:
        RepcapError: d is no power of 4, or the array would not fit into memory.

    Source: Calderbank, Cameron, Kantor and Seidel, Proc. LMS 75 (1997).
    """
    return delsarte_goethals(2 ** _log2(d, 4), 0)


def delsarte_goethals(d: int, r: int) -> np.ndarray:
    """The Delsarte-Goethals lines in R^d.

    Args:
        d: a power of two, 4 .. 2^`LARGEST_M`.
        r: as for `delsarte_goethals_lines`.

    Returns:
        float64 array of shape (number of lines, d) with unit rows, in the order of `delsarte_goethals_line`: the rows of
        each basis are consecutive, and the standard basis comes last. `delsarte_goethals_coherence` is their coherence.

    Raises:
        RepcapError: d is no power of two, d or r is out of range, or the array would not fit into memory.

    Source: Delsarte and Goethals, J. Combin. Theory A 19 (1975).
    """
    m = _log2(d)
    _check_buildable(m, r)
    lines, d = delsarte_goethals_lines(m, r), 2**m
    _require_memory(f"Delsarte-Goethals lines, d = {d}, r = {r}", lines, d, f"delsarte_goethals_line({d}, {r}, i)")
    vectors = np.empty((lines // d, d, d))
    basis = hadamard(d) / math.sqrt(d)
    vectors[-1] = np.eye(d)
    for first in range(0, len(vectors) - 1, _BLOCK // d + 1):
        block = vectors[first : min(first + _BLOCK // d + 1, len(vectors) - 1)]
        signs = delsarte_goethals_signs(m, r, range(first, first + len(block)))
        np.multiply(signs[:, None, :], basis, out=block)
    return vectors.reshape(lines, d)


def delsarte_goethals_line(d: int, r: int, i: int) -> np.ndarray:
    """Line number i of the Delsarte-Goethals lines in R^d, without building any other.

    Args:
        d: a power of two, 4 .. 2^`LARGEST_M`.
        r: as for `delsarte_goethals_lines`; r = 0, where d is a power of 4, are the Kerdock lines.
        i: 0 .. lines - 1. i // d is the number of the form (`delsarte_goethals_signs`) and i mod d that of the linear
            form l, whose bits are its coefficients; the last d lines are the standard basis.

    Returns:
        float64, shape (d,).

    Raises:
        RepcapError: d is no power of two, or d, r or i is out of range.
    """
    m = _log2(d)
    _check_buildable(m, r)
    lines, d = delsarte_goethals_lines(m, r), 2**m
    form, linear = divmod(whole_number("number", i, 0, lines - 1), d)
    if form == lines // d - 1:
        return np.eye(1, d, linear)[0]
    parity = np.bitwise_count(np.arange(d) & linear) % 2
    return delsarte_goethals_signs(m, r, [form])[0] * (1.0 - 2.0 * parity) / math.sqrt(d)


def delsarte_goethals_signs(m: int, r: int, forms: Iterable[int]) -> np.ndarray:
    """Signs (-1)^Q(x) of quadratic forms of the Delsarte-Goethals sets, by their numbers.

    With t = m - 1 for even m and the point x + 2^t y standing for (x, y) in F_(2^t) x F_2,
    Q(x, y) = Tr(sum over j = 1 .. (t-1)/2 of (a x)^(2^j + 1)) + y Tr(a x) + Tr(sum over j = 1 .. r of b_j x^(2^j + 1)).
    For odd m, on F_(2^m), only the last sum is there. The base-2^t (base-2^m) digits of the number of a form are
    a, b_1, .., b_r (b_1, .., b_r), the lowest first.

    Args:
        m: log2 of the dimension, 2 .. `LARGEST_M`.
        r: as for `delsarte_goethals_lines`.
        forms: numbers from 0 below 2^((m-1)(r+1)) for even, 2^(m r) for odd m.

    Returns:
        int8 array of shape (number of forms, 2^m) of 1 and -1.

    Raises:
        RepcapError: m, r or a number is out of range, or the array would not fit into memory.
    """
    _check_buildable(m, r)
    count = delsarte_goethals_lines(m, r) // 2**m - 1
    t, digits, points = _field_degree(m), range(_digits(m, r)), np.arange(2**m)
    forms = forms if isinstance(forms, Sequence) else list(forms)
    what, single = f"signs of quadratic forms, m = {m}, r = {r}", f"delsarte_goethals_signs({m}, {r}, [form])[0]"
    _require_memory(what, len(forms), 2**m, single, size=1)
    signs = np.empty((len(forms), 2**m), dtype=np.int8)
    step = _BLOCK // 2**m + 1
    for first in range(0, len(forms), step):
        numbers = [whole_number("number", form, 0, count - 1) for form in forms[first : first + step]]
        coefficients = np.array([[form >> t * j & 2**t - 1 for j in digits] for form in numbers], dtype=np.int64)
        signs[first : first + step] = 1 - 2 * _form_values(m, coefficients, points).astype(np.int8)
    return signs


def delsarte_goethals_lines(m: int, r: int) -> int:
    """Number of Delsarte-Goethals lines in R^D, D = 2^m: D (2^((m-1)(r+1)) + 1) for even m, D (2^(m r) + 1) for odd m.

    Args:
        m: log2 of the dimension, at least 2.
        r: 0 .. m/2 - 1 for even m (0 is Kerdock), 1 .. (m-1)/2 for odd m.

    Raises:
        RepcapError: m or r lies outside these ranges.

    Source: Delsarte and Goethals, J. Combin. Theory A 19 (1975).
    """
    _check_delsarte_goethals(m, r)
    m, r = int(m), int(r)
    return 2**m * (2 ** (_field_degree(m) * _digits(m, r)) + 1)


def delsarte_goethals_coherence(m: int, r: int) -> float:
    """Exact coherence of the Delsarte-Goethals lines: 2^-(m/2 - r) for even m, 2^-((m-1)/2 - r + 1) for odd m.

    Arguments, errors and source as for `delsarte_goethals_lines`.
    """
    _check_delsarte_goethals(m, r)
    return 2.0 ** -(m // 2 - r + m % 2)


def delsarte_goethals_orders(m: int) -> range:
    """The values of r for which Delsarte-Goethals lines exist in R^(2^m); empty when there are none.

    Raises:
        RepcapError: m is no whole number from 0 on.
    """
    m = whole_number("m", m, 0)
    return range(m // 2) if m % 2 == 0 else range(1, (m - 1) // 2 + 1)


# What the lines are, by computation


def exact_coherence(m: int, r: int, method: Literal["rank", "transform"] = "rank") -> float:
    """The coherence of the Delsarte-Goethals lines in R^(2^m), found from all differences of two forms.

    Differences are taken up to the symmetry of the set: see `difference_ranks`.

    Args:
        m, r: as for `delsarte_goethals_signs`.
        method: "rank", by ranks over F_2, or "transform", by fast Walsh-Hadamard transforms of the 2^m signs.

    Raises:
        RepcapError: as for `difference_ranks`, or an unknown method.
    """
    _check_buildable(m, r)
    against_standard_basis = 2.0 ** (-m / 2)
    if method == "rank":
        return max(against_standard_basis, 2.0 ** (-min(difference_ranks(m, r)) / 2))
    if method != "transform":
        raise RepcapError(f"method = {method!r}; it must be rank or transform")
    largest = 0
    points = np.arange(2**m)
    for first, second in _differences(m, r, max(1, 2**22 // 2**m)):
        values = _form_values(m, first, points) ^ _form_values(m, second, points)
        largest = max(largest, int(np.abs(walsh_hadamard(1 - 2 * values.astype(np.int8))).max()))
    return max(against_standard_basis, largest / 2**m)


def difference_ranks(m: int, r: int, *, samples: int | None = None, seed: int = 0) -> dict[int, int]:
    """How often each rank occurs among the differences of two distinct forms of a Delsarte-Goethals set.

    For odd m the forms are a linear space, so the differences are its non-zero forms. For even m the difference of
    (a; b) and (a'; b') depends on a, a' and b + b' alone, and x -> c x maps (a; b_j) to (c a; c^(2^j + 1) b_j), so
    every difference has the rank of one of (1; 0) and (a'; b).

    Args:
        m, r: as for `delsarte_goethals_signs`.
        samples: number of random pairs of forms to look at instead of all differences.
        seed: of those pairs.

    Returns:
        {rank: number}, ascending. Without samples the differences are counted for odd m; for even m the
        representatives are, each of which stands for equally many pairs of forms: at m = 4, r = 1 there are 35 of rank
        2 and 28 of rank 4, and over all pairs of forms 1,120 and 896.

    Raises:
        RepcapError: m or r is out of range, samples or seed no whole number, or there are too many differences to look
            at all of them.
    """
    _check_buildable(m, r)
    whole_number("seed", seed, 0)
    if samples is not None:
        whole_number("samples", samples, 1)
    pairs = _differences(m, r, _BLOCK) if samples is None else _random_differences(m, r, samples, seed)
    counts = np.zeros(m + 1, dtype=np.int64)
    for first, second in pairs:
        counts += np.bincount(_ranks(_polar_rows(m, first) ^ _polar_rows(m, second)), minlength=m + 1)
    return {rank: int(count) for rank, count in enumerate(counts) if count}


def frames_coherence(signs: np.ndarray) -> float:
    """The largest |cos| between two different frames, over all pairs, by fast Walsh-Hadamard transforms.

    Args:
        signs: shape (n, D), rows of 1 and -1, D a power of two. Row s stands for the frame of the vectors
            D^(-1/2) s(x) (-1)^(l.x).

    Raises:
        RepcapError: signs are no rows of 1 and -1, D is no power of two, or there is only one frame.
    """
    signs = np.asarray(signs)
    if signs.ndim != 2:
        raise RepcapError(f"signs: an array of shape {signs.shape}; it must be (number of frames, D)")
    if len(signs) < 2:
        raise RepcapError(f"signs: {len(signs)} frame; a coherence needs two")
    if not ((signs == 1) | (signs == -1)).all():
        raise RepcapError("signs: an entry is neither 1 nor -1; take the signs of the vectors of each frame")
    signs = signs.astype(np.int8)
    return max(
        float(np.abs(walsh_hadamard(signs[i] * signs[i + 1 :])).max()) / signs.shape[1] for i in range(len(signs) - 1)
    )


def walsh_hadamard(values: np.ndarray) -> np.ndarray:
    """The sums over x of values(x) (-1)^(l.x), for each l, along the last axis: fast, and exact for whole numbers.

    Args:
        values: shape (..., D), D a power of two.

    Returns:
        A new array of the same shape; signed integers become int64.

    Raises:
        RepcapError: D is no power of two, or the values are no array of numbers.
    """
    values = np.asarray(values)
    if values.ndim == 0 or values.dtype.kind not in "biufc":
        raise RepcapError("values: an array of numbers of shape (.., D) is needed, D a power of two")
    values = np.array(values, dtype=np.result_type(values, np.int64), order="C")
    d = values.shape[-1]
    if d != 1:
        _log2(d)
    half = 1
    while half < d:
        pairs = values.reshape(*values.shape[:-1], d // (2 * half), 2, half)
        low, high = pairs[..., 0, :].copy(), pairs[..., 1, :]
        pairs[..., 0, :] += high
        np.subtract(low, high, out=high)
        half *= 2
    return values


# Mutually unbiased bases


def mub_count(d: int) -> int:
    """Largest number of mutually unbiased bases of R^d: d/2 + 1 where d is a power of 4, 2 for the other powers of two.

    All |cos| between vectors of two such bases are 1/sqrt(d). Three bases need a whole sqrt(d): between two of them
    that are unbiased to the standard basis, cosines are whole multiples of 1/d.

    Raises:
        RepcapError: d is no power of two, or below 2.

    Source: Calderbank, Cameron, Kantor and Seidel, Proc. LMS 75 (1997).
    """
    m = _log2(d)
    return 2 if m % 2 else 2 ** (m - 1) + 1


def mutually_unbiased_bases(d: int) -> np.ndarray:
    """`mub_count(d)` mutually unbiased bases of R^d: the frames of the Kerdock lines, the standard basis last.

    Returns:
        float64 array of shape (number of bases, d, d); rows are unit vectors.

    Raises:
        RepcapError: d is no power of two, below 2, or the array would not fit into memory.
    """
    m = _log2(d)
    if m % 2 == 0:
        return kerdock(d).reshape(-1, d, d)
    single = f"row i of the first is walsh_hadamard(np.eye(1, {d}, i)[0]) / {d}**0.5, of the other np.eye(1, {d}, i)[0]"
    _require_memory(f"mutually unbiased bases, d = {d}", 4 * d, d, single)  # the bases and their stack
    return np.stack([hadamard(d) / math.sqrt(d), np.eye(d)])


# Polynomial phases


def polynomial_phases(p: int, degree: int) -> np.ndarray:
    """Lines in R^(2p) from the polynomials of degree at most `degree` over F_p, and the standard basis.

    The complex vectors p^(-1/2) exp(2 pi i f(x) / p), x in F_p, for all f with f(0) = 0, together with the standard
    basis of C^p, each turned into the two real vectors (Re, Im) and (-Im, Re). `pad` puts them into any larger
    dimension.

    Args:
        p: a prime, at least 3.
        degree: 2 .. p - 1.

    Returns:
        float64 array of shape (2 p^degree + 2 p, 2 p) with unit rows, in the order of `polynomial_phases_line`.

    Raises:
        RepcapError: p is no prime, the degree is out of range, or the array would not fit into memory.

    Source: Weil's bound (1948).
    """
    lines = polynomial_phases_lines(p, degree)
    what = f"polynomial phases, p = {p}, degree = {degree}"
    _require_memory(what, lines, 2 * p, f"polynomial_phases_line({p}, {degree}, i)")
    vectors, polynomials = np.empty((lines, 2 * p)), p**degree
    vectors[2 * polynomials :] = np.eye(2 * p)
    plain, turned = vectors[:polynomials], vectors[polynomials : 2 * polynomials]
    for first in range(0, polynomials, _BLOCK // p + 1):
        block = slice(first, min(first + _BLOCK // p + 1, polynomials))
        numbers = np.arange(block.start, block.stop)[:, None]
        phases = _phases(p, numbers // p ** np.arange(degree)[::-1] % p) / math.sqrt(p)
        plain[block], turned[block] = np.split(_real_lines(phases), 2)
    return vectors


def polynomial_phases_line(p: int, degree: int, i: int) -> np.ndarray:
    """Line number i of the polynomial phases in R^(2p), without building any other.

    Args:
        p, degree: as in `polynomial_phases`.
        i: 0 .. lines - 1: the (Re, Im) forms of all polynomials, their (-Im, Re) forms, and the standard basis. The
            base-p digits of i mod p^degree are the coefficients, that of x the highest.

    Returns:
        float64, shape (2 p,).

    Raises:
        RepcapError: p, degree or i is out of range.
    """
    i = whole_number("number", i, 0, polynomial_phases_lines(p, degree) - 1)
    polynomials = p**degree
    if i >= 2 * polynomials:
        return np.eye(1, 2 * p, i - 2 * polynomials)[0]
    turned, number = divmod(i, polynomials)
    coefficients = np.array([[number // p**j % p for j in reversed(range(degree))]])
    return _real_lines(_phases(p, coefficients) / math.sqrt(p))[turned]


def polynomial_phases_lines(p: int, degree: int) -> int:
    """Number of polynomial-phase lines in R^(2p): 2 p^degree + 2 p. Arguments and errors as in `polynomial_phases`."""
    _check_polynomial_phases(p, degree)
    return 2 * int(p) ** int(degree) + 2 * int(p)


def polynomial_phases_coherence(p: int, degree: int) -> float:
    """Weil's bound (degree - 1) / sqrt(p) on the coherence of the polynomial-phase lines; attained at degree 2.

    Arguments and errors as in `polynomial_phases`. At higher degrees the true coherence may be smaller: see
    `polynomial_phases_exact_coherence`.
    """
    _check_polynomial_phases(p, degree)
    return (degree - 1) / math.sqrt(p)


def polynomial_phases_exact_coherence(p: int, degree: int) -> float:
    """The coherence of the polynomial-phase lines, by Fourier transforms over all differences of two polynomials.

    Polynomials are a linear space, so a difference is one of them; one transform takes care of all linear terms.

    Raises:
        RepcapError: as in `polynomial_phases`, or the p^degree exponential sums are too many.
    """
    _check_polynomial_phases(p, degree)
    if p**degree > _MOST_SUMS:
        raise RepcapError(
            f"polynomial phases: p = {p}, degree = {degree} needs {p**degree} exponential sums, too many; "
            "use polynomial_phases_coherence, Weil's bound"
        )
    largest = 1 / math.sqrt(p)  # against the standard basis
    for highest in range(p):  # the coefficient of x^degree: a block of transforms at a time
        others = np.arange(p ** (degree - 2))[:, None] // p ** np.arange(degree - 2) % p
        coefficients = np.column_stack([np.zeros(len(others), np.int64), others, np.full(len(others), highest)])
        sums = np.fft.fft(_phases(p, coefficients[coefficients.any(axis=1)]), axis=1) / p
        if sums.size:
            largest = max(largest, float(np.abs(sums.real).max()), float(np.abs(sums.imag).max()))
    return largest


# Tools


def pad(vectors: np.ndarray, d: int) -> np.ndarray:
    """Vectors, shape (..., n), in a dimension d >= n, by zeros at the end; no cosine changes.

    Raises:
        RepcapError: d is no whole number or below n, or the vectors are no array of shape (.., n).
    """
    vectors = np.asarray(vectors)
    if vectors.ndim == 0:
        raise RepcapError("vectors: an array of shape (.., n) is needed, not a single number")
    n = vectors.shape[-1]
    d = whole_number(f"vectors of {n} entries in dimension d", d, n)
    return np.pad(vectors, [(0, 0)] * (vectors.ndim - 1) + [(0, d - n)])


def is_prime(n: int) -> bool:
    """Whether n is a prime number, by trial division: meant for n up to about 10^12."""
    return n >= 2 and all(n % q for q in range(2, math.isqrt(n) + 1))


@cache
def largest_prime(limit: int) -> int:
    """The largest prime up to `limit`, or 0 where there is none."""
    return next((n for n in range(limit, 1, -1) if is_prime(n)), 0)


def _phases(p: int, coefficients: np.ndarray) -> np.ndarray:
    """exp(2 pi i f(x) / p) for polynomials without constant term: coefficients (n, degree), of x first -> (n, p)."""
    powers = np.array([[pow(x, j, p) for x in range(p)] for j in range(1, coefficients.shape[1] + 1)])
    return np.exp(2j * np.pi * (coefficients @ powers % p) / p)


def _real_lines(vectors: np.ndarray) -> np.ndarray:
    """(n, p) complex -> (2n, 2p) real: the real forms of each v and of i v."""
    return np.concatenate([np.hstack([vectors.real, vectors.imag]), np.hstack([-vectors.imag, vectors.real])])


def _log2(d: int, base: int = 2) -> int:
    """m of d = 2^m, for a power of `base` (2 or 4)."""
    below = base
    if isinstance(d, Real) and math.isfinite(d) and d >= base:
        m = int(d).bit_length() - 1
        if d == 2**m and (base == 2 or m % 2 == 0):
            return m
        below = 2 ** (m if base == 2 else m - m % 2)
    near = f"{below} or {base * below}"
    raise RepcapError(f"d = {d!r} is not a power of {base} from {base} on; take {near}")


def _check_delsarte_goethals(m: int, r: int) -> None:
    if not is_whole(r) or r not in delsarte_goethals_orders(m) or m < 2:
        allowed = delsarte_goethals_orders(m) if m >= 2 else range(0)
        advice = f"take r in {allowed.start} .. {allowed.stop - 1}" if allowed else "take m >= 2"
        raise RepcapError(f"Delsarte-Goethals lines: m = {m!r}, r = {r!r} does not exist; {advice}")


def _check_buildable(m: int, r: int) -> None:
    if is_whole(m) and m > LARGEST_M:
        raise RepcapError(
            f"quadratic forms: m = {m} is too large to compute with; take m up to {LARGEST_M}, d up to {2**LARGEST_M}"
        )
    _check_delsarte_goethals(m, r)


def _check_polynomial_phases(p: int, degree: int) -> None:
    if not is_whole(p) or p < 3 or not is_prime(p):
        raise RepcapError(f"polynomial phases: p = {p!r} must be a prime of at least 3")
    if not is_whole(degree) or not 2 <= degree < p:
        raise RepcapError(f"polynomial phases: degree = {degree!r} must lie in 2 .. p - 1 = {p - 1}")


def _require_memory(what: str, lines: int, d: int, single: str, size: int = 8) -> None:
    """`size`: bytes of an entry."""
    needed, free = size * lines * d, psutil.virtual_memory().available
    if needed > free:
        raise RepcapError(
            f"{what}: {lines} vectors of {d} entries take {needed} bytes and {free} are free; "
            f"build them one at a time: {single}"
        )


# Quadratic forms over F_2


class _Field(NamedTuple):
    """F_(2^t) by tables; elements are integers whose bits are polynomial coefficients.

    `kerdock` holds the traces of the sums over j = 1 .. (t-1)/2 of z^(2^j + 1).
    """

    exp: np.ndarray
    log: np.ndarray
    trace: np.ndarray
    kerdock: np.ndarray

    def power(self, a: np.ndarray, n: int) -> np.ndarray:
        """a^n, n >= 1, elementwise."""
        return np.where(a == 0, 0, self.exp[self.log[a] * n % len(self.exp)])

    def multiply(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a b, elementwise with broadcasting."""
        return np.where((a == 0) | (b == 0), 0, self.exp[(self.log[a] + self.log[b]) % len(self.exp)])


@cache
def _field(t: int) -> _Field:
    exp, value = np.empty(2**t - 1, dtype=np.int64), 1
    for i in range(len(exp)):
        exp[i] = value
        value <<= 1
        if value >> t:
            value ^= _PRIMITIVE_POLYNOMIALS[t]
    log = np.zeros(2**t, dtype=np.int64)
    log[exp] = np.arange(len(exp))
    z = np.arange(2**t)
    partial = _Field(exp, log, z, z)
    trace = np.bitwise_xor.reduce([partial.power(z, 2**j) for j in range(t)])
    powers = [trace[partial.power(z, 2**j + 1)] for j in range(1, (t - 1) // 2 + 1)]
    kerdock = np.bitwise_xor.reduce(powers) if powers else np.zeros_like(trace)
    return _Field(exp, log, trace.astype(np.uint8), kerdock.astype(np.uint8))


def _field_degree(m: int) -> int:
    """t of the field F_(2^t) that the forms on F_2^m are written over: the odd one of m - 1 and m."""
    return m - 1 if m % 2 == 0 else m


def _digits(m: int, r: int) -> int:
    """Number of field elements that give a form: a, b_1, .., b_r for even m, b_1, .., b_r for odd m."""
    return r + 1 if m % 2 == 0 else r


def _form_values(m: int, coefficients: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Q of each form at each point: coefficients (n, digits), points (k,) numbered x + 2^t y -> uint8 (n, k)."""
    t = _field_degree(m)
    field = _field(t)
    x, y = points & 2**t - 1, points >> t
    values = np.zeros((len(coefficients), len(points)), dtype=np.uint8)
    if m % 2 == 0:
        ax = field.multiply(coefficients[:, :1], x)
        values ^= field.kerdock[ax] ^ y.astype(np.uint8) & field.trace[ax]
        coefficients = coefficients[:, 1:]
    for j, b in enumerate(coefficients.T, 1):
        values ^= field.trace[field.multiply(b[:, None], field.power(x, 2**j + 1))]
    return values


def _differences(m: int, r: int, block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of forms, as coefficients (n, digits), whose differences stand for all: see `difference_ranks`."""
    t, digits = _field_degree(m), _digits(m, r)
    count = 2 ** (t * digits)
    if count > _MOST_DIFFERENCES:
        raise RepcapError(
            f"Delsarte-Goethals lines, m = {m}, r = {r}: {count} differences of forms are too many; "
            "take samples = 1000000 of difference_ranks, or delsarte_goethals_coherence"
        )
    origin = np.zeros((1, digits), dtype=np.int64)
    if m % 2 == 0:
        origin[0, 0] = 1
    same = int(origin[0, 0])  # the number of the form that is `origin` itself
    for first in range(0, count, block):
        numbers = np.arange(first, min(first + block, count))
        numbers = numbers[numbers != same]
        coefficients = np.stack([numbers >> t * j & 2**t - 1 for j in range(digits)], axis=1)
        yield np.broadcast_to(origin, coefficients.shape), coefficients


def _random_differences(m: int, r: int, samples: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of distinct forms, uniform over all pairs."""
    rng = np.random.default_rng(seed)
    shape = (2, _BLOCK, _digits(m, r))
    while samples > 0:
        first, second = rng.integers(2 ** _field_degree(m), size=shape)
        distinct = np.flatnonzero((first != second).any(axis=1))[:samples]
        samples -= len(distinct)
        yield first[distinct], second[distinct]


@cache
def _polar_table(m: int, digit: int) -> np.ndarray:
    """Polar matrices of the forms with a single coefficient: uint16 (m, 2^t), row i of the matrix as bits.

    The polar form of Q is B(u, v) = Q(u + v) + Q(u) + Q(v); its rank is the rank of Q.
    """
    t = _field_degree(m)
    coefficients = np.zeros((2**t, digit + 1), dtype=np.int64)
    coefficients[:, digit] = np.arange(2**t)
    units = 1 << np.arange(m)
    single = _form_values(m, coefficients, units).astype(np.uint16)
    rows = np.zeros((m, 2**t), dtype=np.uint16)
    for i in range(1, m):
        pairs = _form_values(m, coefficients, units[:i] | units[i])
        for k in range(i):
            bit = pairs[:, k] ^ single[:, i] ^ single[:, k]
            rows[i] |= bit << np.uint16(k)
            rows[k] |= bit << np.uint16(i)
    return rows


def _polar_rows(m: int, coefficients: np.ndarray) -> np.ndarray:
    """Polar matrices of forms: coefficients (n, digits) -> uint16 (m, n), row i of each matrix as bits.

    Forms with different digits add up, and so do their polar forms; the form of `a` is not linear in a, hence tables.
    """
    return np.bitwise_xor.reduce([_polar_table(m, digit)[:, column] for digit, column in enumerate(coefficients.T)])


def _ranks(rows: np.ndarray) -> np.ndarray:
    """Ranks over F_2 of n matrices at once, given as rows of bits (m, n), by Gaussian elimination."""
    rows = rows.copy()
    rank = np.zeros(rows.shape[1], dtype=np.int64)
    for i, row in enumerate(rows):
        pivot = row & (~row + np.uint16(1))
        rank += pivot != 0
        below = rows[i + 1 :]
        below ^= np.where(below & pivot, row, np.uint16(0))
    return rank
