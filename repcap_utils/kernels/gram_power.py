"""The inner loop of coherence minimisation: a panel of the Gram matrix, its largest entry and its powers."""

import torch


def gram_power_panel(
    vectors: torch.Tensor, start: int, stop: int, power: int, scale: float
) -> tuple[torch.Tensor, float]:
    """Rows start:stop of the Gram matrix G of `vectors` (k x d), raised to an odd power, with the diagonal set to zero.

    Returns:
        (G / scale)^power, (stop - start) x k, and the largest |G_ij| with i != j of the panel.
    """
    panel = vectors[start:stop] @ vectors.T
    panel.diagonal(offset=start).zero_()
    low, high = torch.aminmax(panel)
    largest = max(-float(low), float(high))
    return _odd_power_(panel.div_(scale), power), largest


def _odd_power_(base: torch.Tensor, power: int) -> torch.Tensor:
    """base^power for an odd power by repeated squaring; `base` is overwritten."""
    result = base.clone()
    power >>= 1
    while power:
        base.square_()
        if power & 1:
            result.mul_(base)
        power >>= 1
    return result
