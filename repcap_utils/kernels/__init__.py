"""The inner loops: products of tiles fused with what is done to them. They import nothing else of this package.

`torch_tiles` is the reference and runs everywhere; `triton_tiles` does the same on a CUDA device without ever writing the
product to memory, `fused_tiles` on a CPU in one pass over it. All offer `gram_power_tile` and `cosine_tile`.
"""

from functools import cache
from types import ModuleType

import torch

from repcap_utils.kernels import torch_tiles

COMPILING_PAYS = 5e10
"""Entries of a Gram matrix, all steps of a run together, from which the seconds that compiling takes are won back on a CPU."""


def tiles(device: torch.device, entries: float = 0) -> ModuleType:
    """The module of tiles for `device` and a run over so many entries of a Gram matrix.

    `triton_tiles` for CUDA where Triton can be imported, `fused_tiles` on a CPU from `COMPILING_PAYS` entries, else
    `torch_tiles`.
    """
    if device.type == "cuda":
        return _cuda_tiles()
    if device.type == "cpu" and entries >= COMPILING_PAYS:
        from repcap_utils.kernels import fused_tiles

        return fused_tiles
    return torch_tiles


@cache
def _cuda_tiles() -> ModuleType:
    try:
        from repcap_utils.kernels import triton_tiles
    except ImportError:
        return torch_tiles
    return triton_tiles
