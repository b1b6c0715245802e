"""Long computations as data: cells in, finished rows of a CSV store out, one at a time, resumable after a kill."""

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from repcap_utils import __version__, packing, paths, random_packing, tables
from repcap_utils.errors import RepcapError

Cell = Mapping[str, int | str]
Row = dict[str, object]


@dataclass(frozen=True)
class Task:
    """A computation of one cell: its key columns, all its columns, the column of its result, and the function itself."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    value: str
    compute: Callable[[Cell], Row]


ORIGIN = ("seconds", "device", "threads", "version", "commit")

METHODS = {"optimise-1": packing.optimise, "published-1": packing.optimise_published}
"""Packing procedures by method version: a change that moves results gets a new number and leaves old rows alone."""

DEFAULT_STEPS = {"optimise-1": 600, "published-1": 5000}

CPU_COST = {"packing": 2.0e10, "random": 4.0e10}
"""What the cpu profile can afford for one cell, in units of k^2 (d + 100)."""

PUBLISHED_KS = tuple(range(2000, 32001, 2000))
PUBLISHED_KS_LARGE_D = (2000, 4000, 6000, 8000, 12000, 16000, 20000, 24000, 28000, 32000)
PUBLISHED_DS = (32, 64, 128, 256, 512, 768)
PUBLISHED_DS_LARGE = (1024, 1536, 2048, 2560, 3072, 3584, 4096)


def published_grid() -> list[tuple[int, int]]:
    """The (k, d) of the 166 cells of the published packing sweep (arXiv 2606.02765, sec. 3.3), cheapest first."""
    cells = [(k, d) for d in PUBLISHED_DS for k in PUBLISHED_KS]
    cells += [(k, d) for d in PUBLISHED_DS_LARGE for k in PUBLISHED_KS_LARGE_D]
    return sorted(cells, key=_cost)


def published_random_grid() -> list[tuple[int, int]]:
    """The (k, d) of the 256 cells of the published random baseline (arXiv 2606.02765, sec. 3.2), cheapest first."""
    return sorted([(k, d) for d in range(256, 4097, 256) for k in PUBLISHED_KS], key=_cost)


def _cost(cell: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Grows as the time of one pass over the Gram matrix: the product costs d, the elementwise work about 100."""
    k, d = cell
    return k * k * (d + 100), cell


def profile_cells(task: str, profile: str) -> list[tuple[int, int]]:
    """The published cells (k, d) that a profile covers: "paper" all of them, "cpu" those that take two cores minutes each.

    Raises:
        RepcapError: an unknown profile.
    """
    if profile not in ("cpu", "paper"):
        raise RepcapError(
            f"unknown sweep profile {profile!r}: use cpu or paper, or name cells with --cells 2000x64,4000x128"
        )
    cells = published_grid() if task == "packing" else published_random_grid()
    affordable = CPU_COST[task]
    return [(k, d) for k, d in cells if profile == "paper" or (k > d and k * k * (d + 100) <= affordable)]


