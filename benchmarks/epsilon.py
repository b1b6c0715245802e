"""Cost of `repcap epsilon` on a large local file: peak memory, counted operations against V x V, time beside tiles of V x V.

    python benchmarks/epsilon.py [--quick] [--json FILE]

The matrix is seeded and clustered, stored as bfloat16. One fresh process runs the whole command on it: all that it prints, from
five epsilons (as stored, and without four sets of common directions) to the row report. Operations are counted as torch
dispatches them. V x V is what tiles of the upper triangle would need, once or for each epsilon, by the time of one tile.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from repcap_utils.paths import ROOT, write_text

TILE = 2048
CLUSTERS = 500

# VmHWM, since ru_maxrss of a child starts at the peak of the process that started it.
COMMAND = """
import contextlib, io, json, math, sys, time
from pathlib import Path
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from repcap_utils import cli

PRODUCTS = {"mm": 1, "mv": 1, "bmm": 1, "dot": 1, "addmm": 2, "addmv": 2}  # the position of the second factor

class Operations(TorchDispatchMode):
    total = 0
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        name = function.overloadpacket.__name__.rstrip("_")
        if name in PRODUCTS:
            inner = arguments[PRODUCTS[name]].shape[-2 if arguments[PRODUCTS[name]].ndim > 1 else -1]
            self.total += 2 * result.numel() * inner
        elif name.endswith("linalg_eigh"):
            self.total += 9 * arguments[0].shape[-1] ** 3  # by the operation counts of LAPACK
        elif isinstance(result, torch.Tensor):
            inputs = [part.numel() for part in arguments if isinstance(part, torch.Tensor)]
            self.total += 0 if function.is_view else max([result.numel(), *inputs])
        return result

started, out = time.perf_counter(), io.StringIO()
with Operations() as operations, contextlib.redirect_stdout(out):
    cli.app(["epsilon", sys.argv[1], "--json"], standalone_mode=False)
line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({
    "epsilon": json.loads(out.getvalue())["epsilon"],
    "seconds": time.perf_counter() - started,
    "operations": operations.total,
    "peak_bytes": int(line.split()[1]) * 1024,
}))
"""


def clustered(rows: int, d: int) -> torch.Tensor:
    """A seeded bfloat16 matrix, rows around common centres and off the origin, as trained embeddings are."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLUSTERS, d, generator=generator) * 0.5 + torch.randn(d, generator=generator) * 0.2
    weight = torch.empty(rows, d, dtype=torch.bfloat16)
    for part in weight.split(1000):
        which = torch.randint(CLUSTERS, (len(part),), generator=generator)
        part.copy_(centres[which] + torch.randn(len(part), d, generator=generator))
    return weight


def tiled_seconds(rows: int, d: int) -> float:
    """Time of all tiles of the upper triangle: the best time of one, float32, with the sums of its cosines and squares."""
    unit = torch.nn.functional.normalize(torch.randn(2, TILE, d, generator=torch.Generator().manual_seed(0)), dim=2)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        cosines = unit[0] @ unit[1].T
        cosines.sum(dtype=torch.float64), cosines.square_().sum(dtype=torch.float64)
        best = min(best, time.perf_counter() - start)
    return best * rows * (rows - 1) / 2 / TILE**2


def measure(quick: bool) -> dict[str, float | str | int]:
    """All figures, by name."""
    rows, d = (8000, 256) if quick else (128_256, 4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({"model.embed_tokens.weight": clustered(rows, d)}, path)
        command = [sys.executable, "-c", COMMAND, str(path)]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
    products = rows * (rows - 1) * d  # one multiplication and one addition for each pair and dimension
    return {
        "shape": f"{rows} x {d} bfloat16",
        "threads": torch.get_num_threads(),
        "epsilon": found["epsilon"],
        "peak_memory_gb": found["peak_bytes"] / 1e9,
        "operations": float(found["operations"]),
        "operations_of_one_v_by_v": float(products),
        "fewer_than_one_v_by_v": products / found["operations"],
        "fewer_than_v_by_v_for_each_of_the_five_epsilons": 5 * products / found["operations"],
        "seconds": found["seconds"],
        "seconds_of_one_tiled_v_by_v_estimated": tiled_seconds(rows, d),
    }


def main() -> None:
    """Print the table as markdown; with --json also write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small matrix, a few seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    figures = measure(arguments.quick)
    print("| figure | value |\n| --- | --- |")
    for name, value in figures.items():
        print(f"| {name.replace('_', ' ')} | {f'{value:.4g}' if isinstance(value, float) else value} |")
    if arguments.json:
        write_text(arguments.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
