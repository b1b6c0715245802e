"""Measured models as data: epsilon, the histogram of all cosines, and what common directions contribute.

A survey first asks what each model would take (`preflight`), then measures those that can be had (`run`), here, in
processes of its own or on dask workers; this process alone writes the stores.
"""

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from repcap_utils import __version__, embeddings, isotropy, models, paths, similarity, stores, tables
from repcap_utils.errors import RepcapError

EPSILON = paths.SURVEY / "epsilon.csv"
HISTOGRAMS = paths.SURVEY / "histograms.csv"
ISOTROPY = paths.SURVEY / "isotropy.csv"

BINS, RANGE = 200, (-1.0, 1.0)
COMPONENTS = (0, 1, 4, 16)
DIGITS = 8
"""Decimals of the floats in these stores."""

NOT_ASKED = "not asked"

# columns that only models from the hub fill: without a type, empty ones would make floats of the others
_HUB_TYPES = {"hub_id": str, "revision": str, "bytes_needed": "Int64", "bytes_total": "Int64"}

Row = dict[str, object]


def measure(embedding: embeddings.Embedding) -> Row:
    """One row of epsilon.csv: what the embedding is and the exact moments of its pairwise cosines (arXiv 2606.02765, sec. 2)."""
    moments = similarity.cosine_moments(embedding.weight)
    return {
        "name": embedding.name,
        "V": embedding.weight.shape[0],
        "d_model": embedding.d_model,
        "storage": embedding.storage,
        "tied": {True: "yes", False: "no", None: "unknown"}[embedding.tied],
        "tensor": embedding.provenance.get("tensor", ""),
        "file": embedding.provenance.get("file", ""),
        "sha256": embedding.provenance.get("sha256", ""),
        "mean": moments.mean,
        "std": moments.std,
        "epsilon": moments.epsilon,
        "pairs": moments.pairs,
        "zero_rows": moments.zero_rows,
        "duplicate_rows": moments.duplicate_rows,
        "version": __version__,
        "hub_id": embedding.provenance.get("repo"),
        "revision": embedding.provenance.get("revision"),
        "bytes_needed": embedding.provenance.get("needed_bytes"),
        "bytes_total": embedding.provenance.get("total_bytes"),
    }


def read(store: Path = EPSILON) -> pd.DataFrame:
    """The stored rows of EPSILON, HISTOGRAMS or ISOTROPY.

    Raises:
        RepcapError: the file is missing, or another table.
    """
    if not store.is_file():
        raise RepcapError(f"no {store}: restore it from git, or run `make survey`")
    table = tables.read(store, types=_HUB_TYPES if store == EPSILON else None)
    stores.require(store, table, ["name", *(["epsilon", "sha256"] if store == EPSILON else [])])
    return table


def keep(embedding: embeddings.Embedding) -> None:
    """Measure a model into all three stores.

    Raises:
        RepcapError: see `similarity.cosine_moments`; a store that cannot be read or written.
    """
    _store(_rows(embedding, histogram=True))


def histogram_rows(embedding: embeddings.Embedding) -> list[Row]:
    """Rows of histograms.csv: counts of all V(V-1)/2 cosines in 200 bins over [-1, 1], those that are not zero."""
    counts = similarity.cosine_histogram(embedding.weight, BINS, RANGE).counts
    return [{"name": embedding.name, "bin": int(i), "count": int(counts[i])} for i in np.flatnonzero(counts)]


def edges() -> np.ndarray:
    """Edges of the bins of histograms.csv, 201 values."""
    return np.linspace(*RANGE, BINS + 1)


def isotropy_rows(embedding: embeddings.Embedding, counts: Sequence[int] = COMPONENTS) -> list[Row]:
    """Rows of isotropy.csv: the moments as they are, after centring, and after removing `counts` components too."""
    components = [count for count in counts if count < embedding.d_model]
    return [
        {
            "name": embedding.name,
            "centred": "yes" if entry.centred else "no",
            "components": entry.components,
            "mean": entry.moments.mean,
            "std": entry.moments.std,
            "epsilon": entry.moments.epsilon,
        }
        for entry in isotropy.epsilon_profile(embedding.weight, components)
    ]


