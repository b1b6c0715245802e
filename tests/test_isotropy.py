"""Removal of common directions against numpy's singular value decomposition, and on matrices with a known answer."""

import numpy as np
import pytest
import torch

from repcap_utils.errors import RepcapError
from repcap_utils.isotropy import epsilon_profile, remove_common_directions
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
