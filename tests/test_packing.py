import math

import numpy as np
import pytest
import torch

from repcap_utils import bounds, packing
from repcap_utils.errors import RepcapError
from repcap_utils.kernels.gram_power import gram_power_panel


def brute_force_coherence(vectors: torch.Tensor) -> float:
    gram = np.abs(vectors.numpy() @ vectors.numpy().T)
    np.fill_diagonal(gram, 0)
    return float(gram.max())


@pytest.mark.parametrize(
    ("k", "d", "coherence"),
    [
        (3, 2, 0.5),
        (6, 3, 1 / math.sqrt(5)),
        (7, 3, 1 / math.sqrt(3)),
        (16, 5, 1 / math.sqrt(5)),
        (28, 7, 1 / 3),
        (120, 8, 1 / 2),
    ],
)
def test_known_optima_are_reached(k, d, coherence):
    found = packing.optimise(k, d, seed=0, steps=600).coherence
    assert coherence - 1e-9 <= found < coherence + 1e-5


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
    i, j = result.worst_pair
    assert result.vectors.dtype == torch.float64
    assert torch.allclose(result.vectors.norm(dim=1), torch.ones(200, dtype=torch.float64), atol=1e-14)
    assert result.coherence == pytest.approx(brute_force_coherence(result.vectors), abs=1e-14)
    assert i < j
    assert abs(float(result.vectors[i] @ result.vectors[j])) == pytest.approx(result.coherence, abs=1e-14)


def test_best_iterate_is_kept():
    result = packing.optimise(300, 16, seed=0, steps=80)
    assert result.coherence == pytest.approx(result.history[:, 2].min(), abs=1e-5)
    assert result.history.shape == (81, 3)
    assert np.all(np.diff(result.history[:, 1]) >= 0)
    assert result.history[0, 1] == packing.FIRST_EXPONENT
    assert result.history[-1, 1] == packing.LAST_EXPONENT


def test_best_iterate_is_kept_where_the_last_is_worse(monkeypatch):
    step = packing._adam_step

    def spoil(vectors, gradient, first, second, count, rate):
        step(vectors, gradient, first, second, count, rate)
        if count == 20:
            vectors[1] = vectors[0]

    monkeypatch.setattr(packing, "_adam_step", spoil)
    result = packing.optimise(300, 16, seed=0, steps=20)
    assert result.history[-1, 2] == pytest.approx(1, abs=1e-6)
    assert result.coherence == pytest.approx(result.history[:, 2].min(), abs=1e-5)


def test_a_leap_of_the_coherence_does_not_overflow():
    vectors = packing.random_unit_vectors(12, 5, seed=0).to(torch.float32)
    coherence = brute_force_coherence(vectors)
    gradient, _ = packing._gradient(vectors, 200, coherence / 3)
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


def test_panels_do_not_change_the_result(monkeypatch):
    whole = packing.optimise(150, 9, seed=0, steps=20, dtype=torch.float64)
    monkeypatch.setattr(packing, "PANEL_ELEMENTS", 150 * 11)
    tiled = packing.optimise(150, 9, seed=0, steps=20, dtype=torch.float64)
    assert tiled.coherence == pytest.approx(whole.coherence, abs=1e-9)


def test_gradient_is_that_of_the_power_sum():
    vectors = packing.random_unit_vectors(12, 5, seed=0).requires_grad_()
    unit = torch.nn.functional.normalize(vectors, dim=1)
    cosines = unit @ unit.T * (1 - torch.eye(12, dtype=torch.float64))
    scale = float(cosines.detach().abs().max())
    (cosines / scale).pow(8).sum().backward()
    # d/dv_i of the sum counts each pair twice and carries the exponent and the scale; the guess must not matter, far or near
    for guess in (scale, 0.9 * scale, 2.0 * scale, 1e-4 * scale):
        gradient, coherence = packing._gradient(vectors.detach(), 8, guess)
        assert coherence == pytest.approx(scale)
        assert torch.allclose(gradient * 2 * 8 / scale, vectors.grad, atol=1e-12)


@pytest.mark.parametrize(("k", "d", "reached"), [(500, 128, 0.0915), (500, 256, 0.0482), (400, 307, 0.0305)])
def test_few_vectors_a_dimension_do_not_diverge(k, d, reached):
    # a leap of the coherence in one step must not leave its traces in the optimiser's state
    result = packing.optimise(k, d, seed=0, steps=400)
    assert result.coherence < reached
    assert result.history[-1, 2] < reached


@pytest.mark.parametrize("power", [1, 3, 7, 9, 199])
def test_gram_power_panel(power):
    vectors = packing.random_unit_vectors(17, 4, seed=1)
    gram = vectors @ vectors.T
    gram.fill_diagonal_(0)
    panel, largest = gram_power_panel(vectors, 5, 12, power, 0.9)
    assert torch.allclose(panel, (gram[5:12] / 0.9) ** power, rtol=1e-9, atol=1e-300)
    assert largest == pytest.approx(float(gram[5:12].abs().max()))


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


def test_no_steps_are_refused():
    with pytest.raises(RepcapError, match="steps = 0"):
        packing.optimise(10, 4, steps=0)


@pytest.mark.parametrize("procedure", [packing.optimise, packing.optimise_published])
def test_a_bad_seed_or_device_is_one_line(procedure):
    with pytest.raises(RepcapError, match="seed = -1"):
        procedure(10, 4, seed=-1)
    with pytest.raises(RepcapError, match="device 'abacus' cannot be used"):
        procedure(10, 4, device="abacus")


def test_too_little_memory_is_said_before_any_work():
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise_published(3_000_000, 64)
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise_published(np.int32(100_000), np.int32(64))
    with pytest.raises(RepcapError, match="not enough memory"):
        packing.optimise(10**9, 10**4)


def test_certify_refuses_what_has_no_direction():
    vectors = torch.eye(4)
    vectors[2, 2] = float("nan")
    with pytest.raises(RepcapError, match="row 2"):
        packing.certify(vectors)
    with pytest.raises(RepcapError, match="row 1"):
        packing.certify(torch.diag(torch.tensor([1.0, 0.0, 1.0])))
    with pytest.raises(RepcapError, match="at least two rows"):
        packing.certify(torch.ones(1, 4))


def test_flush_denormal_mode_is_restored():
    before = packing._set_flush_denormal(False)
    packing.optimise(20, 4, steps=2)
    assert packing._set_flush_denormal(before) is False
