import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from repcap_utils import bounds, packing, paths
from repcap_utils.errors import RepcapError
from repcap_utils.kernels import torch_tiles


def brute_force_coherence(vectors: torch.Tensor) -> float:
    gram = np.abs(vectors.numpy() @ vectors.numpy().T)
    np.fill_diagonal(gram, 0)
    return float(gram.max())


# theory: equiangular lines, orthoplexes, E8
OPTIMAL = [
    (3, 2, 0.5),
    (6, 3, 1 / math.sqrt(5)),
    (7, 3, 1 / math.sqrt(3)),
    (16, 5, 1 / math.sqrt(5)),
    (28, 7, 1 / 3),
    (120, 8, 1 / 2),
]


@pytest.mark.parametrize(("k", "d", "coherence"), OPTIMAL)
def test_known_optima_are_reached(k, d, coherence):
    found = packing.optimise(k, d, steps=1500, restarts=3, dtype=torch.float64).coherence
    assert coherence - 1e-12 <= found < coherence + 1e-6


@pytest.mark.parametrize(
    ("k", "d", "coherence"),
    # best known packings whose maximum is not a minimiser of any p-norm (N. J. A. Sloane's tables; the second is exact)
    [(8, 3, 0.64758898), (8, 4, math.sqrt(2) - 1), (10, 7, math.sqrt(5) - 2), (20, 16, 0.12207423)],
)
def test_polish_ends_at_the_local_optimum(k, d, coherence):
    rough = packing.optimise(k, d, steps=600, restarts=4, dtype=torch.float64)
    fine = packing.polish(rough)
    assert rough.coherence > coherence + 1e-6
    assert coherence - 1e-8 <= fine.coherence < coherence + 1e-8
    assert (fine.seed, fine.history.shape) == (rough.seed, rough.history.shape)


def test_polish_never_makes_worse():
    at_optimum = packing.polish(packing.optimise(7, 3, steps=400, dtype=torch.float64))
    assert packing.polish(at_optimum).coherence <= at_optimum.coherence
    assert (
        packing.polish(packing.optimise(40, 6, steps=5), rounds=1).coherence
        <= packing.optimise(40, 6, steps=5).coherence
    )


def test_what_cannot_be_polished_is_refused():
    with pytest.raises(RepcapError, match="600 x 10 is too large to polish"):
        packing.polish(packing.optimise(600, 10, steps=1))
    with pytest.raises(RepcapError, match="rounds = 0"):
        packing.polish(packing.optimise(6, 3, steps=1), rounds=0)


@pytest.mark.parametrize(("k", "d", "seed"), [(40, 6, 0), (100, 16, 1), (300, 24, 2)])
def test_no_result_lies_below_a_proved_bound(k, d, seed):
    found = packing.optimise(k, d, seed=seed, steps=100).coherence
    assert found >= bounds.welch(k, d)
    assert found >= bounds.levenshtein(k, d) - 1e-12


def test_published_cell_is_beaten():
    # arXiv 2606.02765 reports 0.2363 at (2000, 64)
    assert packing.optimise(2000, 64, seed=0).coherence <= 0.215


@pytest.mark.parametrize(("k", "d"), [(2, 2), (5, 8), (64, 64), (2, 500)])
def test_up_to_d_vectors_are_orthonormal(k, d):
    result = packing.optimise(k, d)
    assert result.coherence < 1e-12
    assert torch.allclose(result.vectors @ result.vectors.T, torch.eye(k, dtype=torch.float64), atol=1e-12)


def test_certificate_is_what_the_vectors_say():
    result = packing.optimise(200, 12, seed=3, steps=60)
    gram = result.vectors @ result.vectors.T
    assert result.vectors.dtype == torch.float64
    assert torch.allclose(gram.diagonal(), torch.ones(200, dtype=torch.float64), atol=1e-14)
    assert result.coherence == pytest.approx(brute_force_coherence(result.vectors), abs=1e-14)
    assert len(result.worst_pairs) == packing.WORST_PAIRS
    assert all(i < j and float(gram[i, j]) == pytest.approx(cosine, abs=1e-14) for i, j, cosine in result.worst_pairs)
    sizes = [abs(cosine) for _, _, cosine in result.worst_pairs]
    every = gram.abs().triu(1).flatten().sort(descending=True).values[: packing.WORST_PAIRS]
    assert sizes == pytest.approx(every.tolist(), abs=1e-14)
    assert result.welch == bounds.welch(200, 12)
    assert result.levenshtein == bounds.levenshtein(200, 12) > result.welch


