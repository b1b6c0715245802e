"""Exact errors against brute force over supports and signs, linear programs by their certificates, bounds by known codes."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import optimize, special

from repcap_utils import codes, embeddings, linear_access, stores
from repcap_utils.errors import RepcapError


def random_pair(m: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and probes of different lengths, far from unit diagonals."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(m, d)) * generator.uniform(0.3, 1.5, size=(m, 1))
    return features, features * 0.4 + 0.3 * generator.normal(size=(m, d))


def supports(m: int, k: int):
    return itertools.chain.from_iterable(itertools.combinations(range(m), size) for size in range(1, k + 1))


def brute_errors(features: np.ndarray, probes: np.ndarray, k: int, values: tuple[int, ...]) -> np.ndarray:
    """Largest |(M z - z)_i| over all supports of at most k features and all corners of the box on them."""
    m = len(features)
    worst = np.zeros(m)
    for support in supports(m, k):
        for corner in itertools.product(values, repeat=len(support)):
            z = np.zeros(m)
            z[list(support)] = corner
            worst = np.maximum(worst, np.abs(probes @ (features.T @ z) - z))
    return worst


def brute_margins(features: np.ndarray, probes: np.ndarray, k: int) -> np.ndarray:
    """Lowest reading with feature i active less the highest without it, over all of {0, 1}^m with at most k ones."""
    m = len(features)
    low, high = np.full(m, math.inf), np.zeros(m)
    for support in supports(m, k):
        z = np.isin(np.arange(m), support).astype(float)
        reading = probes @ (features.T @ z)
        low = np.where(z == 1, np.minimum(low, reading), low)
        high = np.where(z == 0, np.maximum(high, reading), high)
    return low - high


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("m", "d", "k"), [(8, 5, 4), (8, 3, 2), (6, 9, 3), (5, 2, 1), (4, 3, 4), (2, 1, 2), (1, 1, 1)])
def test_worst_case_equals_brute_force(m, d, k, seed):
    features, probes = random_pair(m, d, seed)
    found = linear_access.interference(features, probes)
    for inputs, values in (("signed", (-1, 1)), ("nonnegative", (0, 1))):
        expected = brute_errors(features, probes, k, values)
        np.testing.assert_allclose(found.errors(k, inputs), expected, rtol=0, atol=1e-12)
        worst = found.worst_case(k, inputs)
        assert worst.error == pytest.approx(expected.max(), abs=1e-12)
        assert worst.row == expected.argmax()
    if k < m:
        np.testing.assert_allclose(found.margins(k), brute_margins(features, probes, k), rtol=0, atol=1e-12)


def test_thresholds_read_what_the_margins_say():
    features, probes = random_pair(7, 12, 3)
    separable = linear_access.interference(features, probes).margins(2) > 0
    assert 0 < separable.sum() < 7


@pytest.mark.parametrize("tile", [3, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_embedding_in_tiles_equals_the_whole_gram_matrix(tile, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 6, generator=generator, dtype=dtype) + 0.5
    weight[[4, 30]] = 0.0
    weight[9] = 2 * weight[8]
    found = linear_access.embedding_interference(weight, 5, tile=tile)
    kept = [i for i in range(50) if i not in (4, 30)]
    unit = weight[kept].double() / weight[kept].double().norm(dim=1, keepdim=True)
    whole = linear_access.interference(unit, k_max=5)
    assert found.zero_rows == 2
    assert found.rows.tolist() == kept
    tolerance = 1e-13 if dtype == torch.float64 else 1e-6
    for name in ("gain", "positive", "negative"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=0, atol=tolerance)
    assert found.worst_case(1).error == pytest.approx(1.0, abs=1e-6)
    assert found.worst_case(1).row in (8, 9)


def test_common_directions_are_removed_first():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(200, 16, generator=generator) + 3.0
    raw, centred = (linear_access.embedding_interference(weight, 4, centre=centre) for centre in (False, True))
    assert centred.worst_case(4).error < raw.worst_case(4).error
    without = linear_access.embedding_interference(weight, 4, centre=True, components=2)
    assert not np.array_equal(without.positive, centred.positive)


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    weight = torch.randn(90, 5, generator=torch.Generator().manual_seed(2))
    expected = linear_access.embedding_interference(weight, 4, tile=20)

    class Killed(BaseException):
        pass

    def kill_after_two(done: int, total: int) -> None:
        seen.append(done / total)
        if len(seen) == 2:
            raise Killed

    seen = []
    with pytest.raises(Killed):
        linear_access.embedding_interference(weight, 4, tile=20, folder=tmp_path, progress=kill_after_two)
    (state,) = tmp_path.iterdir()
    again = []
    found = linear_access.embedding_interference(
        weight, 4, tile=20, folder=tmp_path, progress=lambda done, total: again.append(done / total)
    )
    assert len(seen) == 2
    assert len(again) == 3
    assert again[-1] == 1.0
    np.testing.assert_allclose(found.positive, expected.positive, atol=1e-6)
    np.testing.assert_allclose(found.negative, expected.negative, atol=1e-6)
    # a finished state is read back without any work; another matrix or variant has a state of its own
    monkeypatch.setattr(linear_access._State, "add", None)
    linear_access.embedding_interference(weight, 4, tile=20, folder=tmp_path)
    with pytest.raises(TypeError):
        linear_access.embedding_interference(weight, 4, tile=20, folder=tmp_path, centre=True)
    whole = dict(np.load(state))
    for damage in (
        {"done": 91},
        {"done": -1},
        {"positive": whole["positive"][:, ::-1]},
        {"negative": np.nan * whole["negative"]},
    ):
        np.savez(state, **(whole | damage))
        with pytest.raises(RepcapError, match="holds no state of this computation"):
            linear_access.embedding_interference(weight, 4, tile=20, folder=tmp_path)
    state.write_bytes(b"PK damaged")
    with pytest.raises(RepcapError, match=r"cannot be read .* delete it to start afresh"):
        linear_access.embedding_interference(weight, 4, tile=20, folder=tmp_path)


def test_a_deeper_finished_state_serves(tmp_path, monkeypatch):
    weight = torch.randn(50, 6, generator=torch.Generator().manual_seed(3))
    expected = linear_access.embedding_interference(weight, 4, tile=20)
    tiles, add = [], linear_access._State.add
    monkeypatch.setattr(linear_access._State, "add", lambda *arguments: tiles.append(1) or add(*arguments))

    def tiles_computed(k_max: int, **options) -> int:
        before = len(tiles)
        found = linear_access.embedding_interference(weight, k_max, tile=20, folder=tmp_path, **options)
        np.testing.assert_array_equal(found.up_to(4).positive, expected.positive)
        np.testing.assert_array_equal(found.up_to(4).negative, expected.negative)
        assert found.depth == min(k_max, len(weight))
        return len(tiles) - before

    # of the upper triangle of 3 x 3 tiles, those beside the diagonal serve twice
    assert tiles_computed(8) == 9
    assert tiles_computed(4) == 0
    assert tiles_computed(8) == 0
    assert tiles_computed(60) == 9  # every one of the 50 rows
    assert tiles_computed(55) == 0
    (deep,) = tmp_path.glob("*-60.npz")
    (served,) = tmp_path.glob("*-8.npz")
    served.unlink()
    assert tiles_computed(4) == 0
    # one that is not finished does not
    np.savez(deep, **(dict(np.load(deep)) | {"done": 20}))
    assert tiles_computed(4) == 9
    assert {path.name.split("-")[1] for path in tmp_path.iterdir()} == {"4.npz", "60.npz"}


def test_usable_sparsity_is_the_last_k_below_the_error():
    found = linear_access.interference(codes.kerdock(16), k_max=8)
    # Kerdock lines have E_k = k / sqrt(d) exactly
    for k in range(1, 9):
        assert found.errors(k) == pytest.approx(np.full(144, k / 4), abs=1e-12)
    assert (found.usable_sparsity(0.5) == 1).all()
    assert (found.usable_sparsity(0.51) == 2).all()
    assert (found.usable_sparsity(0.25) == 0).all()
    assert (found.usable_sparsity(9.0) == 8).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_access.interference(np.ones((3, 2)), np.ones((4, 2))), "differ in shape"),
        (lambda: linear_access.interference(np.ones((3, 2)), np.ones((3, 4))), "differ in shape"),
        (
            lambda: linear_access.interference(np.eye(3)[[0, 1, 1]] * [[1], [0], [0]]),
            r"2 of the features are zero .*row 1",
        ),
        (lambda: linear_access.interference(np.eye(2), np.zeros((2, 2))), "2 of the probes are zero"),
        (lambda: linear_access.interference(np.array([[1.0, np.nan], [1, 1]])), "row 0 of weight holds a NaN"),
        (lambda: linear_access.interference(np.eye(2), k_max=0), "k_max = 0"),
        (lambda: linear_access.interference(np.eye(3)).errors(4), "no more than the m = 3 features"),
        (lambda: linear_access.interference(np.eye(3)).errors(0), "k = 0: give a whole number from 1 on"),
        (lambda: linear_access.interference(np.eye(3)).margins(1.5), "k = 1.5: give a whole number"),
        (lambda: linear_access.interference(1e200 * np.ones((3, 2))), "overflow; rescale"),
        (lambda: linear_access.interference(np.float32(1e30) * np.ones((3, 2), np.float32)), "overflow; rescale"),
        (lambda: linear_access.interference(np.eye(3), k_max=2).margins(3), "raise k_max"),
        (lambda: linear_access.interference(np.eye(3)).errors(1, "complex"), "unknown inputs 'complex'"),
        (lambda: linear_access.interference(np.eye(3)).usable_sparsity(0.0), "must be positive"),
        (lambda: linear_access.interference(np.eye(3)).usable_sparsity(math.inf), "error = inf"),
        (lambda: linear_access.embedding_interference(np.eye(1)), "1 rows with a direction"),
        (lambda: linear_access.embedding_interference(np.eye(3), tile=0), "tile is 0"),
        (lambda: linear_access.best_probes(np.eye(3), 4), "k = 4"),
        (lambda: linear_access.best_probes(np.eye(3), math.nan), "k = nan"),
        (lambda: linear_access.best_probes(np.eye(3), 1, [3]), "row = 3: give a whole number from 0 to 2"),
        (lambda: linear_access.best_probes(np.eye(3), 1, [1.7]), "row = 1.7"),
        (lambda: linear_access.best_probes(np.eye(3), 1, max_workers=0), "max_workers = 0"),
        (lambda: linear_access.best_probes(np.zeros((2, 2)), 1), "2 of the features are zero"),
        (lambda: linear_access.sufficient_dimension(10, 11, 0.5), "k = 11"),
        (lambda: linear_access.sufficient_dimension(10, 2, 1.5), "error = 1.5"),
        (lambda: linear_access.necessary_dimension(10, 0, 0.5), "k = 0"),
        (lambda: linear_access.necessary_dimension(10, 1, 0.0), "error = 0"),
        (lambda: linear_access.necessary_dimension(10, 1, math.inf), "error = inf"),
        (lambda: linear_access.sufficient_dimension(math.nan, 2, 0.5), "m = nan"),
        (lambda: linear_access.sufficient_dimension(10.5, 2, 0.5), "m = 10.5"),
        (lambda: linear_access.sufficient_dimension(10, 2, 1e-200), "beyond the range"),
        (lambda: linear_access.average_dimension(10**400, 2, 0.5), r"from 1 to 1e\+300"),
        (lambda: linear_access.average_dimension_of_pairs(1, 0.5), "k = 2"),
        (lambda: linear_access.average_dimension_of_pairs(10, 1.0), "error"),
        (lambda: linear_access.normal_maximum(0), "m = 0"),
        (lambda: linear_access.guaranteed_sparsity(0.0, 0.5), "both must be positive"),
        (lambda: linear_access.guaranteed_sparsity(math.inf, 1.0), "both must be positive"),
        (lambda: linear_access.guaranteed_sparsity(1e-320, 1.0), "both must be positive"),
        (lambda: linear_access.typical_sparsity(0.1, 0, 0.5), "m = 0"),
        (lambda: linear_access.typical_sparsity(math.inf, 10, 0.5), "both must be positive"),
        (lambda: linear_access.shared_directions(np.eye(2), 0.5), "two shared rows"),
        (lambda: linear_access.shared_directions(np.eye(4), 0.0), "alignment = 0"),
        (lambda: linear_access.shared_directions(np.full((4, 4), np.nan), 0.5), "finite numbers"),
        (lambda: linear_access.detached(np.ones(3), 0.5), r"shape \(3,\)"),
        (lambda: linear_access.shared_directions_coherence(0, 0.5, 0.5), "k = 0"),
        (lambda: linear_access.shared_directions_coherence(2.5, 0.5, 0.5), "k = 2.5"),
        (lambda: linear_access.equal_cosines(1.5, 0.3), "m = 1.5"),
        (lambda: linear_access.equal_cosines(3, 1.0), "cosine = 1"),
        (lambda: linear_access.least_alignment(0.5, 0.5), "norm be sqrt"),
        (lambda: linear_access.least_alignment(0.1, -1.0), "norm be sqrt"),
        (lambda: linear_access.least_alignment(0.1, math.inf), "norm be sqrt"),
        (lambda: linear_access.sharp_largest_cosine(0.6, 1.0), "holds up to 1/2"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(RepcapError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


# --- probes -----------------------------------------------------------------------------------------------------------


def unit_rows(m: int, d: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(m, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 2, 5, 30])
def test_best_probes_carry_a_certificate(k):
    features = unit_rows(30, 12, 0)
    found = linear_access.best_probes(features, k, [0, 17, 29])
    assert [best.row for best in found] == [0, 17, 29]
    plain = linear_access.interference(features, k_max=k).errors(k)
    for best in found:
        assert features[best.row] @ best.vector == pytest.approx(1.0, abs=1e-12)
        assert best.error == pytest.approx(best.bound, abs=linear_access.DUALITY_GAP)
        # the certificate, recomputed: any probe b with <a_i, b> = 1 has T_k >= bound by these coefficients
        np.testing.assert_allclose(best.combination @ features, best.bound * features[best.row], atol=1e-9)
        assert best.combination[best.row] == 0
        assert np.abs(best.combination).max() <= 1 + 1e-9
        assert np.abs(best.combination).sum() <= k + 1e-9
        assert 0 < best.error < plain[best.row]


def test_workers_give_the_same_probes():
    features = unit_rows(12, 6, 1)
    here, there = (linear_access.best_probes(features, 2, max_workers=workers) for workers in (1, 2))
    assert [best.row for best in there] == list(range(12))
    np.testing.assert_array_equal([best.vector for best in here], [best.vector for best in there])


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_the_unit_of_the_features_does_not_matter(scale):
    features = unit_rows(15, 6, 1)
    (plain,), (scaled,) = (linear_access.best_probes(unit * features, 2, [4]) for unit in (1.0, scale))
    assert scaled.error == pytest.approx(plain.error, abs=1e-9)
    np.testing.assert_allclose(scaled.vector * scale, plain.vector, atol=1e-7)


def test_a_feature_that_vanishes_beside_the_others_is_named():
    with pytest.raises(RepcapError, match=r"no best probe for row 2 at k = 1: .*[Ii]nfeasible"):
        linear_access.best_probes(np.diag([1.0, 1.0, 1e-12]), 1)


@pytest.mark.parametrize(("status", "reason"), [(2, "infeasible"), (3, "unbounded"), (1, "limit\nreached")])
def test_a_program_without_an_optimum_names_its_row(monkeypatch, status, reason):
    result = optimize.OptimizeResult(success=False, status=status, message=f"The problem is {reason}.", x=None)
    monkeypatch.setattr(linear_access.optimize, "linprog", lambda **_: result)
    with pytest.raises(RepcapError, match=f"no best probe for row 3 at k = 2: The problem is {reason.split()[0]}"):
        linear_access.best_probes(unit_rows(6, 3, 0), 2, [3])


def test_a_duality_gap_is_refused(monkeypatch):
    solve = optimize.linprog

    def perturbed(**arguments):
        result = solve(**arguments)
        result.eqlin.marginals[0] *= 1 + 1e-6
        return result

    monkeypatch.setattr(linear_access.optimize, "linprog", perturbed)
    with pytest.raises(RepcapError, match=r"row 1 at k = 1: primal .* do not meet"):
        linear_access.best_probes(unit_rows(6, 3, 0), 1, [1])


@pytest.mark.parametrize(("m", "d"), [(60, 40), (10, 25)])
def test_least_squares_probes(m, d):
    features = unit_rows(m, d, 2)
    probes = linear_access.least_squares_probes(features)
    np.testing.assert_allclose((features * probes).sum(axis=1), 1.0, atol=1e-12)
    plain, better = (linear_access.interference(features, b) for b in (features, probes))
    assert np.square(better.positive).sum() < np.square(plain.positive).sum()
    if m <= d:  # independent features are read without error
        assert better.worst_case(m).error < 1e-12
    tight = codes.kerdock(16)
    np.testing.assert_allclose(linear_access.least_squares_probes(tight), tight, atol=1e-12)


def test_least_squares_is_least_in_squares():
    features = unit_rows(20, 8, 3)
    probe = linear_access.least_squares_probes(features)[5]
    others = np.delete(features, 5, axis=0)
    step = np.random.default_rng(0).normal(size=(40, 8)) * 1e-2
    step -= np.outer(step @ features[5], features[5])
    assert (np.square((probe + step) @ others.T).sum(axis=1) > np.square(probe @ others.T).sum()).all()


def test_probes_get_better_in_the_order_of_the_reference():
    """Theory: 40 random dimensions, 60 features, k = 1, 25 rows: 0.404, 0.245, 0.134, up to the draw."""
    features = unit_rows(60, 40, 0)
    rows = range(25)
    plain, squares = (
        linear_access.interference(features, b).errors(1)[:25].mean()
        for b in (features, linear_access.least_squares_probes(features))
    )
    best = np.mean([probe.error for probe in linear_access.best_probes(features, 1, rows)])
    assert (plain, squares, best) == pytest.approx((0.404, 0.245, 0.134), rel=0.08)


# --- dimensions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [linear_access.sufficient_dimension, linear_access.sufficient_dimension_by_supports])
def test_sufficient_dimension_suffices(rule):
    m, k, error = 60, 2, 0.9
    d = rule(m, k, error)
    assert linear_access.necessary_dimension(m, k, error) <= d <= math.ceil(2 * (k / error) ** 2 * math.log(4 * m**2))
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(20):
        features = generator.choice([-1.0, 1.0], size=(m, d)) / math.sqrt(d)
        held += linear_access.interference(features, k_max=k).worst_case(k).error < error
    assert held >= 10
    assert linear_access.average_sufficient_dimension(m, k, error) < d


def test_supports_need_less_than_pairs_for_many_active_features():
    pairs, supports = (
        np.array([rule(4096, k, 0.5) for k in (2, 4, 8, 16)])
        for rule in (linear_access.sufficient_dimension, linear_access.sufficient_dimension_by_supports)
    )
    assert (supports < pairs).all()
    assert (np.diff(np.log2(supports)) < 2).all()
    assert np.diff(np.log2(pairs)) == pytest.approx(2, abs=1e-3)


def test_average_dimension_by_its_reference_value():
    assert linear_access.average_dimension(1000, 1, 0.5) == pytest.approx(46.0, abs=0.05)
    assert linear_access.average_dimension(1000, 7, 0.5) == pytest.approx(
        7 * linear_access.average_dimension(1000, 1, 0.5)
    )


def test_average_dimension_of_pairs_against_its_law_drawn():
    m, error = 1000, 0.5
    d = linear_access.average_dimension_of_pairs(m, error)
    assert 80 < d < linear_access.average_dimension(m, 2, error)
    # cosines of independent unit vectors, not of features: an active pair and what the others read of its sum
    generator = np.random.default_rng(0)
    size = round(d)
    pairs = generator.standard_normal((4000, 2, size))
    pairs /= np.linalg.norm(pairs, axis=2, keepdims=True)
    t, length = (pairs[:, 0] * pairs[:, 1]).sum(axis=1), np.linalg.norm(pairs.sum(axis=1), axis=1)
    reach = special.betainc(0.5, (size - 1) / 2, np.minimum(1, (error / length) ** 2))
    success = (np.abs(t) < error) * reach ** (m - 2)
    assert success.mean() == pytest.approx(0.5, abs=4 * success.std() / math.sqrt(len(success)) + 0.02)


@pytest.mark.parametrize("error", [0.01, 0.5, 0.9])
def test_average_dimension_of_pairs_where_two_features_are_all(error):
    d = linear_access.average_dimension_of_pairs(2, error)
    reach = special.betainc(0.5, (d - 1) / 2, error**2)  # of a cosine of random directions
    assert reach == pytest.approx(0.5, abs=1e-9) if d > 2 else reach > 0.5


@pytest.mark.parametrize("m", [50, 10**6, 10**12])
def test_average_dimension_of_pairs_approaches_the_normal_law_of_the_others(m):
    exact = linear_access.average_dimension_of_pairs(m, 0.01)
    assert exact == pytest.approx(linear_access.average_dimension(m - 2, 2, 0.01), rel=0.005)


def test_an_average_dimension_is_for_one_input_and_not_for_the_signs_that_suit_a_dictionary():
    m, k, error = 1000, 32, 0.5
    d = linear_access.average_sufficient_dimension(m, k, error)
    assert d == 2124
    generator = np.random.default_rng(0)
    z = np.zeros(m, dtype=np.float32)
    z[:k] = generator.choice([-1, 1], k)
    fixed = chosen = 0
    for _ in range(12):
        features = generator.choice(np.float32([-1, 1]), (m, d)) / np.float32(math.sqrt(d))
        fixed += np.abs(features @ (z @ features) - z).max() < error
        onto = features @ features[:k].T
        onto[np.arange(k), np.arange(k)] = 0
        chosen += np.abs(onto).sum(axis=1).max() < error
    assert fixed >= 6
    assert chosen == 0


@pytest.mark.parametrize("m", [1, 2, 10**16, 10**30])
def test_normal_maximum_at_both_ends(m):
    found = linear_access.normal_maximum(m)
    assert m > 1 or found == pytest.approx(0.6744897502, abs=1e-9)
    assert math.exp(m * math.log1p(-math.erfc(found / math.sqrt(2)))) == pytest.approx(0.5, abs=1e-9)


def test_numpy_integers_do_not_overflow():
    for rule in (linear_access.sufficient_dimension, linear_access.average_sufficient_dimension):
        assert rule(np.int64(5 * 10**9), np.int32(2), 0.5) == rule(5 * 10**9, 2, 0.5)
        assert rule(np.int32(100000), 2, 0.5) == rule(100000, 2, 0.5)


def test_normal_maximum_is_the_median():
    draws = np.abs(np.random.default_rng(0).normal(size=(4000, 100))).max(axis=1)
    assert np.median(draws) == pytest.approx(linear_access.normal_maximum(100), abs=0.03)


def test_kerdock_is_optimal_to_one_dimension():
    assert linear_access.necessary_dimension(8392704, 31, 31 / 64) == 4095
    for d in (16, 64):
        lines = d * (d // 2 + 1)
        k = int(math.sqrt(d)) - 1
        assert linear_access.necessary_dimension(lines, k, k / math.sqrt(d)) >= d - 1


@pytest.mark.parametrize("seed", range(4))
def test_nothing_beats_the_necessary_dimension(seed):
    generator = np.random.default_rng(seed)
    for m, d in [(12, 3), (40, 8), (200, 10)]:
        features = generator.normal(size=(m, d))
        probes = linear_access.least_squares_probes(features)
        found = linear_access.interference(features, probes)
        for k in range(1, min(m, 9)):
            assert linear_access.necessary_dimension(m, k, found.worst_case(k).error) <= d


@pytest.mark.parametrize(
    ("m", "k", "error", "powers"),
    [
        (100, 3, 0.3, 40),
        (5000, 4, 0.9, 40),
        (10**6, 8, 0.4, 40),
        (7, 7, 1e-6, 40),
        (9, 2, 3.0, 40),
        (300, 2, 1.99, 400),
        (10**6, 1, 0.97, 2000),
        (10**6, 1, 0.99, 8000),
        (10**6, 1, 0.999, 8000),
    ],
)
def test_necessary_dimension_is_the_largest_over_all_powers(m, k, error, powers):
    found = linear_access.necessary_dimension(m, k, error)

    def admits(d: int, p: int) -> bool:
        spread = max(error ** (2 * p), (m - 1) * (error / k) ** (2 * p))
        return math.comb(d + p - 1, p) >= m / (1 + spread) * (1 - 1e-11)

    assert all(admits(found, p) for p in range(1, powers))
    assert found == 1 or not all(admits(found - 1, p) for p in range(1, powers))


def test_necessary_dimension_reaches_where_few_powers_are_tried():
    # two lines at least, however near to 1 the error of 10^6 features is
    assert linear_access.necessary_dimension(10**6, 1, 1 - 1e-12) == 2


def test_probes_of_any_gain_need_less_than_those_of_unit_gain():
    """Lines in a plane read by probes of half their length: the bound for unit gain does not cover them."""
    angles = np.arange(100) * math.pi / 100
    lines = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    error = linear_access.interference(lines, 0.501 * lines).worst_case(1).error
    assert error < 0.502
    assert linear_access.necessary_dimension(100, 1, error) > 2
    assert linear_access.necessary_dimension(100, 1, error / (1 - error)) <= 2
    generator = np.random.default_rng(0)
    for m, d in [(40, 20), (200, 120)]:
        features = generator.normal(size=(m, d))
        probes = linear_access.least_squares_probes(features) * generator.uniform(0.7, 1.1, (m, 1))
        found = linear_access.interference(features, probes)
        for k in (1, 2):
            error = found.worst_case(k).error
            assert error >= 1 or linear_access.necessary_dimension(m, k, error / (1 - error)) <= d


def test_sparsities_of_a_coherence():
    assert linear_access.guaranteed_sparsity(0.0645, 0.5) == 7
    assert linear_access.guaranteed_sparsity(0.25, 0.5) == 1
    assert linear_access.guaranteed_sparsity(0.6, 0.5) == 0
    k = linear_access.typical_sparsity(1 / math.sqrt(460), 1000, 0.5)
    assert linear_access.average_dimension(1000, 1, 0.5) * k == pytest.approx(460)


# --- alignment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [0.05, 0.3, 1.0])
def test_detached_probes_change_nothing_but_the_alignment(alignment):
    directions = unit_rows(30, 20, 4)
    features, probes = linear_access.detached(directions, alignment)
    np.testing.assert_allclose(probes @ features.T, directions @ directions.T, atol=1e-14)
    cosines = (features * probes).sum(axis=1) / np.linalg.norm(features, axis=1) / np.linalg.norm(probes, axis=1)
    np.testing.assert_allclose(cosines, alignment, atol=1e-12)


@pytest.mark.parametrize(("k", "error", "alignment"), [(3, 0.5, 0.2), (5, 0.3, 0.5), (1, 0.9, 0.9)])
def test_shared_directions_interfere_as_corrected_and_not_as_printed(k, error, alignment):
    corrected = linear_access.shared_directions_coherence(k, error, alignment)
    scale = math.sqrt(1 / alignment - 1)
    printed = error / (k * (1 + scale**2))
    totals = []
    for coherence in (corrected, printed):
        features, probes = linear_access.shared_directions(linear_access.equal_cosines(k + 3, coherence), alignment)
        found = linear_access.interference(features, probes)
        totals.append((found.positive[:, :k].sum(axis=1) + found.negative[:, :k].sum(axis=1)).max())
    # all cosines equal: the bound of the corrected scale is attained, and the printed one fails by the mixed terms
    assert totals[0] == pytest.approx(error, rel=1e-12)
    assert totals[1] == pytest.approx(error * (1 + scale) ** 2 / (1 + scale**2), rel=1e-12)


def test_equal_cosines():
    vectors = linear_access.equal_cosines(6, 0.3)
    np.testing.assert_allclose(vectors @ vectors.T, 0.7 * np.eye(6) + 0.3, atol=1e-14)


@pytest.mark.parametrize(("error", "norm"), [(0.1, 1.0), (0.3, 1.2), (0.45, 0.9)])
def test_no_pair_beats_the_bounds_on_its_cosines(error, norm):
    """A search for two features with a large cosine: it comes up to the sharp value and not beyond."""
    sharp = linear_access.sharp_largest_cosine(error, norm)
    assert sharp <= linear_access.largest_cosine(error, norm)

    def unpack(x):
        return x.reshape(4, 2)  # a_1, a_2, b_1, b_2 in a plane: parts outside it are of no use

    def slack(x):
        a, b = unpack(x)[:2], unpack(x)[2:]
        matrix = b @ a.T
        lengths = norm**2 - np.square(unpack(x)).sum(axis=1)
        return np.concatenate([np.diag(matrix) - 1 + error, error - matrix[[0, 1], [1, 0]], lengths])

    def minus_cosine(x):
        a = unpack(x)[:2]
        return -(a[0] @ a[1]) / np.linalg.norm(a[0]) / np.linalg.norm(a[1])

    generator, best = np.random.default_rng(0), 0.0
    for _ in range(8):
        start = (np.tile([[1.0, 0.0], [0.6, 0.8]], (2, 1)) + 0.2 * generator.normal(size=(4, 2))).ravel()
        found = optimize.minimize(minus_cosine, start, constraints={"type": "ineq", "fun": slack}, method="SLSQP")
        if slack(found.x).min() > -1e-9:
            a, b = unpack(found.x)[:2], unpack(found.x)[2:]
            cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            assert cosines.min() >= linear_access.least_alignment(error, norm) - 1e-8
            best = max(best, -found.fun)
    assert best <= sharp + 1e-7
    assert best >= sharp - 1e-3


def test_the_printed_bound_on_cosines_fails_where_norms_are_small():
    error = 0.2
    norm = math.sqrt(1 - error)
    features = norm * linear_access.equal_cosines(2, error / (1 - error))
    matrix = features @ features.T
    assert np.diag(matrix) == pytest.approx(1 - error)
    assert matrix[0, 1] == pytest.approx(error)
    cosine = matrix[0, 1] / norm**2
    printed = error * norm**2 / (1 - error) + math.sqrt(1 - linear_access.least_alignment(error, norm) ** 2)
    assert printed < cosine - 0.04
    assert linear_access.largest_cosine(error, norm) == pytest.approx(cosine)
    assert linear_access.sharp_largest_cosine(error, norm) == pytest.approx(cosine)


# --- data -------------------------------------------------------------------------------------------------------------


def test_what_is_kept_of_an_embedding_holds_each_variant(tmp_path, monkeypatch):
    weight = torch.randn(60, 24, generator=torch.Generator().manual_seed(0)) + 1.0
    embedding = embeddings.Embedding(weight, [f"t{i}" for i in range(60)], None, True, "toy", 24, "float32", {})
    monkeypatch.setattr(linear_access, "STORE", tmp_path / "linear_access.csv")
    monkeypatch.setattr(linear_access, "TOKENS", tmp_path / "tokens.csv")
    for centre, components in ((False, 0), (True, 0), (True, 2)):
        found = linear_access.embedding_interference(weight, 20, centre=centre, components=components)
        linear_access.keep(embedding, found, centre=centre, components=components)
    table = stores.read(linear_access.STORE)
    assert len(table) == 3 * 2 * 16
    found = linear_access.embedding_interference(weight, centre=True)
    row = table[(table.centred == "yes") & (table.components == 0) & (table.inputs == "signed") & (table.k == 4)]
    assert row.error.item() == pytest.approx(found.worst_case(4).error, abs=1e-6)
    assert row["median"].item() == pytest.approx(np.median(found.errors(4)), abs=1e-6)
    worst = stores.read(linear_access.TOKENS).set_index(["centred", "components", "k", "rank"])
    assert worst.loc[("yes", 0, 4, 1), "token"] == f"t{found.worst_case(4).row}"
    assert (worst.groupby(["centred", "components", "k"]).error.diff().dropna() <= 0).all()
