"""The fused tile of the cosine histogram: a product of two blocks of unit rows, binned at once."""

import torch
from torch import Tensor

MAX_BINS = 1_000_000


def tile_counts(a: Tensor, b: Tensor, *, bins: int, low: float, high: float, diagonal: bool) -> Tensor:
    """Count the entries of `a @ b.T` in `bins` equal bins of [low, high).

    Args:
        a: n x d floating-point block of unit rows.
        b: m x d block of the same type and device.
        bins: number of bins, 1 to `MAX_BINS` (a bin's index must be exact in float32).
        low: lower end of the first bin.
        high: upper end of the last bin, above `low`.
        diagonal: count only the entries above the main diagonal (`a` and `b` are the same rows).

    Returns:
        int64 [bins + 2]: entries below `low`, the bins in order, entries at or above `high`. The sum is exactly the
        number of entries looked at. An entry within rounding of an edge may fall on either side of it.
    """
    # Slots: 0 is for entries not to be counted, 1 below, then the bins, then above. The affine map from cosine to slot
    # rides on the product, and one byte a slot keeps the memory traffic of the count below that of the product.
    scale = bins / (high - low)
    slots = torch.full((a.shape[0], b.shape[0]), 2.0 - low * scale, dtype=a.dtype, device=a.device)
    slots.addmm_(a, b.T, alpha=scale).clamp_(1, bins + 2)
    index = slots.to(torch.uint8 if bins + 2 <= 255 else torch.int32)
    if diagonal:
        index.triu_(1)
    return torch.bincount(index.view(-1), minlength=bins + 3)[1:]