def test_worst_pairs_of_several_tiles(monkeypatch):
    vectors = packing.random_unit_vectors(90, 5, seed=0)
    whole = packing.certify(vectors)
    monkeypatch.setattr(packing, "CERTIFICATE_TILE", 7)
    tiled = packing.certify(vectors)
    assert [pair[:2] for pair in tiled.worst_pairs] == [pair[:2] for pair in whole.worst_pairs]
    assert [pair[2] for pair in tiled.worst_pairs] == pytest.approx([pair[2] for pair in whole.worst_pairs])


@pytest.mark.parametrize("size", [2, 3, 11, 17, 40])
def test_orthonormal_rows_have_their_worst_pairs_too(size):
    found = packing.certify(torch.eye(size))
    assert found.coherence == 0.0
    assert len(set(found.worst_pairs)) == min(packing.WORST_PAIRS, size * (size - 1) // 2)


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-15, 1e200])
def test_the_length_of_rows_does_not_matter(scale):
    vectors = packing.random_unit_vectors(50, 8, 0)
    scaled = vectors * scale
    assert packing.certify(scaled).coherence == pytest.approx(packing.certify(vectors).coherence, abs=1e-12)
    run, plain = (packing.optimise(50, 8, steps=20, start=start) for start in (scaled, vectors))
    assert run.coherence == pytest.approx(plain.coherence, abs=1e-6)
    assert run.history[0, 2] == pytest.approx(packing.certify(vectors).coherence, abs=1e-4)


def test_equal_rows_of_a_start_part():
    start = packing.random_unit_vectors(50, 8, 0)
    start[1], start[2] = start[0], -start[0]
    assert packing.optimise(50, 8, steps=300, start=start).coherence < 0.8


@pytest.mark.parametrize(("k", "d"), [(17, 16), (33, 32)])
def test_a_simplex_is_nearly_reached(k, d):
    assert packing.optimise(k, d, steps=600).coherence < 1.1 * bounds.welch(k, d)


def test_a_pair_is_its_only_pair():
    assert packing.certify(torch.tensor([[1.0, 0.0], [-3.0, 4.0]])).worst_pairs == ((0, 1, pytest.approx(-0.6)),)


