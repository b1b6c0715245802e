"""The inner loops: products of tiles fused with what is done to them. They import nothing else of this package.

`torch_tiles` is the reference and runs everywhere; `triton_tiles` does the same on a CUDA device without ever writing the
product to memory. Both offer `gram_power_tile` and `cosine_tile`.
"""

from functools import cache
from types import ModuleType

import torch

from repcap_utils.kernels import torch_tiles


@cache
def tiles(device: torch.device) -> ModuleType:
    """The module of tiles for `device`: `triton_tiles` for CUDA where Triton can be imported, else `torch_tiles`."""
    if device.type != "cuda":
        return torch_tiles
    try:
        from repcap_utils.kernels import triton_tiles
    except ImportError:
        return torch_tiles
    return triton_tiles
