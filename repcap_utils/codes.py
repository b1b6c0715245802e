"""Explicit sets of lines with a known coherence: Kerdock, Delsarte-Goethals and polynomial-phase codes.

A line is a unit vector up to sign; the coherence of a set is the largest |cos| between two of its lines. The Kerdock
and Delsarte-Goethals lines come from quadratic forms over F_2 (Delsarte and Goethals, J. Combin. Theory A 19, 1975;
Calderbank, Cameron, Kantor and Seidel, Proc. LMS 75, 1997), the polynomial phases from Weil's bound on exponential
sums (1948). Line counts are exact Python integers, however large.
"""

import math
from itertools import product

import numpy as np
from scipy.linalg import hadamard

from repcap_utils.errors import RepcapError

KERDOCK_DIMENSIONS = (4, 16, 64, 256)
"""Dimensions for which `kerdock` builds the vectors; the next one, 1024, would fill more than 4 GB."""

_MAX_ENTRIES = 2**27
_PRIMITIVE_POLYNOMIALS = {1: 0b11, 3: 0b1011, 5: 0b100101, 7: 0b10000011}


def kerdock(d: int) -> np.ndarray:
    """The d (d/2 + 1) Kerdock lines in R^d, with coherence exactly 1/sqrt(d).

    They are d/2 orthonormal bases made of the signs of quadratic forms, and the standard basis. No set of lines with
    this coherence is larger: Levenshtein's bound is attained.

    Args:
        d: 4, 16, 64 or 256.

    Returns:
        float64 array of shape (d (d/2 + 1), d) with unit rows. Every entry is 0 or a power of two up to sign, hence
        exact. The rows of each basis are consecutive and the standard basis comes last.

    Raises:
        RepcapError: d is not one of `KERDOCK_DIMENSIONS`.

    Source: Calderbank, Cameron, Kantor and Seidel, Proc. LMS 75 (1997).
    """
    if d not in KERDOCK_DIMENSIONS:
        raise RepcapError(f"kerdock: d = {d!r} is not available; take one of {', '.join(map(str, KERDOCK_DIMENSIONS))}")
    basis = hadamard(d) / math.sqrt(d)
    frames = [signs * basis for signs in _kerdock_form_signs(int(d).bit_length() - 1)]
    return np.concatenate([*frames, np.eye(d)])


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
    return 2**m * (2 ** ((m - 1) * (r + 1) if m % 2 == 0 else m * r) + 1)


