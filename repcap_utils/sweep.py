"""Long computations as data: cells in, finished rows of a CSV store out, one at a time, resumable after a kill.

The cells of a sweep run here, one after the other, or on the workers of a dask scheduler; this process alone writes the
store. A store is read line by line, so that one damaged line costs that line and not the table.
"""

import csv
import glob
import logging
import math
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from repcap_utils import __version__, bounds, packing, paths, random_packing
from repcap_utils.checks import whole_number
from repcap_utils.errors import RepcapError

if TYPE_CHECKING:
    import distributed

Cell = Mapping[str, int | str]
Row = dict[str, object]
Key = tuple[str, ...]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A computation of one cell: its key columns, all its columns, the column of its result, and the function itself."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    value: str
    compute: Callable[[Cell], Row]


ORIGIN = ("seconds", "device", "threads", "version", "commit")

_TEXT = frozenset({"method", "dtype", "device", "version", "commit"})
_WHOLE = frozenset({"k", "d", "seed", "steps", "draws", "threads"})
ROUNDING = 1e-6  # of the values in a store, generously
LARGEST_KEY = 10**18 - 1
MOST_SEEDS = 100_000
_LEAST = {"k": 2, "d": 2, "seed": 0, "steps": 1, "draws": 2}  # the standard deviation takes two draws

METHODS = {
    "optimise-2": lambda *size, **options: packing.optimise(*size, **options),
    "published-1": lambda *size, **options: packing.optimise_published(*size, **options),
}
"""Packing procedures by method version: a change that moves results gets a new number and leaves old rows alone."""

DEFAULT_STEPS = {"optimise-2": 150, "published-1": 5000}

CONNECT_SECONDS = 10
"""How long a scheduler has to answer, and to show its first worker."""

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
    return sorted(cells, key=lambda cell: (_size(*cell), cell))


def published_random_grid() -> list[tuple[int, int]]:
    """The (k, d) of the 256 cells of the published random baseline (arXiv 2606.02765, sec. 3.2), cheapest first."""
    return sorted([(k, d) for d in range(256, 4097, 256) for k in PUBLISHED_KS], key=lambda cell: (_size(*cell), cell))


def _size(k: int, d: int) -> int:
    """Grows as the time of one pass over the Gram matrix: the product costs d, the elementwise work about 100."""
    return k * k * (d + 100)


def _cost(cell: Mapping[str, object]) -> int:
    """Grows as the time of a whole cell. Up to k = d a packing is one orthonormalisation and takes no steps."""
    k, d = int(cell["k"]), int(cell["d"])
    passes = int(cell["draws"]) if "draws" in cell else int(cell["steps"]) if k > d else 1
    return passes * _size(k, d)


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
    return [(k, d) for k, d in cells if profile == "paper" or (k > d and _size(k, d) <= affordable)]


def parse_cells(text: str) -> list[tuple[int, int]]:
    """Cells written as "2000x64, 4000×128" (k x d), spaces as you like.

    Raises:
        RepcapError: any other form, or a number that is not positive.
    """
    cells = []
    for cell in text.split(","):
        pair = re.fullmatch(r"\s*(-?\d+)\s*[xX×]\s*(-?\d+)\s*", cell)
        if pair is None:
            raise RepcapError(f"cannot read cell {cell.strip()!r}: write k x d pairs like 2000x64,4000x128")
        k, d = int(pair[1]), int(pair[2])
        if k < 1 or d < 1:
            raise RepcapError(f"cell {cell.strip()!r}: k and d must be positive whole numbers")
        cells.append((k, d))
    return cells


def parse_seeds(text: str) -> list[int]:
    """Seeds written as "0,1,2", "0-4", or both mixed; the last of a range belongs to it.

    Raises:
        RepcapError: any other form, or a range that runs backwards.
    """
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise RepcapError(f"cannot read seeds {part.strip()!r}: write whole numbers or ranges like 0,1,2 or 0-4")
        wanted = range(int(ends[1]), int(ends[2] or ends[1]) + 1)
        if len(wanted) > MOST_SEEDS:
            raise RepcapError(f"seeds {part.strip()!r}: a range of {len(wanted)} seeds; give at most {MOST_SEEDS}")
        seeds += wanted
    return seeds


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
        RepcapError: the file cannot be read, has other columns, or has a damaged line.
    """
    table, damaged = _parse(task, store)
    if damaged:
        raise RepcapError(f"{store}, line {damaged[0].number}: {damaged[0].reason}; mend or delete that line")
    return table


def best(method: str) -> pd.DataFrame:
    """The row of lowest coherence for each (k, d) that a packing procedure has in the store."""
    table = read(PACKING, STORES["packing"])
    rows = table[table.method == method].sort_values(["d", "k", "coherence"])
    return rows.drop_duplicates(["k", "d"], ignore_index=True)


class Outlook(NamedTuple):
    """How far a sweep is: cells finished, cells wanted, and the seconds that one worker needs for the rest, if known."""

    finished: int
    wanted: int
    seconds: float | None


def outlook(task: Task, cells: Iterable[Cell], table: pd.DataFrame) -> Outlook:
    """Compare wanted cells with a store's rows; the pace is that of the finished cells among them, at equal cost."""
    wanted = _wanted(task, cells)
    rows = [row for key, row in zip(_keys(task, table), table.to_dict("records"), strict=True) if key in wanted]
    finished_cost = sum(map(_cost, rows))
    remaining_cost = sum(map(_cost, wanted.values())) - finished_cost
    seconds = sum(row["seconds"] for row in rows) / finished_cost * remaining_cost if rows else None
    return Outlook(len(rows), len(wanted), seconds)


