"""Cost of `repcap epsilon` on a large local file: peak memory, counted operations against V x V, time beside tiles of V x V.

    python benchmarks/epsilon.py [--quick] [--profile] [--json FILE]

The matrix is seeded and clustered, stored as bfloat16. One fresh process runs the whole command on it: all that it prints, from
the epsilons (as stored and without the mean row; with --profile also without 1, 4 and 16 principal components) to the row
report.

Operations are those of floating-point arithmetic, a multiplication and an addition being two, by one rule for both sides. The
command's are counted as torch dispatches them, waste included. V x V is taken at its least: V (V - 1) / 2 products of two rows,
2 d operations each, for one epsilon. Its time is that of tiles of the upper triangle, by the time of one tile.
"""

import tempfile
import time
from pathlib import Path

import torch
from common import Figures, options, printed_by, publish
from safetensors.torch import save_file

TILE = 2048
CLUSTERS = 500

COMMAND = """
import contextlib, io, json, sys, time
import torch
from common import peak_bytes
from torch.utils._python_dispatch import TorchDispatchMode
from repcap_utils import cli, isotropy

PRODUCTS = {"mm": 1, "mv": 1, "bmm": 1, "dot": 1, "addmm": 2, "addmv": 2}  # the position of the second factor

class Operations(TorchDispatchMode):
    total = 0
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        name = function.overloadpacket.__name__.rstrip("_")
        if name in PRODUCTS:
            inner = arguments[PRODUCTS[name]].shape[-2 if arguments[PRODUCTS[name]].ndim > 1 else -1]
            self.total += 2 * result.numel() * inner
        elif isinstance(result, torch.Tensor):
            inputs = [part.numel() for part in arguments if isinstance(part, torch.Tensor)]
            self.total += 0 if function.is_view else max([result.numel(), *inputs])
        return result

started, out = time.perf_counter(), io.StringIO()
with Operations() as operations, contextlib.redirect_stdout(out):
    eigenvectors = isotropy._top_eigenvectors
    def counted(covariance, count):  # outside torch: LAPACK's reduction to tridiagonal form, and the way back
        d = len(covariance)
        operations.total += 4 * d**3 // 3 + 2 * d**2 * count
        return eigenvectors(covariance, count)
    isotropy._top_eigenvectors = counted
    cli.app(["epsilon", *sys.argv[1:], "--json"], standalone_mode=False)
facts = json.loads(out.getvalue())
print(json.dumps({
    "epsilon": facts["epsilon"],
    "epsilons": 1 + len(facts["without_common_directions"]),
    "seconds": time.perf_counter() - started,
    "operations": operations.total,
    "peak_bytes": peak_bytes(),
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


def measure(quick: bool, profile: bool) -> Figures:
    """All figures, by name."""
    rows, d = (8000, 256) if quick else (128_256, 4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({"model.embed_tokens.weight": clustered(rows, d)}, path)
        found = printed_by(COMMAND, path, *(["--profile"] if profile else []), HF_HUB_OFFLINE="1")
    products = rows * (rows - 1) * d
    return {
        "shape": f"{rows} x {d} bfloat16",
        "threads": torch.get_num_threads(),
        "epsilon": found["epsilon"],
        "epsilons": found["epsilons"],
        "peak_memory_gb": found["peak_bytes"] / 1e9,
        "operations": float(found["operations"]),
        "operations_of_one_v_by_v": float(products),
        "fewer_than_one_v_by_v": products / found["operations"],
        "fewer_than_v_by_v_for_each_epsilon": found["epsilons"] * products / found["operations"],
        "seconds": found["seconds"],
        "seconds_of_one_tiled_v_by_v_estimated": tiled_seconds(rows, d),
    }


def main() -> None:
    """Print the table as markdown; with --json also write the figures to a file."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="run the command with --profile: five epsilons")
    arguments = parser.parse_args()
    publish(measure(arguments.quick, arguments.profile), arguments.json)


if __name__ == "__main__":
    main()
