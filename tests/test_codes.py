import math

import numpy as np
import pytest

from repcap_utils import codes
from repcap_utils.errors import RepcapError


def coherence(vectors):
    gram = np.abs(vectors @ vectors.T)
    np.fill_diagonal(gram, 0)
    return gram.max()


@pytest.mark.parametrize(("d", "lines"), [(4, 12), (16, 144), (64, 2112)])
def test_kerdock_has_its_lines_and_its_exact_coherence(d, lines):
    vectors = codes.kerdock(d)
    assert vectors.shape == (lines, d)
    assert np.array_equal(np.sum(vectors**2, axis=1), np.ones(lines))
    assert coherence(vectors) == 1 / math.sqrt(d)


def test_kerdock_256_by_the_cosines_of_one_frame_with_all_lines():
    vectors = codes.kerdock(256)
    assert vectors.shape == (33024, 256)
    cosines = np.abs(vectors[5 * 256 : 6 * 256] @ vectors.T)
    assert set(np.unique(cosines)) == {0.0, 1 / 16, 1.0}
    assert np.count_nonzero(cosines == 1.0) == 256


def test_kerdock_is_a_union_of_orthonormal_bases():
    for basis in codes.kerdock(16).reshape(9, 16, 16):
        assert np.array_equal(basis @ basis.T, np.eye(16))


def test_kerdock_is_a_tight_frame_of_degree_four():
    """sum over pairs of cos^4 takes the smallest value possible, 3 n^2 / (d (d + 2)): a projective 2-design."""
    vectors = codes.kerdock(16)
    n, d = vectors.shape
    assert np.sum((vectors @ vectors.T) ** 4) == pytest.approx(3 * n**2 / (d * (d + 2)))


@pytest.mark.parametrize("d", [0, 8, 32, 128, 1024, -16])
def test_kerdock_refuses_other_dimensions(d):
    with pytest.raises(RepcapError, match=f"d = {d} .*take one of 4, 16, 64, 256"):
        codes.kerdock(d)


@pytest.mark.parametrize(
    ("m", "r", "lines", "coherence"),
    [
        (4, 0, 144, 1 / 4),
        (4, 1, 1040, 1 / 2),
        (6, 0, 2112, 1 / 8),
        (6, 1, 65600, 1 / 4),
        (8, 0, 33024, 1 / 16),
        (8, 1, 4194560, 1 / 8),
        (5, 1, 1056, 1 / 4),
        (5, 2, 32800, 1 / 2),
        (7, 1, 16512, 1 / 8),
        (7, 2, 2097280, 1 / 4),
        (12, 0, 8392704, 1 / 64),
        (12, 1, 17179873280, 1 / 32),
        (12, 2, 35184372092928, 1 / 16),
    ],
)
def test_delsarte_goethals_counts(m, r, lines, coherence):
    assert codes.delsarte_goethals_lines(m, r) == lines
    assert codes.delsarte_goethals_coherence(m, r) == coherence


def test_delsarte_goethals_counts_are_exact_integers_beyond_floats():
    assert codes.delsarte_goethals_lines(40, 19) == 2**40 * (2**780 + 1)


@pytest.mark.parametrize(("m", "r"), [(4, 2), (4, -1), (5, 0), (5, 3), (1, 0), (0, 0), (-2, 0)])
def test_delsarte_goethals_refuses_what_does_not_exist(m, r):
    with pytest.raises(RepcapError, match="take"):
        codes.delsarte_goethals_lines(m, r)
    with pytest.raises(RepcapError, match="take"):
        codes.delsarte_goethals_coherence(m, r)


@pytest.mark.parametrize(("p", "degree"), [(5, 2), (7, 2), (7, 3), (31, 2)])
def test_polynomial_phases(p, degree):
    vectors = codes.polynomial_phases(p, degree)
    assert vectors.shape == (codes.polynomial_phases_lines(p, degree), 2 * p)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-12)
    found = coherence(vectors)
    assert found <= codes.polynomial_phases_coherence(p, degree) + 1e-12
    if degree == 2:
        assert found == pytest.approx(1 / math.sqrt(p), abs=1e-12)


def test_polynomial_phases_31_counts():
    """1922 phases at degree 2 and 62 basis vectors; 59582 phases at degree 3."""
    assert codes.polynomial_phases_lines(31, 2) == 1922 + 62
    assert codes.polynomial_phases_lines(31, 3) == 59582 + 62
    assert codes.polynomial_phases_coherence(31, 3) == pytest.approx(0.35921, abs=5e-6)


@pytest.mark.parametrize(
    ("p", "degree", "message"),
    [
        (9, 2, "p = 9 must be a prime"),
        (2, 2, "p = 2"),
        (31, 1, "degree = 1"),
        (5, 5, "degree = 5"),
        (31, 5, "too many"),
    ],
)
def test_polynomial_phases_refuses(p, degree, message):
    with pytest.raises(RepcapError, match=message):
        codes.polynomial_phases(p, degree)


def test_primes():
    assert [n for n in range(-3, 32) if codes.is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31]
    assert not codes.is_prime(8191 * 4093)