def run(
    task: Task,
    cells: Iterable[Cell],
    store: Path,
    *,
    budget: float | None = None,
    progress: bool | None = None,
    scheduler: str | None = None,
    report: Report = warnings.warn,
) -> pd.DataFrame:
    """Compute the cells that `store` lacks and append each as it finishes; return all rows of the store.

    The store is rewritten whole to a temporary name and renamed, under a lock, so a kill at any moment loses at most the
    running cells and several runs may share one store. Damaged lines are left out and move to `<store>.rejected`.

    Args:
        task: PACKING or RANDOM.
        cells: mappings that hold at least the task's key columns; one that comes twice is computed once.
        store: the CSV file.
        budget: start no further cell after this many seconds; those running are awaited.
        progress: show a bar; by default only on a terminal.
        scheduler: None computes here, "local" on a dask worker for each core, anything else is the address of a dask
            scheduler. A cell whose worker dies starts again on another, by dask's rule at most three times.
        report: called with one line for each damaged line of the store.

    Raises:
        RepcapError: a bad cell, an unreadable or unwritable store, or a scheduler that does not answer.
    """
    wanted = _wanted(task, cells)
    if budget is not None and not budget > 0:
        raise RepcapError(f"budget = {budget:g}: give a positive number of seconds")
    deadline = math.inf if budget is None else time.monotonic() + budget
    results = _Store(task, store, report)
    results.prepare()  # a folder that cannot be written is found out before the work, not after it
    done = results.done()
    pending = {key: cell for key, cell in wanted.items() if key not in done}
    if pending:
        _compute(task, pending, results, deadline, progress, scheduler)
    return results.table()


def _compute(
    task: Task,
    pending: dict[Key, Cell],
    results: "_Store",
    deadline: float,
    progress: bool | None,
    scheduler: str | None,
) -> None:
    last = ""

    def due() -> Iterator[Cell]:
        """The cells in their order, each checked at the moment when it can start."""
        for key, cell in pending.items():
            if time.monotonic() > deadline:
                return
            if key in results.done():  # another run on this store was faster
                bar.total -= _cost(cell)
                continue
            bar.set_postfix_str(f"{_label(cell)}{last}")
            yield cell

    rows = _rows_here(task, due()) if scheduler is None else _rows_from(scheduler, task, due())
    bar = tqdm(
        total=sum(map(_cost, pending.values())),
        desc=task.name,
        disable=None if progress is None else not progress,
        smoothing=0,  # cells differ by a factor of thousands: only the pace of the whole run foretells anything
        bar_format="{desc}: {percentage:3.0f}% |{bar}| {elapsed}, {remaining} to go{postfix}",
    )
    with bar, closing(rows):
        for row in rows:
            results.append(row)
            last = f", last {task.value} {row[task.value]:.5f}"
            bar.update(_cost(row))


def _rows_here(task: Task, cells: Iterator[Cell]) -> Iterator[Row]:
    for cell in cells:
        yield _row(task, cell)


def _rows_from(scheduler: str, task: Task, cells: Iterator[Cell]) -> Iterator[Row]:
    """Rows in the order in which workers finish them. No more cells are out than workers have threads: each starts at once."""
    with _client(scheduler, task) as client:
        from distributed import wait

        running: dict[distributed.Future, Cell] = {}
        try:
            while True:
                free = max(1, sum(client.nthreads().values())) - len(running)
                for cell in islice(cells, max(0, free)):
                    running[client.submit(_row, task, cell, pure=False)] = cell
                if not running:
                    return
                finished = wait(list(running), return_when="FIRST_COMPLETED").done
                for future in sorted(finished, key=lambda future: future.status != "finished"):
                    yield _result(future, running.pop(future))
        except (OSError, CancelledError) as error:
            raise RepcapError(
                f"lost the dask scheduler {scheduler} ({type(error).__name__}); finished rows are stored, run the sweep again"
            ) from error
        finally:
            if client.status == "running":
                client.cancel(list(running), force=True)


