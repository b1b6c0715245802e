"""Decoders on inputs that they must and must not recover, trials against theory, and the dimension of half success."""

import math

import numpy as np
import pytest

from repcap_utils import linear_access, sparse_recovery
from repcap_utils.errors import RepcapError
from repcap_utils.sparse_recovery import BASIS, DECODERS, DICTIONARIES, LINEAR, MATCHING, NORMAL, SIGNS, UNIT


def unit_rows(m: int, d: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(m, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "decode", [lambda a, x: sparse_recovery.matching_pursuit(a, x, 3), sparse_recovery.basis_pursuit]
)
def test_decoders_recover_a_sparse_vector_exactly(decode):
    features = unit_rows(60, 40, 0)
    z = np.zeros(60)
    z[[3, 20, 51]] = (1.0, -1.0, 0.4)
    found = decode(features, z @ features)
    assert found.converged
    np.testing.assert_allclose(found.z, z, atol=1e-8)


def test_linear_probes_read_orthogonal_features_alone():
    z = np.array([1.0, 0.0, -1.0, 0.0])
    np.testing.assert_array_equal(sparse_recovery.linear_probes(np.eye(4), z).z, z)
    features = unit_rows(40, 10, 1)
    assert np.abs(sparse_recovery.linear_probes(features, features[0]).z - np.eye(40)[0]).max() > 0.2


def test_a_decoder_that_does_not_converge_says_so():
    # three features in a plane: no third one is independent of two others
    features = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    assert not sparse_recovery.matching_pursuit(features, np.array([0.3, 0.7]), 3).converged
    # x outside the span of the features cannot be written by them
    outside = sparse_recovery.basis_pursuit(np.eye(3)[:2], np.array([0.0, 0.0, 1.0]))
    assert not outside.converged
    assert np.isnan(outside.z).all()


@pytest.mark.parametrize("decoder", DECODERS)
def test_failures_to_converge_are_counted_and_are_no_successes(decoder, monkeypatch):
    failed = sparse_recovery.Decoded(np.zeros(30), False)
    monkeypatch.setattr(sparse_recovery, "_decoded", lambda *_: failed)
    assert sparse_recovery.simulate(decoder, 30, 2, 10, trials=7, seed=0) == (7, 0, 7)


@pytest.mark.parametrize(("decoder", "d"), [(LINEAR, 200), (MATCHING, 20), (BASIS, 20)])
def test_success_comes_with_dimension(decoder, d):
    low, high = (sparse_recovery.simulate(decoder, 100, 3, size, trials=20, seed=0) for size in (d // 4, 2 * d))
    assert low.successes <= 4
    assert high.successes >= 16
    assert low.not_converged == high.not_converged == 0
    assert high == sparse_recovery.simulate(decoder, 100, 3, 2 * d, trials=20, seed=0)


@pytest.mark.parametrize("dictionary", DICTIONARIES)
def test_dictionaries_are_what_they_are_called(dictionary):
    rows = sparse_recovery._features(dictionary, 400, 100, np.random.default_rng(0))
    lengths = np.linalg.norm(rows, axis=1)
    assert rows.var() == pytest.approx(1 / 100, rel=0.02)
    assert lengths.std() == pytest.approx(math.sqrt(1 / 200) if dictionary == NORMAL else 0, abs=0.01)
    assert (len(np.unique(rows)) == 2) == (dictionary == SIGNS)


def test_linear_probes_succeed_half_the_time_where_theory_says():
    d = round(linear_access.average_dimension(300, 4, sparse_recovery.ERROR))
    found = sparse_recovery.simulate(LINEAR, 300, 4, d, trials=200, seed=1)
    assert 70 <= found.successes <= 130


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparse_recovery.simulate("lasso", 10, 2, 5, trials=1, seed=0), "unknown decoder 'lasso'"),
        (
            lambda: sparse_recovery.simulate(LINEAR, 10, 2, 5, trials=1, seed=0, dictionary="codes"),
            "unknown dictionary 'codes'; there are unit normal, normal, signs",
        ),
        (
            lambda: sparse_recovery.simulate(LINEAR, 10, 11, 5, trials=1, seed=0),
            "k = 11: give a whole number from 1 to 10",
        ),
        (lambda: sparse_recovery.simulate(LINEAR, 10, 0, 5, trials=1, seed=0), "k = 0"),
        (lambda: sparse_recovery.simulate(LINEAR, 10, 2, 0, trials=1, seed=0), "d = 0"),
        (lambda: sparse_recovery.simulate(LINEAR, 10, 2, 5, trials=1, seed=-1), "seed = -1"),
        (lambda: sparse_recovery.matching_pursuit(np.eye(10), np.ones(10), 0), "k = 0"),
        (lambda: sparse_recovery.matching_pursuit(np.eye(10), np.ones(10), 11), "k = 11"),
        (lambda: sparse_recovery.matching_pursuit(np.eye(10), np.ones(10), 2.5), "k = 2.5"),
        (lambda: sparse_recovery.half_dimension([], [], []), "not empty"),
        (lambda: sparse_recovery.half_dimension([10, 20], [0, 5], [10]), "of one length"),
        (lambda: sparse_recovery.half_dimension([0, 20], [0, 10], [10, 10]), "positive dimensions"),
        (lambda: sparse_recovery.half_dimension([10, 20], [0, 11], [10, 10]), "between 0 and the number"),
        (lambda: sparse_recovery.half_dimension([10, 20], [0, 10], [10, 10]), "make trials at dimensions between"),
        (lambda: sparse_recovery.half_dimension([10, 20], [9, 10], [10, 10]), "do not rise with d"),
        (lambda: sparse_recovery.half_dimension([10, 20], [10, 1], [10, 10]), "do not rise with d"),
        (lambda: sparse_recovery.half_dimension([10, 20], [0, 0], [10, 10]), "do not rise with d"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(RepcapError, match=message):
        call()


def test_half_dimension_finds_a_known_one_and_its_interval_covers_it():
    generator = np.random.default_rng(0)
    d, truth, covered = np.array([60, 80, 100, 125, 160]), 105.0, 0
    share = 1 / (1 + (d / truth) ** -6.0)
    for _ in range(200):
        found = sparse_recovery.half_dimension(d, generator.binomial(50, share), np.full(5, 50))
        covered += found.low <= truth <= found.high
    assert 180 <= covered <= 199
    exact = sparse_recovery.half_dimension(d, 1e6 * share, np.full(5, 1e6))
    assert exact.d == pytest.approx(truth, rel=1e-4)


def test_a_store_is_completed_and_not_repeated(tmp_path, monkeypatch):
    cell = {"decoder": LINEAR, "dictionary": UNIT, "m": 50, "k": 2, "seed": 0, "trials": 10}
    wanted = [cell | {"d": d} for d in (20, 60, 120)]
    store = tmp_path / "sparse_recovery.csv"
    sparse_recovery.run(wanted[:2], store)
    asked = []
    simulate = sparse_recovery.simulate
    monkeypatch.setattr(sparse_recovery, "simulate", lambda **cell: asked.append(cell["d"]) or simulate(**cell))
    table = sparse_recovery.run(wanted, store)
    assert asked == [120]
    assert table.d.tolist() == [20, 60, 120]
    assert table.successes.tolist() == [simulate(**cell).successes for cell in wanted]


def test_the_committed_trials_are_those_of_the_study():
    table = sparse_recovery.read()
    key = ["decoder", "dictionary", "m", "k", "d", "seed", "trials"]
    stored = {tuple(row) for row in table[key].itertuples(index=False)}
    assert {tuple(cell[name] for name in key) for cell in sparse_recovery.cells()} == stored
    everything = sparse_recovery.half_dimensions(table)
    middle = everything[everything.dictionary == UNIT].set_index(["decoder", "k"])
    linear, pursuit = middle.loc[LINEAR], middle.loc[MATCHING]
    assert list(pursuit.index) == list(linear.index) == list(range(2, 33))
    assert (pursuit.high < linear.low).all()
    assert (middle.low < middle.d).all()
    assert (middle.d < middle.high).all()