def test_certificate_leaves_the_vectors_alone():
    vectors = torch.full((3, 2), 2.0, dtype=torch.float64)
    packing.certify(vectors)
    assert torch.equal(vectors, torch.full((3, 2), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_row_without_direction_is_named(bad):
    vectors = packing.random_unit_vectors(5, 3, seed=0)
    vectors[3] = bad
    with pytest.raises(RepcapError, match="row 3 is zero or not finite"):
        packing.certify(vectors)
    with pytest.raises(RepcapError, match="start: row 3 is zero or not finite"):
        packing.optimise(5, 3, start=vectors)


def test_best_iterate_is_kept_and_the_exponent_rises():
    result = packing.optimise(300, 16, seed=0, steps=80)
    assert result.coherence == pytest.approx(result.history[:, 2].min(), abs=1e-5)
    assert result.history.shape == (81, 4)
    assert np.all(np.diff(result.history[:, 1]) >= 0)
    assert result.history[0, 1] == packing.FIRST_EXPONENT
    assert result.history[-1, 1] == packing.EXPONENT_PER_STEP * 80
    # the smooth maximum lies above the maximum, by at most the number of pairs to the power 1/p
    excess = result.history[:, 3] / result.history[:, 2]
    assert np.all(excess >= 1 - 1e-5)
    assert np.all(excess <= (300 * 299 / 2) ** (1 / result.history[:, 1]))


def test_best_iterate_is_kept_where_the_last_is_worse(monkeypatch):
    step = packing._Adam.step

    def spoil(self, gradient, size):
        step(self, gradient, size)
        if self.count == 20:
            self.vectors[1] = self.vectors[0]

    monkeypatch.setattr(packing._Adam, "step", spoil)
    result = packing.optimise(300, 16, seed=0, steps=20)
    assert result.history[-1, 2] == pytest.approx(1, abs=1e-6)
    assert result.coherence == pytest.approx(result.history[:, 2].min(), abs=1e-5)


def test_a_stalled_run_ends_early():
    stalled = packing.optimise(6, 3, steps=2000, dtype=torch.float64)
    assert len(stalled.history) < 1500
    assert stalled.coherence == pytest.approx(1 / math.sqrt(5), abs=1e-6)
    assert len(packing.optimise(500, 40, steps=100).history) == 101


def test_a_run_that_leaps_takes_smaller_steps():
    # k / d = 3, where the first step size makes a nearly tight frame oscillate at twice the coherence that it can reach
    assert packing.optimise(1200, 400, steps=60).coherence < 0.052
    schedule = packing._Schedule(1200, 400, 60, 0.0, 90)
    before = schedule.step_size
    for coherence in (0.2, 0.1, 0.105, 0.109, 0.2, 0.2, 0.2):
        schedule.advance(coherence, 1e-6)
    assert schedule.largest_step == pytest.approx(
        packing.SHRINKAGE * packing._Schedule(1200, 400, 60, 0.0, 90).largest_step
    )
    assert schedule.step_size < before * packing.SHRINKAGE


def test_restarts_take_the_best_seed():
    alone = [packing.optimise(40, 6, seed=seed, steps=60).coherence for seed in (5, 6, 7)]
    together = packing.optimise(40, 6, seed=5, steps=60, restarts=3)
    assert together.coherence == min(alone)
    assert together.seed == 5 + alone.index(min(alone))


def test_a_warm_start_is_never_worse_and_gets_better():
    start = packing.optimise(300, 16, steps=100)
    warm = packing.optimise(300, 16, steps=100, start=start.vectors)
    assert warm.coherence < start.coherence
    optimum = packing.polish(packing.optimise(16, 5, steps=800, dtype=torch.float64))
    for dtype in (torch.float32, torch.float64):
        kept = packing.optimise(16, 5, steps=50, start=optimum.vectors, dtype=dtype)
        assert kept.coherence <= optimum.coherence


def test_a_warm_start_is_left_alone():
    start = packing.random_unit_vectors(20, 4, seed=0)
    before = start.clone()
    packing.optimise(20, 4, steps=3, start=start, dtype=torch.float64)
    assert torch.equal(start, before)


@pytest.mark.parametrize("guess", [3.0, 1e-3, 1e3])
def test_a_leap_of_the_coherence_neither_overflows_nor_vanishes(guess):
    vectors = packing.random_unit_vectors(12, 5, seed=0).to(torch.float32)
    coherence = brute_force_coherence(vectors)
    gradient, found, _ = engine()._gradient(vectors, 2000, coherence / guess)
    assert found == pytest.approx(coherence)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(("d", "rate"), [(1024, 0.005), (1025, 0.0025)])
def test_published_learning_rate(monkeypatch, d, rate):
    rates = []
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda parameters, lr: rates.append(lr) or adam(parameters, lr=lr))
    packing.optimise_published(3, d, steps=1)
    assert rates == [rate]


def test_seed_decides_the_result():
    first, again, other = (packing.optimise(100, 10, seed=seed, steps=30) for seed in (0, 0, 1))
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.vectors, other.vectors)


@pytest.mark.parametrize("tile", [7, 64, 150, 1000])
def test_tiles_do_not_change_the_result(tile):
    whole = packing.optimise(150, 9, seed=0, steps=20, dtype=torch.float64)
    tiled = packing.optimise(150, 9, seed=0, steps=20, dtype=torch.float64, tile=tile)
    assert tiled.coherence == pytest.approx(whole.coherence, abs=1e-9)


def engine(tile: int = 5) -> packing._Engine:
    return packing._Engine(tile, torch_tiles.gram_power_tile, torch.float64, torch.device("cpu"), "ieee", None)


def test_gradient_is_that_of_the_power_sum():
    vectors = packing.random_unit_vectors(12, 5, seed=0).requires_grad_()
    unit = torch.nn.functional.normalize(vectors, dim=1)
    cosines = unit @ unit.T * (1 - torch.eye(12, dtype=torch.float64))
    scale = float(cosines.detach().abs().max())
    loss = (cosines / scale).pow(8).sum()
    loss.backward()
    # d/dv_i of the sum counts each pair twice and carries the exponent and the scale; the guess must not matter, far or near
    for guess in (scale, 0.9 * scale, 2.0 * scale, 1e-4 * scale):
        gradient, coherence, smooth = engine()._gradient(vectors.detach(), 8, guess)
        assert coherence == pytest.approx(scale)
        assert torch.allclose(gradient * 2 * 8 / scale, vectors.grad, atol=1e-12)
        assert smooth == pytest.approx(scale * float(loss.detach() / 2) ** (1 / 8))