@contextmanager
def executor(scheduler: str) -> Iterator[tuple[Executor, int]]:
    """The workers of a dask scheduler (an address, or "local") as an executor, and how many calls they run at once.

    Raises:
        RepcapError: no such scheduler, or no workers.
    """
    with _client(scheduler, RANDOM) as client:  # a task of the CPU: a worker for each core
        yield client.get_executor(pure=False), sum(client.nthreads().values())


@contextmanager
def _client(scheduler: str, task: Task) -> Iterator["distributed.Client"]:
    """A client of the scheduler at that address, or of one started here for "local", with at least one worker."""
    try:
        import distributed
    except ImportError as error:
        raise RepcapError(
            "a scheduler needs the package distributed; install it with `pip install distributed`"
        ) from error
    with ExitStack() as stack:
        # what ends a sweep is raised here as one line; dask's log would repeat it as tracebacks
        stack.enter_context(distributed.utils.silence_logging_cmgr(logging.CRITICAL))
        address = scheduler
        if scheduler == "local":
            shared_gpu = task is PACKING and torch.cuda.is_available()
            cluster = distributed.LocalCluster(
                n_workers=1 if shared_gpu else None,
                threads_per_worker=1,
                memory_limit=0,  # each cell asks for its memory itself, and dask would kill a large one halfway
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
                preload=[__name__],
                env={"OMP_NUM_THREADS": "1"},
            )
            address = stack.enter_context(cluster).scheduler_address
        try:
            client = stack.enter_context(distributed.Client(address, timeout=CONNECT_SECONDS))
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, ImportError) as error:
            raise RepcapError(
                f"no dask scheduler with workers at {address} ({_reason(error)});"
                f" start them with `dask scheduler` and `dask worker {address} --nthreads 1`"
            ) from error
        yield client


def dask_setup(worker: object) -> None:
    """Called by dask in each worker started here: an interrupt from the terminal is for the client, which ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _result(future: "distributed.Future", cell: Cell) -> Row:
    try:
        return future.result()
    except (RepcapError, CancelledError):
        raise
    except Exception as error:  # whatever a foreign machine raises ends as one line that names the cell
        raise RepcapError(f"cell {_label(cell)} failed on its worker: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _label(cell: Cell) -> str:
    return f"{cell['k']}x{cell['d']}"


def _row(task: Task, cell: Cell) -> Row:
    """The finished row of a cell, with its origin: that of the process that computes it."""
    before = time.perf_counter()
    row = {**{name: cell[name] for name in task.key}, **task.compute(cell)}
    return row | {
        "seconds": round(time.perf_counter() - before, 1),
        "threads": torch.get_num_threads(),
        "version": __version__,
        "commit": commit(),
    }


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


class _Damage(NamedTuple):
    """A line of a store that is no row: its number (the header is 1), its text, and what is wrong with it."""

    number: int
    text: str
    reason: str


class _Store:
    """A task's CSV file as a sweep sees it: damaged lines are reported, the others are rows, writes are whole and locked."""

    def __init__(self, task: Task, path: Path, report: Report) -> None:
        self.task, self.path, self.report = task, path, report
        self._reported: set[str] = set()

    def prepare(self) -> None:
        """Find out that the store can be read and its folder written, and remove what killed writers left behind."""
        self.table()
        with paths.locked(self.path):  # writers hold the lock, so that no temporary file is in use
            for stale in self.path.parent.glob(f".{glob.escape(self.path.name)}.{'?' * 8}{self.path.suffix}"):
                stale.unlink(missing_ok=True)

    def table(self) -> pd.DataFrame:
        return self._parse()[0]

    def done(self) -> set[Key]:
        return set(_keys(self.task, self.table()))

    def append(self, row: Row) -> None:
        """Add a row unless its key is there; lines that are no rows move to the file of rejected lines."""
        try:
            with paths.locked(self.path):
                table, damaged = self._parse()
                if _key(self.task, row) in set(_keys(self.task, table)):
                    return
                self._reject(damaged)
                added = pd.DataFrame([row], columns=list(self.task.columns))
                table = added if table.empty else pd.concat([table, added], ignore_index=True)
                with paths.atomic(self.path) as temporary:
                    table.sort_values(list(self.task.key), kind="stable").to_csv(
                        temporary, index=False, lineterminator="\n"
                    )
        except (RepcapError, OSError) as error:
            line = ",".join(str(row[name]) for name in self.task.columns)
            raise RepcapError(f"{error}; finished but not stored, add it by hand: {line}") from error

    def _parse(self) -> tuple[pd.DataFrame, list[_Damage]]:
        table, damaged = _parse(self.task, self.path)
        for number, text, reason in damaged:
            if text not in self._reported:
                self.report(
                    f"{self.path}, line {number}: {reason}; left out, and moved to {self._rejected.name} in time"
                )
        self._reported |= {text for _, text, _ in damaged}
        return table, damaged

    @property
    def _rejected(self) -> Path:
        return self.path.with_name(f"{self.path.name}.rejected")

    def _reject(self, damaged: list[_Damage]) -> None:
        # before the store is rewritten: a kill in between leaves a line in both files rather than in none
        if damaged:
            with self._rejected.open("a", encoding="utf-8", errors="surrogateescape", newline="") as handle:
                handle.writelines(f"{text}\n" for _, text, _ in damaged)


