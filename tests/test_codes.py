import math
import time
import tracemalloc

import numpy as np
import pytest
from scipy.linalg import hadamard

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


@pytest.mark.parametrize(
    ("d", "near"),
    [(0, "4 or 16"), (8, "4 or 16"), (32, "16 or 64"), (100, "64 or 256"), (-16, "4 or 16"), (70.5, "64 or 256")],
)
def test_kerdock_refuses_other_dimensions(d, near):
    with pytest.raises(RepcapError, match=f"d = {d} is not a power of 4 .*take {near}"):
        codes.kerdock(d)


@pytest.mark.parametrize(
    ("m", "r", "lines"), [(4, 0, 144), (4, 1, 1040), (6, 0, 2112), (5, 1, 1056), (3, 1, 72), (2, 0, 12)]
)
def test_the_full_gram_matrix_has_the_stated_coherence(m, r, lines):
    vectors = codes.delsarte_goethals(2**m, r)
    assert vectors.shape == (lines, 2**m)
    assert coherence(vectors) == pytest.approx(codes.delsarte_goethals_coherence(m, r), abs=1e-12)
    for basis in vectors.reshape(-1, 2**m, 2**m):
        assert np.allclose(basis @ basis.T, np.eye(2**m), atol=1e-12)


@pytest.mark.parametrize(("m", "r", "forms"), [(6, 0, 32), (6, 1, 1024), (8, 0, 128), (5, 2, 1024), (7, 1, 128)])
def test_transforms_of_all_pairs_of_frames_give_the_stated_coherence(m, r, forms):
    signs = codes.delsarte_goethals_signs(m, r, range(forms))
    assert (forms + 1) * 2**m == codes.delsarte_goethals_lines(m, r)
    assert codes.frames_coherence(signs) == codes.delsarte_goethals_coherence(m, r)


BY_TRANSFORM = [(4, 0), (4, 1), (5, 1), (5, 2), (6, 0), (6, 1), (7, 1), (7, 2), (8, 0), (8, 1)]


@pytest.mark.parametrize(("m", "r"), BY_TRANSFORM)
def test_differences_by_transform_and_by_rank_agree(m, r):
    found = [codes.exact_coherence(m, r, method) for method in ("transform", "rank")]
    assert found == [codes.delsarte_goethals_coherence(m, r)] * 2


def test_4096_by_the_ranks_of_all_differences_up_to_symmetry():
    start = time.perf_counter()
    assert codes.difference_ranks(12, 0) == {12: 2047}
    ranks = codes.difference_ranks(12, 1)
    assert time.perf_counter() - start < 60
    assert set(ranks) == {10, 12}
    assert sum(ranks.values()) == 2**22 - 1
    assert 2.0 ** (-min(ranks) / 2) == codes.delsarte_goethals_coherence(12, 1)


def test_4096_at_the_second_order_by_random_differences():
    ranks = codes.difference_ranks(12, 2, samples=10**6, seed=1)
    assert set(ranks) == {8, 10, 12}
    assert sum(ranks.values()) == 10**6
    assert 2.0 ** (-min(ranks) / 2) == codes.delsarte_goethals_coherence(12, 2)


@pytest.mark.parametrize(("m", "r"), [(4, 1), (6, 1)])
def test_the_symmetry_loses_no_rank(m, r):
    """All pairs of forms have the ranks of the representatives, in the same proportion."""
    forms = codes.delsarte_goethals_lines(m, r) // 2**m - 1
    t = m - 1
    first, second = np.triu_indices(forms, 1)
    pairs = [np.stack([n >> t * j & 2**t - 1 for j in range(r + 1)], axis=1) for n in (first, second)]
    ranks = codes._ranks(codes._polar_rows(m, pairs[0]) ^ codes._polar_rows(m, pairs[1]))
    representatives = codes.difference_ranks(m, r)
    every, rest = divmod(len(ranks), sum(representatives.values()))
    assert rest == 0
    assert {rank: every * count for rank, count in representatives.items()} == dict(
        zip(*np.unique(ranks, return_counts=True), strict=True)
    )


def test_ranks_are_those_of_the_matrices():
    rng = np.random.default_rng(0)
    bits = rng.integers(2, size=(50, 6, 6), dtype=np.uint16)
    bits[:10, 3:] = bits[:10, :3]
    rows = (bits << np.arange(6, dtype=np.uint16)).sum(axis=2, dtype=np.uint16).T
    expected = []
    for matrix in bits:
        span = {0}
        for row in (int("".join(map(str, r)), 2) for r in matrix):
            span |= {row ^ other for other in span}
        expected.append(len(span).bit_length() - 1)
    assert codes._ranks(rows).tolist() == expected
    assert min(expected) < 4 and max(expected) == 6