@pytest.mark.parametrize(
    ("k", "d", "reached"), [(500, 128, 0.0915), (500, 256, 0.0482), (400, 307, 0.0305), (500, 475, 0.0175)]
)
def test_few_vectors_a_dimension_do_not_diverge(k, d, reached):
    # a leap of the coherence in one step must not leave its traces in the optimiser's state
    result = packing.optimise(k, d, seed=0, steps=400)
    assert result.coherence < reached
    assert result.history[-1, 2] < reached


def test_published_procedure():
    result = packing.optimise_published(200, 16, seed=0, steps=100)
    assert result.history[0, 2] > result.history[-1, 2]
    assert bounds.welch(200, 16) < result.coherence < 0.75
    assert result.coherence == pytest.approx(brute_force_coherence(result.vectors), abs=1e-14)


@pytest.mark.parametrize(
    ("k", "d", "exponent"),
    [
        (2000, 32, 11),
        (6000, 32, 17),
        (2000, 64, 9),
        (8000, 64, 14),
        (2000, 4096, 4),
        (32000, 3072, 6),
        (32000, 2560, 7),
    ],
)
def test_published_exponent(k, d, exponent):
    assert packing.published_exponent(k, d) == exponent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1, 8), "k = 1"), ((0, 8), "k = 0"), ((8, 0), "d = 0"), ((8, -3), "d = -3")],
)
@pytest.mark.parametrize("procedure", [packing.optimise, packing.optimise_published])
def test_bad_sizes_are_refused(procedure, arguments, message):
    with pytest.raises(RepcapError, match=message):
        procedure(*arguments)


@pytest.mark.parametrize("procedure", [packing.optimise, packing.optimise_published])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((10, 4), {"steps": 0}, "steps = 0: give a whole number from 1 on"),
        ((10.0, 4), {}, "k = 10.0: give a whole number"),
        ((10, 4), {"seed": -1}, "seed = -1"),
        ((10, 4), {"device": "abacus"}, "device 'abacus' cannot be used"),
    ],
)
def test_bad_arguments_are_one_line(procedure, arguments, options, message):
    with pytest.raises(RepcapError, match=message):
        procedure(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restarts": 0}, "restarts = 0"),
        ({"restarts": 1.5}, "restarts = 1.5: give a whole number"),
        ({"tile": 8.0}, "tile = 8.0: give a whole number"),
        ({"start": np.ones((10, 4))}, "start: give a real torch tensor, one vector a row, not ndarray"),
        ({"start": torch.ones(10, 4, dtype=torch.complex64)}, "start: give a real torch tensor"),
        ({"dtype": torch.float16}, "dtype = torch.float16: iterate in torch.float32 or torch.float64"),
        ({"tile": 0}, "tile = 0"),
        ({"precision": "int8"}, "precision = 'int8': choose ieee, tf32, bf16"),
        ({"start": torch.eye(4)}, r"start has shape \(4, 4\); give 10 x 4 vectors"),
        ({"start": torch.ones(10, 4), "restarts": 2}, "either start or restarts"),
    ],
)
def test_bad_runs_are_one_line(options, message):
    with pytest.raises(RepcapError, match=message):
        packing.optimise(10, 4, **options)


def test_too_little_memory_is_said_before_any_work():
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise_published(3_000_000, 64)
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise_published(np.int32(100_000), np.int32(64))
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise(10**9, 10**4)


def test_a_tile_that_does_not_fit_names_one_that_does(monkeypatch):
    state = 6 * 4 * 5000 * 100
    monkeypatch.setattr(packing, "free_memory", lambda device: state + 16 * 300**2)
    with pytest.raises(RepcapError, match=r"tile of 5000 rows need .* a tile of 300 rows would fit"):
        packing.optimise(5000, 100, tile=10_000, steps=1)
    assert packing._tile_rows(5000, 100, torch.float32, torch.device("cpu"), None) == 300
    monkeypatch.setattr(packing, "free_memory", lambda device: state)
    with pytest.raises(RepcapError, match="no tile would fit: choose a smaller k or d"):
        packing.optimise(5000, 100, steps=1)


def test_memory_grows_with_k_d_and_not_with_k_squared():
    k, d = 16_000, 32
    script = (
        "import resource; from repcap_utils import packing; packing.optimise(40, 32, steps=1);"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        f"packing.optimise({k}, {d}, steps=1);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    added = subprocess.run([sys.executable, "-c", script], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(added.stdout) * unit < 4 * k * k / 5