def _parse(task: Task, store: Path) -> tuple[pd.DataFrame, list[_Damage]]:
    """The rows of a store and its damaged lines. Of rows with one key the first counts; empty lines are nothing.

    Raises:
        RepcapError: the file cannot be read, or its header is not the task's.
    """
    empty = pd.DataFrame(columns=list(task.columns))
    if store.exists() and not store.is_file():
        raise RepcapError(f"{store} is no ordinary file; name another store")
    try:
        # Spreadsheets put a byte-order mark first. Bytes that are no UTF-8 survive as surrogates, so that rejected lines are
        # kept verbatim.
        text = store.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        return empty, []
    except OSError as error:
        raise RepcapError(f"cannot read {store}: {error.strerror or error}; name another store") from error
    if not text.strip():
        raise RepcapError(f"{store} is empty; delete it to start afresh, restore it from git, or name another store")
    header, *lines = text.split("\n")
    if header.rstrip("\r") != ",".join(task.columns):
        raise RepcapError(
            f"{store} has columns {header[:200].strip()!r}; a store of {task.name} cells needs {','.join(task.columns)};"
            " restore it from git or name another store"
        )
    rows: dict[Key, Row] = {}
    damaged = []
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            if number == len(lines) + 1:
                raise ValueError("cut short, its line end is missing")
            row = _parsed_row(task, line)
            if _key(task, row) in rows:
                raise ValueError(f"a second row of the cell {', '.join(_key(task, row))}")
            rows[_key(task, row)] = row
        except (ValueError, csv.Error) as error:
            damaged.append(_Damage(number, line, str(error)))
    return pd.DataFrame(rows.values(), columns=list(task.columns)) if rows else empty, damaged


def _parsed_row(task: Task, line: str) -> Row:
    """The typed values of a line; a ValueError says what is wrong with it."""
    fields = next(csv.reader([line.rstrip("\r")], strict=True))
    if len(fields) != len(task.columns):
        raise ValueError(f"{len(fields)} fields instead of {len(task.columns)}")
    row = {name: _value(name, text) for name, text in zip(task.columns, fields, strict=True)}
    for name, least in _LEAST.items():
        if name in row and row[name] < least:
            raise ValueError(f"{name} is {row[name]}, below {least}")
    if row["seconds"] < 0:
        raise ValueError(f"seconds is {row['seconds']:g}, below 0")
    # no set of vectors is below Welch's bound, which is 0 up to k = d; the store rounds
    if not bounds.welch(row["k"], row["d"]) - ROUNDING <= row[task.value] <= 1:
        raise ValueError(f"{task.value} is {row[task.value]:g}, not between Welch's bound and 1")
    return row


def _value(name: str, text: str) -> int | float | str:
    if name in _TEXT:
        if not text or not text.isprintable():  # a byte that is no UTF-8 reads as a surrogate, which is not printable
            raise ValueError(f"{name} is empty or not printable")
        return text
    if name in _WHOLE:
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
            raise ValueError(f"{name} is {text[:40]!r}, not a whole number")
        return int(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {text[:40]!r}, not a number")
    return number


def _wanted(task: Task, cells: Iterable[Cell]) -> dict[Key, Cell]:
    """Cells by key, each once, all of them checked before any work."""
    wanted = {}
    for cell in cells:
        key = _key(task, cell)
        if "method" in task.key and cell["method"] not in METHODS:
            raise RepcapError(f"cell {_label(cell)}: unknown method {cell['method']!r}; there are {', '.join(METHODS)}")
        for name in set(task.key) - {"method"}:
            whole_number(f"cell {_label(cell)}: {name}", cell[name], _LEAST[name], LARGEST_KEY)
        wanted[key] = cell
    return wanted


def _key(task: Task, cell: Cell | Row) -> Key:
    missing = [name for name in task.key if name not in cell]
    if missing:
        raise RepcapError(f"a {task.name} cell lacks {', '.join(missing)}: {dict(cell)}")
    return tuple(str(cell[name]) for name in task.key)


def _keys(task: Task, table: pd.DataFrame) -> list[Key]:
    return [tuple(str(value) for value in row) for row in table[list(task.key)].itertuples(index=False)]