# --- the survey -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A model that a survey is asked for; `revision` is None for the default branch, and for the default models."""

    name: str
    title: str
    hub_id: str
    revision: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is read from the files of the registry; otherwise from the hub."""
        return self.name in models.registry()


@dataclass(frozen=True)
class Check:
    """What measuring a model would take.

    Attributes:
        status: "here" (a default model's files), "cached", "reachable", "gated", "absent", "pickled only", "unreachable", or
            NOT_ASKED, because the hub did not answer before.
        revision: the hub's commit, or the sha256 of a default model's file; None where unknown.
        bytes_to_read: from the network; None where unknown.
        bytes_total: all weights of the repository; None where unknown and for the default models.
        reason: one line where something is wrong, or "".
    """

    target: Target
    status: str
    revision: str | None = None
    bytes_to_read: int | None = None
    bytes_total: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a model: "measured", "stored" (before, at the same revision) or "skipped", with its reason.

    `epsilon` is the stored one, which a skipped model may have from before; None where the model is missing.
    """

    name: str
    status: str
    epsilon: float | None = None
    reason: str = ""


class _Rows(NamedTuple):
    """A model's rows in the three stores; `histogram` is None where it was not counted."""

    epsilon: Row
    isotropy: list[Row]
    histogram: list[Row] | None


def targets(names: Sequence[str] = (), *, hub: bool = True) -> list[Target]:
    """The default models and, with `hub`, the 45 of the paper's table 1 (arXiv 2606.02765); or those that are named.

    Args:
        names: registered names, titles of the table, hub ids (any, with @revision too), or parts of them: "llama"
            stands for all that have it in name, title or hub id.
        hub: whether the models of the table, which are on the hub, belong to a survey without names.

    Raises:
        RepcapError: a name that stands for nothing; two revisions of one model.
    """
    default = [Target(name, model.title, model.hub_id) for name, model in models.registry().items()]
    table = tables.read(paths.PUBLISHED / "models.csv")
    published = [Target(row.hub_id, row.model, row.hub_id) for row in table.itertuples()]
    if not names:
        return default + published if hub else default
    found: dict[str, Target] = {}
    for target in (target for name in names for target in _named(name, default + published)):
        other = found.setdefault(target.name, target)
        if other.revision != target.revision:
            raise RepcapError(
                f"two revisions of {target.name}: {other.revision or 'the default branch'} and "
                f"{target.revision or 'the default branch'}; a survey keeps one row a model, name one"
            )
    return list(found.values())


def _named(name: str, known: list[Target]) -> list[Target]:
    from repcap_utils import hub  # loaded late: it takes a second

    wanted = name.lower()
    exact = [target for target in known if wanted in (target.name.lower(), target.title.lower())]
    if exact:
        return exact
    if hub.is_repo_id(name):
        repo_id, _, revision = name.partition("@")
        return [Target(repo_id, repo_id, repo_id, revision or None)]
    part = [target for target in known if any(wanted in text.lower() for text in (target.name, target.title))]
    if not wanted or not part:
        raise RepcapError(
            f"no model {name!r}: name a default model ({', '.join(models.registry())}), a model of the paper's table, "
            "a part of such a name, or a hub id (owner/name)"
        )
    return part


def preflight(wanted: Iterable[Target]) -> Iterator[Check]:
    """What each model would take, one after the other; a hub that does not answer at all is asked once."""
    silent = ""
    for target in wanted:
        if target.is_default:
            yield _check_default(target)
        elif silent:
            yield Check(target, NOT_ASKED, reason=silent)
        else:
            check = _check_hub(target)
            if check.status == "unreachable" and not _hub_answers():
                silent = "the hub did not answer; check the network and HF_ENDPOINT"
            yield check


def _check_default(target: Target) -> Check:
    model = models.get(target.name)
    if model.is_present:
        return Check(target, "here", model.file_sha256, bytes_to_read=0)
    reason = f"its weights are not here; run `repcap models fetch {target.name}`"
    return Check(target, "absent", model.file_sha256, reason=reason)


def _check_hub(target: Target) -> Check:
    from repcap_utils import hub

    try:
        found = hub.preflight(target.hub_id, embeddings.embedding_tensor, target.revision)
    except (RepcapError, OSError) as error:
        return Check(target, "unreachable", reason=_one_line(error))
    status, reason, size = found.status, found.reason, found.bytes_to_read
    if found.cached:
        status, size = "cached", 0
    if status == "pickled only":
        reason = f"pickled weights only; `repcap epsilon {target.hub_id} --allow-download --keep` downloads them whole"
    return Check(target, status, found.revision, size, found.total_bytes, reason)


def _hub_answers() -> bool:
    """Whether the endpoint says anything at all; offline, where the cache answers, that is not asked."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    except (HTTPError, OSError):
        return False
    return True


def run(
    checks: Iterable[Check],
    *,
    again: bool = False,
    histograms: bool = False,
    workers: int = 1,
    scheduler: str | None = None,
) -> Iterator[Outcome]:
    """Measure the models that can be had into the stores; yield what became of each, as it is known.

    Args:
        checks: what `preflight` found.
        again: measure models too that are stored at the same revision.
        histograms: count the cosines of all pairs of models from the hub too, V x V products each; those of the default
            models are always counted.
        workers: processes on this machine.
        scheduler: "local" or the address of a dask scheduler, whose workers measure instead.

    Raises:
        RepcapError: workers below 1, a scheduler that does not answer, a store that cannot be written, a dead worker, a
            scheduler lost on the way. Models finished by then are stored.
    """
    if workers < 1:
        raise RepcapError(f"workers = {workers}: give a positive number")
    before = _stored(EPSILON)
    others = {store: set(_stored(store)) for store in (ISOTROPY, HISTOGRAMS)}
    pending = []

    def counts(check: Check) -> bool:
        return histograms or check.target.is_default

    def is_stored(check: Check) -> bool:
        name = check.target.name
        complete = name in others[ISOTROPY] and (name in others[HISTOGRAMS] or not counts(check))
        return complete and name in before and check.revision == _version(before[name])

    for check in checks:
        name = check.target.name
        row = before.get(name)
        epsilon = None if row is None else row["epsilon"]
        if check.status not in ("here", "cached", "reachable"):
            yield Outcome(name, "skipped", epsilon, check.reason)
        elif not again and is_stored(check):
            yield Outcome(name, "stored", epsilon)
        else:
            pending.append(check)
    if not pending:
        return
    lost = False

    def due() -> Iterator[tuple[Check, bool]]:
        return ((check, counts(check)) for check in pending if check.target.is_default or not lost)

    left = {check.target.name for check in pending}
    for check, result in _results(due(), workers, scheduler):
        name = check.target.name
        left.remove(name)
        row = before.get(name)
        if isinstance(result, _Rows):
            _store(result)
            yield Outcome(name, "measured", result.epsilon["epsilon"])
        else:
            lost = lost or (not check.target.is_default and not _hub_answers())
            yield Outcome(name, "skipped", None if row is None else row["epsilon"], result)
    for name in sorted(left):
        reason = "not tried, because the hub no longer answers; run the survey again"
        yield Outcome(name, "skipped", before[name]["epsilon"] if name in before else None, reason)


def _stored(store: Path) -> dict[str, Row]:
    """A row of each model that is in a store, by name, with None for what is empty."""
    if not store.is_file():
        return {}
    table = read(store).drop_duplicates("name").astype(object)
    return {row["name"]: row for row in table.where(table.notna(), None).to_dict("records")}


def _version(row: Row) -> object:
    """What tells one version of a model's weights from another: the hub's commit, or a default model's sha256."""
    return row.get("revision") or row["sha256"]


def _store(rows: _Rows) -> None:
    """Keep a model's rows; an earlier histogram stays where it is one of the same weights."""
    row, before = rows.epsilon, _stored(EPSILON).get(rows.epsilon["name"])
    is_same = before is not None and _version(row) is not None and _version(before) == _version(row)
    if rows.histogram is not None or not is_same:
        stores.keep(HISTOGRAMS, rows.histogram or [], names=[row["name"]])
    stores.keep(ISOTROPY, rows.isotropy, digits=DIGITS)
    stores.keep(EPSILON, [row], digits=DIGITS)


def _rows(embedding: embeddings.Embedding, *, histogram: bool) -> _Rows:
    return _Rows(measure(embedding), isotropy_rows(embedding), histogram_rows(embedding) if histogram else None)


def _measured(name: str, revision: str | None, histogram: bool) -> _Rows | str:
    """A model's rows, or in one line why there are none; runs on a worker, where exceptions might not survive the way."""
    try:
        embedding = embeddings.load(name, tokens=False, unembedding=False, revision=revision)
        return _rows(embedding, histogram=histogram)
    except (RepcapError, OSError) as error:
        return _one_line(error)
    except MemoryError:
        return "not enough memory"


def _results(
    work: Iterator[tuple[Check, bool]], workers: int, scheduler: str | None
) -> Iterator[tuple[Check, _Rows | str]]:
    """Each model with its result, in the order in which they finish; a model is taken when it can start at once.

    `work` says of each model whether its histogram is counted.
    """
    if workers == 1 and scheduler is None:
        yield from ((check, _measured(*_call(check, histogram))) for check, histogram in work)
        return
    with _pool(workers, scheduler) as (executor, slots):
        running: dict[Future, Check] = {}
        try:
            while True:
                for check, histogram in islice(work, slots - len(running)):
                    running[executor.submit(_measured, *_call(check, histogram))] = check
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), _result(future)
        except (OSError, CancelledError) as error:
            raise RepcapError(
                f"lost the dask scheduler {scheduler} ({type(error).__name__}); finished models are stored, "
                "run the survey again"
            ) from error


def _call(check: Check, histogram: bool) -> tuple[str, str | None, bool]:
    """Arguments of `_measured`: the very commit that the pre-flight saw."""
    return check.target.name, None if check.target.is_default else check.revision, histogram


@contextmanager
def _pool(workers: int, scheduler: str | None) -> Iterator[tuple[Executor, int]]:
    """Where models are measured, and how many at once."""
    if scheduler is not None:
        from repcap_utils import sweep

        with sweep.executor(scheduler) as (executor, slots):
            yield executor, slots
        return
    threads = max(1, torch.get_num_threads() // workers)
    # a forked child of a process that has used torch's threads can hang
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=fresh, initializer=_begin_worker, initargs=(threads,)) as executor:
        yield executor, workers


def _begin_worker(threads: int) -> None:
    """Limit torch's threads, and end with the process that asks: one that is killed cannot tell its workers."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _result(future: Future) -> _Rows | str:
    try:
        return future.result()
    except CancelledError:
        raise
    except BrokenExecutor as error:
        raise RepcapError(
            "a worker died, perhaps for lack of memory; finished models are stored: run again with fewer --workers"
        ) from error
    except Exception as error:  # whatever a foreign machine raises costs that model only
        return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