def delsarte_goethals_coherence(m: int, r: int) -> float:
    """Exact coherence of the Delsarte-Goethals lines: 2^-(m/2 - r) for even m, 2^-((m-1)/2 - r + 1) for odd m.

    Arguments, errors and source as for `delsarte_goethals_lines`.
    """
    _check_delsarte_goethals(m, r)
    return 2.0 ** -(m // 2 - r + m % 2)


def delsarte_goethals_orders(m: int) -> range:
    """The values of r for which Delsarte-Goethals lines exist in R^(2^m); empty when there are none."""
    return range(m // 2) if m % 2 == 0 else range(1, (m - 1) // 2 + 1)


def polynomial_phases(p: int, degree: int) -> np.ndarray:
    """Lines in R^(2p) from the polynomials of degree at most `degree` over F_p, and the standard basis.

    The complex vectors p^(-1/2) exp(2 pi i f(x) / p), x in F_p, for all f with f(0) = 0, together with the standard
    basis of C^p, each turned into the two real vectors (Re, Im) and (-Im, Re).

    Args:
        p: a prime, at least 3.
        degree: 2 .. p - 1.

    Returns:
        float64 array of shape (2 p^degree + 2 p, 2 p) with unit rows.

    Raises:
        RepcapError: p is no prime, the degree is out of range, or the array would exceed 1 GiB.

    Source: Weil's bound (1948).
    """
    lines = polynomial_phases_lines(p, degree)
    if lines * 2 * p > _MAX_ENTRIES:
        raise RepcapError(
            f"polynomial_phases: p = {p}, degree = {degree} gives {lines} lines, too many to hold; take a smaller "
            "degree or use polynomial_phases_lines for the count"
        )
    powers = np.array([[pow(x, j, p) for x in range(p)] for j in range(1, degree + 1)])
    coefficients = np.array(list(product(range(p), repeat=degree)))
    phases = np.exp(2j * np.pi * (coefficients @ powers % p) / p) / math.sqrt(p)
    return np.concatenate([_real_lines(phases), _real_lines(np.eye(p, dtype=complex))])


def polynomial_phases_lines(p: int, degree: int) -> int:
    """Number of polynomial-phase lines in R^(2p): 2 p^degree + 2 p. Arguments and errors as in `polynomial_phases`."""
    _check_polynomial_phases(p, degree)
    return 2 * p**degree + 2 * p


def polynomial_phases_coherence(p: int, degree: int) -> float:
    """Weil's bound (degree - 1) / sqrt(p) on the coherence of the polynomial-phase lines; attained at degree 2.

    Arguments and errors as in `polynomial_phases`. At higher degrees the true coherence may be smaller.
    """
    _check_polynomial_phases(p, degree)
    return (degree - 1) / math.sqrt(p)


def is_prime(n: int) -> bool:
    """Whether n is a prime number, by trial division: meant for n up to about 10^12."""
    return n >= 2 and all(n % q for q in range(2, math.isqrt(n) + 1))


def _real_lines(vectors: np.ndarray) -> np.ndarray:
    """(n, p) complex -> (2n, 2p) real: the real forms of each v and of i v."""
    return np.concatenate([np.hstack([vectors.real, vectors.imag]), np.hstack([-vectors.imag, vectors.real])])


def _check_delsarte_goethals(m: int, r: int) -> None:
    if m < 2 or r not in delsarte_goethals_orders(m):
        allowed = delsarte_goethals_orders(m) if m >= 2 else range(0)
        advice = f"take r in {allowed.start} .. {allowed.stop - 1}" if allowed else "take m >= 2"
        raise RepcapError(f"Delsarte-Goethals lines: m = {m!r}, r = {r!r} does not exist; {advice}")


def _check_polynomial_phases(p: int, degree: int) -> None:
    if not is_prime(p) or p < 3:
        raise RepcapError(f"polynomial phases: p = {p!r} must be a prime of at least 3")
    if not 2 <= degree < p:
        raise RepcapError(f"polynomial phases: degree = {degree!r} must lie in 2 .. p - 1 = {p - 1}")


def _kerdock_form_signs(m: int) -> np.ndarray:
    """Signs (-1)^Q_a of the Kerdock forms on F_(2^t) x F_2, t = m - 1: int array (2^t, 2^m), column x + 2^t y.

    Q_a(x, y) = Tr(sum over j = 1 .. (t-1)/2 of (a x)^(2^j + 1)) + y Tr(a x).
    """
    t = m - 1
    field = np.arange(2**t)
    products = _multiply(field[:, None], field[None, :], t)
    quadratic = np.zeros_like(products)
    conjugate = products
    for _ in range((t - 1) // 2):
        conjugate = _multiply(conjugate, conjugate, t)
        quadratic ^= _multiply(conjugate, products, t)
    form = _trace(quadratic, t)
    return 1 - 2 * np.hstack([form, form ^ _trace(products, t)])


def _multiply(a: np.ndarray, b: np.ndarray, t: int) -> np.ndarray:
    """Elementwise product in F_(2^t), elements written as integers whose bits are polynomial coefficients."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape), dtype=np.int64)
    for bit in range(t):
        result ^= np.where(b >> bit & 1, a << bit, 0)
    for bit in range(2 * t - 2, t - 1, -1):
        result ^= np.where(result >> bit & 1, _PRIMITIVE_POLYNOMIALS[t] << (bit - t), 0)
    return result


def _trace(a: np.ndarray, t: int) -> np.ndarray:
    """Absolute trace F_(2^t) -> F_2, elementwise: the sum of the t conjugates."""
    total = a.copy()
    conjugate = a
    for _ in range(t - 1):
        conjugate = _multiply(conjugate, conjugate, t)
        total ^= conjugate
    return total