def parse_cells(text: str) -> list[tuple[int, int]]:
    """Cells written as "2000x64,4000x128" (k x d).

    Raises:
        RepcapError: any other form.
    """
    try:
        pairs = [tuple(int(number) for number in cell.split("x")) for cell in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise RepcapError(f"cannot read cells {text!r}: write k x d pairs like 2000x64,4000x128")
    return pairs


def _pack(cell: Cell) -> Row:
    k, d, steps = int(cell["k"]), int(cell["d"]), int(cell["steps"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = METHODS[str(cell["method"])](k, d, seed=int(cell["seed"]), steps=steps, device=device)
    return {
        "dtype": "float32",
        "coherence": round(result.coherence, 8),
        "device": device,
    }


def _draw(cell: Cell) -> Row:
    k, d, draws = int(cell["k"]), int(cell["d"]), int(cell["draws"])
    if draws < 2:
        raise RepcapError(f"draws = {draws}: a cell stores mean and standard deviation, so give at least 2")
    sample = random_packing.simulate(k, d, draws=draws, trials=1, seed=int(cell["seed"]))
    return {
        "mean": round(float(sample.mean()), 7),
        "std": round(float(sample.std(ddof=1)), 7),
        "minimum": round(float(sample.min()), 7),
        "median": round(float(np.median(sample)), 7),
        "maximum": round(float(sample.max()), 7),
        "device": "cpu",
    }


_PACKING_KEY = ("method", "k", "d", "seed", "steps")
_RANDOM_KEY = ("k", "d", "seed", "draws")
PACKING = Task("packing", _PACKING_KEY, (*_PACKING_KEY, "dtype", "coherence", *ORIGIN), "coherence", _pack)
RANDOM = Task(
    "random", _RANDOM_KEY, (*_RANDOM_KEY, "mean", "std", "minimum", "median", "maximum", *ORIGIN), "mean", _draw
)

TASKS = {"packing": PACKING, "random": RANDOM}
STORES = {"packing": paths.SWEEPS / "optimized_packing.csv", "random": paths.SWEEPS / "random_packing.csv"}


def read(task: Task, store: Path) -> pd.DataFrame:
    """The finished rows of a store; empty with the task's columns when there is no file yet.

    Raises:
        RepcapError: the file is not a CSV with the task's columns.
    """
    if not store.is_file():
        return pd.DataFrame(columns=list(task.columns))
    whole = {name: int for name in task.key if name != "method"}
    table = tables.read(store, task.columns, whole)
    value = table[task.value]
    bad = table.index[~((value > 0) & (value <= 1))]
    if len(bad):
        raise RepcapError(f"{store}, row {bad[0] + 2}: {task.value} is {value[bad[0]]}, not in (0, 1]; mend that row")
    return table


def best(method: str) -> pd.DataFrame:
    """The row of lowest coherence for each (k, d) that a packing procedure has in the store."""
    table = read(PACKING, STORES["packing"])
    rows = table[table.method == method].sort_values(["d", "k", "coherence"])
    return rows.drop_duplicates(["k", "d"], ignore_index=True)


def run(
    task: Task, cells: Iterable[Cell], store: Path, *, budget: float | None = None, progress: bool | None = None
) -> pd.DataFrame:
    """Compute the cells that `store` lacks and append each as it finishes; return all rows of the store.

    The store is rewritten whole to a temporary name and renamed, under a lock, so a kill at any moment loses at most the
    running cell and two runs may share one store.

    Args:
        task: PACKING or RANDOM.
        cells: mappings that hold at least the task's key columns.
        store: the CSV file.
        budget: start no further cell after this many seconds.
        progress: show a bar; by default only on a terminal.

    Raises:
        RepcapError: an unreadable or unwritable store, or a bad cell.
    """
    started = time.monotonic()
    with paths.locked(store):
        pass  # a folder that cannot be written is found out before the work, not after it
    done = set(_keys(task, read(task, store)))
    pending = [cell for cell in cells if _key(task, cell) not in done]
    for cell in tqdm(pending, desc=task.name, unit="cell", disable=None if progress is None else not progress):
        if budget is not None and time.monotonic() - started > budget:
            break
        before = time.perf_counter()
        row = {**{name: cell[name] for name in task.key}, **task.compute(cell)}
        row |= {
            "seconds": round(time.perf_counter() - before, 1),
            "threads": torch.get_num_threads(),
            "version": __version__,
            "commit": commit(),
        }
        _append(task, row, store)
    return read(task, store)


@cache
def commit() -> str:
    """The checkout's commit (12 hex digits, "-dirty" with uncommitted changes to the package), or "unknown"."""
    if not (paths.ROOT / ".git").exists():
        return "unknown"
    command = ["git", "-C", str(paths.ROOT), "describe", "--always", "--abbrev=12", "--exclude=*"]
    status = ["git", "-C", str(paths.ROOT), "status", "--porcelain", "--", "repcap_utils"]
    try:
        name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}-dirty" if changed else name


def _append(task: Task, row: Row, store: Path) -> None:
    with paths.locked(store):
        table = read(task, store)
        if _key(task, row) in set(_keys(task, table)):
            return
        added = pd.DataFrame([row], columns=list(task.columns))
        table = added if table.empty else pd.concat([table, added], ignore_index=True)
        with paths.atomic(store) as temporary:
            table.sort_values(list(task.key), kind="stable").to_csv(temporary, index=False, lineterminator="\n")


def _key(task: Task, cell: Cell | Row) -> tuple[str, ...]:
    missing = [name for name in task.key if name not in cell]
    if missing:
        raise RepcapError(f"a {task.name} cell lacks {', '.join(missing)}: {dict(cell)}")
    return tuple(str(cell[name]) for name in task.key)


def _keys(task: Task, table: pd.DataFrame) -> list[tuple[str, ...]]:
    return [tuple(str(value) for value in row) for row in table[list(task.key)].itertuples(index=False)]