@pytest.mark.parametrize(("m", "r"), [(4, 1), (5, 1), (6, 0)])
def test_single_lines_are_those_of_the_set(m, r):
    vectors = codes.delsarte_goethals(2**m, r)
    for i in (0, 1, 2**m, 5 * 2**m + 3, len(vectors) - 2**m - 1, len(vectors) - 2**m, len(vectors) - 1):
        assert np.array_equal(codes.delsarte_goethals_line(2**m, r, i), vectors[i])


def test_single_lines_of_a_set_that_no_memory_holds():
    lines = codes.delsarte_goethals_lines(12, 2)
    numbers = [0, 4096 * 123456789 + 17, np.int64(4096 * 987654321), lines - 4097, lines - 1]
    vectors = np.array([codes.delsarte_goethals_line(4096, 2, i) for i in numbers])
    assert np.array_equal(np.sum(vectors**2, axis=1), np.ones(5))
    assert 0 < coherence(vectors) <= 1 / 16
    assert codes.delsarte_goethals_line(65536, 7, 2**136).shape == (65536,)


def test_walsh_hadamard_is_the_product_with_the_matrix():
    values = np.random.default_rng(0).integers(-100, 100, size=(3, 4, 32))
    assert np.array_equal(codes.walsh_hadamard(values), values @ hadamard(32))
    assert np.array_equal(codes.walsh_hadamard(values[:, 0].T.astype(np.int8).T), values[:, 0] @ hadamard(32))
    assert codes.walsh_hadamard(np.array([0.5])).tolist() == [0.5]
    with pytest.raises(RepcapError, match=r"d = 12 is not a power of 2 .*take 8 or 16"):
        codes.walsh_hadamard(np.ones(12))


@pytest.mark.parametrize("t", [1, 3, 5, 7, 9, 11, 13, 15])
def test_fields_are_fields(t):
    field = codes._field(t)
    assert sorted(field.exp) == list(range(1, 2**t))
    assert field.trace.sum() == 2 ** (t - 1)
    a, b, c = np.random.default_rng(t).integers(2**t, size=(3, 100))
    assert np.array_equal(field.multiply(a, b ^ c), field.multiply(a, b) ^ field.multiply(a, c))
    assert np.array_equal(field.multiply(a, a), field.power(a, 2))
    assert np.array_equal(field.trace[a ^ b], field.trace[a] ^ field.trace[b])
    assert np.array_equal(field.trace[field.power(a, 2)], field.trace[a])


@pytest.mark.parametrize(("d", "count"), [(2, 2), (4, 3), (8, 2), (16, 9), (64, 33)])
def test_bases_are_mutually_unbiased(d, count):
    bases = codes.mutually_unbiased_bases(d)
    assert bases.shape == (count, d, d)
    assert codes.mub_count(d) == count
    for i, basis in enumerate(bases):
        assert np.allclose(basis @ basis.T, np.eye(d), atol=1e-12)
        assert np.allclose(np.abs(bases[:i] @ basis.T), 1 / math.sqrt(d), atol=1e-12)


