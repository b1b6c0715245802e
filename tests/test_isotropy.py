"""Removal of common directions against numpy's singular value decomposition, and on matrices with a known answer."""

import numpy as np
import pytest
import torch

from repcap_utils.errors import RepcapError
from repcap_utils.isotropy import (
    epsilon_profile,
    least_effective_dimension,
    projections,
    remove_common_directions,
    spectrum,
)
from repcap_utils.similarity import cosine_moments, random_floor

STRENGTHS = [30.0, 20.0, 12.0, 8.0, 5.0]


def anisotropic(rows: int = 800, d: int = 64, seed: int = 0) -> torch.Tensor:
    """Independent normal rows, stretched along a few directions and moved away from the origin."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    weight[:, : len(STRENGTHS)] *= torch.tensor(STRENGTHS, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    return weight @ rotation + 3.0 * torch.randn(d, generator=generator, dtype=torch.float64)


def plainly(weight: torch.Tensor, components: int, centre: bool) -> np.ndarray:
    rows = weight.double().numpy()
    rows = rows - rows.mean(axis=0) if centre else rows
    top = np.linalg.svd(rows, full_matrices=False)[2][:components]
    return rows - rows @ top.T @ top


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("components", [0, 1, 3, 63])
def test_removal_equals_a_singular_value_decomposition(components: int, centre: bool) -> None:
    weight = anisotropic()
    found = remove_common_directions(weight, components, centre=centre)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), plainly(weight, components, centre), atol=1e-9)


def test_nothing_asked_changes_nothing() -> None:
    weight = anisotropic().float()
    torch.testing.assert_close(remove_common_directions(weight, centre=False), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shorter_types_come_back_as_float32(dtype: torch.dtype) -> None:
    weight = anisotropic().to(dtype)
    found = remove_common_directions(weight, 2)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), plainly(weight, 2, True), rtol=1e-5, atol=1e-4)


def test_zero_rows_stay_zero_and_do_not_move_the_mean() -> None:
    weight = anisotropic(300)
    padded = torch.cat([weight[:100], torch.zeros(50, 64, dtype=torch.float64), weight[100:]])
    found = remove_common_directions(padded, 2)
    assert (found[100:150] == 0).all()
    kept = torch.cat([found[:100], found[150:]])
    torch.testing.assert_close(kept, remove_common_directions(weight, 2))


def test_profile_falls_to_the_random_floor() -> None:
    weight = anisotropic(3000)
    profile = epsilon_profile(weight, (0, 1, 2, len(STRENGTHS)))
    assert [(step.centred, step.components) for step in profile] == [
        (False, 0),
        (True, 0),
        (True, 1),
        (True, 2),
        (True, len(STRENGTHS)),
    ]
    epsilons = [step.moments.epsilon for step in profile]
    assert epsilons == sorted(epsilons, reverse=True)
    assert profile[0].moments == cosine_moments(weight)
    assert epsilons[-1] == pytest.approx(random_floor(64 - len(STRENGTHS)), rel=0.03)
    for step in profile[1:]:
        direct = cosine_moments(remove_common_directions(weight, step.components))
        assert step.moments.epsilon == pytest.approx(direct.epsilon, abs=1e-9)


def test_equal_rows_leave_nothing_rather_than_rounding() -> None:
    weight = torch.full((50, 8), 0.1)
    assert (remove_common_directions(weight) == 0).all()
    plane = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) @ torch.eye(2, 8)
    assert (remove_common_directions(plane, 2) == 0).all()
    with pytest.raises(RepcapError, match="0 non-zero rows"):
        epsilon_profile(weight, (0,))


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_the_unit_of_the_entries_does_not_matter(scale: float) -> None:
    weight = anisotropic(400)
    found = remove_common_directions(weight * scale, 2) / scale
    torch.testing.assert_close(found, remove_common_directions(weight, 2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("components", [-1, 64])
def test_components_are_checked(components: int) -> None:
    with pytest.raises(RepcapError, match=f"components is {components}"):
        remove_common_directions(anisotropic(), components)
    with pytest.raises(RepcapError, match=f"components is {components}"):
        epsilon_profile(anisotropic(), (0, components))


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(RepcapError, match="shape"):
        remove_common_directions(torch.ones(4))
    with pytest.raises(RepcapError, match="no non-zero row"):
        remove_common_directions(torch.zeros(4, 3))
    weight = anisotropic()
    weight[17, 3] = np.nan
    with pytest.raises(RepcapError, match="row 17 "):
        remove_common_directions(weight)
    with pytest.raises(RepcapError, match="overflow"):
        remove_common_directions(torch.tensor([[3e38, 0.0], [-3e38, 1.0], [-3e38, 2.0]]))


@pytest.mark.parametrize("at_the_mean", [0, 2])
def test_duplicates_are_counted_at_each_step(at_the_mean: int) -> None:
    half = anisotropic(30, 8).round()
    half[9] = half[3]
    weight = torch.cat([8.0 + half, 8.0 - half, torch.full((at_the_mean, 8), 8.0, dtype=torch.float64)])
    found = [step.moments for step in epsilon_profile(weight, [0, 1])]
    assert [moments.rows for moments in found] == [60 + at_the_mean, 60, 60], "of rows at the mean nothing is left"
    assert [moments.duplicate_rows for moments in found] == [2 + at_the_mean // 2, 2, 2]


@pytest.mark.parametrize(("rows", "d"), [(2, 5), (7, 3), (300, 40), (40, 300), (800, 64)])
def test_moments_follow_from_the_spectrum(rows: int, d: int) -> None:
    weight = anisotropic(rows, max(d, 6))[:, :d]
    weight[rows // 2] *= 1e-3
    found, moments = spectrum(weight), cosine_moments(weight)
    assert found.eigenvalues.shape == (d,)
    assert found.eigenvalues.sum() == pytest.approx(1, abs=1e-12)
    assert (found.mean, found.std, found.epsilon) == pytest.approx(
        (moments.mean, moments.std, moments.epsilon), abs=1e-7 if rows == 2 else 1e-12
    )


def test_the_spectrum_of_known_rows() -> None:
    flat = spectrum(torch.cat([torch.eye(6), -torch.eye(6), torch.zeros(1, 6)]))
    assert (flat.rows, flat.mean_square) == (12, pytest.approx(0, abs=1e-15))
    assert flat.eigenvalues == pytest.approx(np.full(6, 1 / 6), abs=1e-14)
    assert flat.effective_dimension == pytest.approx(6)
    line = spectrum(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-3.0, -6.0]]))
    assert (line.effective_dimension, line.mean_square) == (pytest.approx(1), pytest.approx(1 / 9))


@pytest.mark.parametrize("weight", [torch.eye(4)[:1], torch.zeros(3, 4)])
def test_a_spectrum_needs_two_rows(weight: torch.Tensor) -> None:
    with pytest.raises(RepcapError, match="non-zero rows; give two or more"):
        spectrum(weight)


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.09])
def test_least_effective_dimension_is_that_of_an_epsilon(mean: float) -> None:
    d = least_effective_dimension(0.1, mean)
    assert mean + 2 * np.sqrt(1 / d - mean**2) == pytest.approx(0.1, abs=1e-12)
    assert least_effective_dimension(0.1) == pytest.approx(400)


@pytest.mark.parametrize(("epsilon", "mean"), [(0.0, -0.5), (0.1, 0.1), (np.nan, 0.0), (0.5, -2.0), (np.inf, 0.0)])
def test_least_effective_dimension_refuses(epsilon: float, mean: float) -> None:
    with pytest.raises(RepcapError, match="give an epsilon above 0"):
        least_effective_dimension(epsilon, mean)


def test_projections_are_what_removal_takes_away() -> None:
    weight = anisotropic()
    weight[5] = 0
    found = projections(weight, 3).numpy()
    kept = np.delete(np.arange(800), 5)
    rows = weight[kept].numpy()
    mean = rows.mean(axis=0)
    assert np.isnan(found[5]).all()
    assert found[kept, 0] == pytest.approx(rows @ mean / np.linalg.norm(mean), abs=1e-9)
    left = remove_common_directions(weight, 3)[kept].numpy()
    removed = np.square(rows - mean).sum(axis=1) - np.square(left).sum(axis=1)
    assert np.square(found[kept, 1:]).sum(axis=1) == pytest.approx(removed, abs=1e-7)
    assert (np.diff(np.nanvar(found[:, 1:], axis=0)) < 0).all()


def test_no_mean_row_no_direction() -> None:
    with pytest.raises(RepcapError, match="the mean row is zero"):
        projections(torch.cat([torch.eye(4), -torch.eye(4)]), 1)