@pytest.mark.parametrize(("d", "near"), [(1, "2 or 4"), (12, "8 or 16"), (4095, "2048 or 4096"), (16.5, "16 or 32")])
def test_bases_need_a_power_of_two(d, near):
    with pytest.raises(RepcapError, match=f"d = {d} is not a power of 2 .*take {near}"):
        codes.mub_count(d)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: codes.kerdock(65536), "take 1125934266580992 bytes .*delsarte_goethals_line\\(65536, 0, i\\)"),
        (lambda: codes.delsarte_goethals(256, 3), "take 140737488879616 bytes .*delsarte_goethals_line\\(256, 3, i\\)"),
        (lambda: codes.polynomial_phases(31, 8), "take 846067909172224 bytes .*polynomial_phases_line\\(31, 8, i\\)"),
        (lambda: codes.mutually_unbiased_bases(2**23), "bytes .*walsh_hadamard\\(np.eye\\(1, 8388608, i"),
        (lambda: codes.delsarte_goethals_signs(12, 2, range(2**33)), "bytes .*delsarte_goethals_signs\\(12, 2, "),
        (lambda: codes.delsarte_goethals(64, 1.0), "r = 1.0 does not exist; take r in 0 .. 2"),
        (lambda: codes.delsarte_goethals(2**17, 0), "take m up to 16, d up to 65536"),
        (lambda: codes.difference_ranks(4, 1, samples=1.5), "samples = 1.5"),
        (lambda: codes.difference_ranks(4, 1, samples="a"), "samples = 'a'"),
        (lambda: codes.difference_ranks(4, 1, samples=5, seed=-1), "seed = -1"),
        (lambda: codes.walsh_hadamard(3), "an array of numbers"),
        (lambda: codes.walsh_hadamard(np.array(["a", "b"])), "an array of numbers"),
        (lambda: codes.frames_coherence(2 * np.ones((3, 8))), "neither 1 nor -1"),
        (lambda: codes.frames_coherence(np.ones(8)), r"shape \(8,\)"),
        (lambda: codes.frames_coherence(np.ones((2, 12))), "d = 12 is not a power of 2"),
        (lambda: codes.pad([1, 2], 3.5), "in dimension d = 3.5: give a whole number from 2 on"),
        (lambda: codes.pad(1.0, 3), "not a single number"),
        (lambda: codes.delsarte_goethals(2**18, 0), "m = 18 is too large"),
        (lambda: codes.delsarte_goethals_line(64, 0, 2112), "number = 2112: give a whole number from 0 to 2111"),
        (lambda: codes.delsarte_goethals_line(64, 0, -1), "number = -1"),
        (lambda: codes.delsarte_goethals_line(64, 0, 1.5), "number = 1.5"),
        (lambda: codes.delsarte_goethals(100, 1), "d = 100 is not a power of 2 .*take 64 or 128"),
        (lambda: codes.delsarte_goethals(2, 0), "take m >= 2"),
        (lambda: codes.delsarte_goethals_orders(4.5), "m = 4.5: give a whole number"),
        (lambda: codes.exact_coherence(4.5, 0), "m = 4.5: give a whole number"),
        (lambda: codes.delsarte_goethals_signs(6, 0, [32]), "number = 32"),
        (lambda: codes.polynomial_phases_line(5, 2, 60), "number = 60"),
        (lambda: codes.difference_ranks(12, 2), "8589934592 differences .* take samples"),
        (lambda: codes.difference_ranks(12, 2, samples=0), "samples = 0"),
        (lambda: codes.exact_coherence(6, 0, "guess"), "method = 'guess'"),
        (lambda: codes.frames_coherence(np.ones((1, 8))), "a coherence needs two"),
        (lambda: codes.polynomial_phases_exact_coherence(101, 5), "exponential sums, too many"),
        (
            lambda: codes.pad(np.ones((2, 8)), 7),
            "vectors of 8 entries in dimension d = 7: give a whole number from 8 on",
        ),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(RepcapError, match=words):
        call()


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


@pytest.mark.parametrize(("m", "r"), [(4, 2), (4, -1), (5, 0), (5, 3), (1, 0), (0, 0), (-2, 0), (4.5, 0)])
def test_delsarte_goethals_refuses_what_does_not_exist(m, r):
    with pytest.raises(RepcapError, match=r"take|give"):
        codes.delsarte_goethals_lines(m, r)
    with pytest.raises(RepcapError, match=r"take|give"):
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


@pytest.mark.parametrize(("p", "degree"), [(3, 2), (5, 3), (7, 4)])
def test_polynomial_phases_one_at_a_time_and_their_exact_coherence(p, degree):
    vectors = codes.polynomial_phases(p, degree)
    single = [codes.polynomial_phases_line(p, degree, i) for i in range(len(vectors))]
    assert np.array_equal(single, vectors)
    if len(vectors) < 1000:
        assert codes.polynomial_phases_exact_coherence(p, degree) == pytest.approx(coherence(vectors), abs=1e-12)
        assert coherence(codes.pad(vectors, 3 * p)) == pytest.approx(coherence(vectors), abs=1e-12)


def test_polynomial_phases_31_are_better_than_the_bound():
    assert codes.polynomial_phases_exact_coherence(31, 2) == pytest.approx(1 / math.sqrt(31), abs=1e-12)
    assert codes.polynomial_phases_exact_coherence(31, 3) == pytest.approx(0.33485, abs=5e-6)


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
        (7.0, 2, "p = 7.0"),
    ],
)
def test_polynomial_phases_refuses(p, degree, message):
    with pytest.raises(RepcapError, match=message):
        codes.polynomial_phases(p, degree)


def test_lists_and_nothing_at_all_are_fine():
    assert codes.delsarte_goethals_signs(4, 0, []).shape == (0, 16)
    assert codes.delsarte_goethals_signs(4, 0, iter([3])).tolist() == codes.delsarte_goethals_signs(4, 0, [3]).tolist()
    assert codes.pad([1, 2], 3).tolist() == [1, 2, 0]


def test_sums_beyond_int32_are_exact():
    assert codes.walsh_hadamard(np.full(4, 2**30, dtype=np.int32)).tolist() == [2**32, 0, 0, 0]


def test_polynomial_phases_take_the_memory_that_is_checked():
    tracemalloc.start()
    vectors = codes.polynomial_phases(43, 3)[:3]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert vectors.shape == (3, 86)
    assert peak < 1.1 * 8 * codes.polynomial_phases_lines(43, 3) * 86


def test_primes():
    assert [n for n in range(-3, 32) if codes.is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31]
    assert not codes.is_prime(8191 * 4093)
    assert [codes.largest_prime(n) for n in (-1, 1, 2, 10, 8192)] == [0, 0, 2, 7, 8191]
