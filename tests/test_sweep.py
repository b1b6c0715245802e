import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch

from repcap_utils import packing, paths, sweep
from repcap_utils.errors import RepcapError


def cells(*sizes, steps=3, seeds=(0,)):
    return [{"method": "optimise-2", "k": k, "d": d, "seed": seed, "steps": steps} for k, d in sizes for seed in seeds]


def draws(**changes):
    return {"k": 5, "d": 2, "seed": 0, "draws": 2} | changes


def results(table):
    """What must not depend on where and when a cell was computed."""
    return table.drop(columns=list(sweep.ORIGIN)).to_dict("records")


@pytest.fixture
def one_thread():
    """Sums in the order in which a worker with one thread takes them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_rows_carry_their_origin_and_are_not_repeated(tmp_path):
    store = tmp_path / "packing.csv"
    table = sweep.run(sweep.PACKING, cells((20, 4), (30, 5)), store, progress=False)
    assert list(table.columns) == list(sweep.PACKING.columns)
    assert len(table) == 2
    assert table[["seconds", "device", "threads", "version", "commit"]].notna().all(axis=None)
    before = store.read_bytes()
    assert len(sweep.run(sweep.PACKING, cells((20, 4), (30, 5)), store, progress=False)) == 2
    assert store.read_bytes() == before


def test_stored_coherence_is_that_of_the_packing(tmp_path):
    table = sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "packing.csv", progress=False)
    assert table.coherence[0] == pytest.approx(packing.optimise(20, 4, seed=0, steps=3).coherence, abs=1e-8)


def test_two_runs_may_share_a_store(tmp_path):
    store = tmp_path / "packing.csv"
    script = (
        "from pathlib import Path; from repcap_utils import sweep;"
        "sweep.run(sweep.PACKING, [{'method': 'optimise-2', 'k': 8, 'd': 4, 'seed': s, 'steps': 1} for s in range(60)],"
        f" Path({str(store)!r}), progress=False)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], cwd=paths.ROOT) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(sweep.read(sweep.PACKING, store).seed) == list(range(60))


@pytest.mark.parametrize(
    ("task", "cell", "message"),
    [
        (sweep.RANDOM, draws(draws=1), "5x2: draws = 1"),
        (sweep.RANDOM, draws(k=1), "k = 1"),
        (sweep.RANDOM, draws(d=2.5), "d = 2.5"),
        (sweep.PACKING, cells((20, 4), steps=0)[0], "20x4: steps = 0"),
        (sweep.PACKING, cells((20, 4), seeds=[-1])[0], "seed = -1"),
        (sweep.PACKING, cells((20, 0))[0], "d = 0"),
        (sweep.PACKING, cells((20, 4))[0] | {"method": "guess"}, "unknown method 'guess'"),
        (sweep.PACKING, {"k": 3, "d": 2}, "lacks method"),
    ],
)
def test_bad_cells_are_refused_before_the_store_is_touched(tmp_path, task, cell, message):
    good = draws() if task is sweep.RANDOM else cells((20, 4))[0]
    with pytest.raises(RepcapError, match=message):
        sweep.run(task, [good, cell], tmp_path / "store.csv", progress=False)
    assert not list(tmp_path.iterdir())


def test_what_a_machine_cannot_do_is_one_line(tmp_path):
    with pytest.raises(RepcapError, match="not enough memory"):
        sweep.run(sweep.RANDOM, [draws(k=10**8, d=10**5)], tmp_path / "random.csv", progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RepcapError, match="cannot"):
        sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "file" / "packing.csv", progress=False)
    with pytest.raises(RepcapError, match="is no ordinary file; name another store"):
        sweep.run(sweep.PACKING, cells((20, 4)), tmp_path, progress=False)


def test_a_cell_named_twice_is_computed_once(tmp_path, monkeypatch):
    computed = []
    optimise = packing.optimise
    monkeypatch.setattr(packing, "optimise", lambda k, d, **rest: computed.append((k, d)) or optimise(k, d, **rest))
    sweep.run(sweep.PACKING, cells((20, 4), (30, 5), (20, 4)), tmp_path / "packing.csv", progress=False)
    assert computed == [(20, 4), (30, 5)]


def test_what_another_run_finished_meanwhile_is_not_computed(tmp_path, monkeypatch):
    store, computed = tmp_path / "packing.csv", []
    optimise = packing.optimise

    def optimise_while_another_run_works(k, d, **rest):
        computed.append(k)
        if k == 20:
            sweep.run(sweep.PACKING, cells((30, 4)), store, progress=False)
        return optimise(k, d, **rest)

    monkeypatch.setattr(packing, "optimise", optimise_while_another_run_works)
    table = sweep.run(sweep.PACKING, cells((20, 4), (30, 4), (40, 4)), store, progress=False)
    assert computed == [20, 30, 40]
    assert sorted(table.k) == [20, 30, 40]


def test_random_cells(tmp_path):
    table = sweep.run(
        sweep.RANDOM, [{"k": 50, "d": 8, "seed": 0, "draws": 20}], tmp_path / "random.csv", progress=False
    )
    row = table.iloc[0]
    assert row.minimum <= row["median"] <= row.maximum <= 1
    assert row["std"] > 0


def test_seed_and_steps_make_another_row(tmp_path):
    store = tmp_path / "packing.csv"
    sweep.run(sweep.PACKING, cells((20, 4)), store, progress=False)
    assert len(sweep.run(sweep.PACKING, cells((20, 4), steps=4), store, progress=False)) == 2


def test_budget_starts_no_further_cell(tmp_path, monkeypatch):
    store = tmp_path / "packing.csv"
    assert sweep.run(sweep.PACKING, cells((20, 4), (30, 5)), store, budget=1e-9, progress=False).empty
    optimise = packing.optimise
    monkeypatch.setattr(packing, "optimise", lambda *size, **rest: time.sleep(0.3) or optimise(*size, **rest))
    assert list(sweep.run(sweep.PACKING, cells((20, 4), (30, 5)), store, budget=0.2, progress=False).k) == [20]
    for budget in (0.0, -1.0, float("nan")):
        with pytest.raises(RepcapError, match="budget = "):
            sweep.run(sweep.PACKING, cells((30, 5)), store, budget=budget, progress=False)


def test_progress_counts_cost(tmp_path, capsys):
    work = cells((100, 4), steps=30) + cells((10, 4), steps=30)
    sweep.run(sweep.PACKING, work, tmp_path / "packing.csv", progress=True)
    shown = capsys.readouterr().err
    assert " 99% " in shown  # one of two cells, but nearly all of the work
    assert "10x4, last coherence 0." in shown
    sweep.run(sweep.PACKING, cells((12, 4)), tmp_path / "packing.csv")
    assert capsys.readouterr().err == ""


def test_outlook(tmp_path):
    table = sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "packing.csv", progress=False)
    table["seconds"] = 2.0
    twice = cells((20, 4)) + cells((20, 4), steps=6)
    assert sweep.outlook(sweep.PACKING, twice, table) == (1, 2, 4.0)
    assert sweep.outlook(sweep.PACKING, cells((20, 4)), table) == (1, 1, 0.0)
    assert sweep.outlook(sweep.PACKING, cells((30, 5)), table) == (0, 1, None)


KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from repcap_utils import sweep

folder = Path(sys.argv[1])
cells = [{"method": "optimise-2", "k": 100, "d": 8, "seed": seed, "steps": 30} for seed in range(30)]
sweep.commit()  # once, and not in each child

def child(store):
    if pid := os.fork():
        return pid
    torch.set_num_threads(1)
    sweep.run(sweep.PACKING, cells, folder / store, progress=False)
    os._exit(0)

start = time.monotonic()
assert os.waitpid(child("whole.csv"), 0)[1] == 0
seconds = time.monotonic() - start
moments, killed, rows = random.Random(0), 0, []
for _ in range(20):
    pid = child("killed.csv")
    time.sleep(moments.uniform(0.2, 1.8) * seconds / 20)
    os.kill(pid, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    store = folder / "killed.csv"
    rows.append(len(sweep.read(sweep.PACKING, store)))
assert os.waitpid(child("killed.csv"), 0)[1] == 0
print(json.dumps({"killed": killed, "rows": rows}))
"""


def test_kills_at_any_moment_lose_at_most_the_running_cell(tmp_path):
    # the driver forks after its imports, before any thread is there: 20 processes without 20 starts of torch
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    driver = subprocess.run(command, cwd=paths.ROOT, env=environment, capture_output=True, text=True)
    assert driver.returncode == 0, driver.stderr
    facts = json.loads(driver.stdout)
    assert facts["killed"] >= 10
    assert facts["rows"] == sorted(facts["rows"])
    whole, killed = (sweep.read(sweep.PACKING, tmp_path / name) for name in ("whole.csv", "killed.csv"))
    assert len(whole) == 30
    assert results(killed) == results(whole)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"whole.csv", "killed.csv", ".whole.csv.lock", ".killed.csv.lock"}


def test_what_a_killed_writer_left_is_removed(tmp_path):
    for name in (".packing.csv.abcd1234.csv", ".other.csv.abcd1234.csv", "packing.csv.rejected"):
        (tmp_path / name).write_text("half a table")
    sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "packing.csv", progress=False)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"packing.csv", ".packing.csv.lock", ".other.csv.abcd1234.csv", "packing.csv.rejected"}


@pytest.mark.parametrize(("owner", "method"), [(Path, "replace"), (pd.DataFrame, "to_csv")])
def test_full_disk_names_the_row_and_keeps_the_store(tmp_path, monkeypatch, owner, method):
    store = tmp_path / "packing.csv"
    sweep.run(sweep.PACKING, cells((20, 4)), store, progress=False)
    with store.open("a") as handle:
        handle.write("damaged\n")
    before = store.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, method, full)
    with pytest.raises(
        RepcapError, match=r"No space left.* add it by hand: optimise-2,30,5,0,3,float32,0\.\d+,"
    ) as error:
        sweep.run(sweep.PACKING, cells((30, 5)), store, progress=False, report=lambda line: None)
    monkeypatch.undo()
    assert "\n" not in str(error.value)
    assert store.read_bytes() == before
    with store.open("a") as handle:
        handle.write(str(error.value).rpartition("by hand: ")[2] + "\n")
    table = sweep.run(sweep.PACKING, cells((30, 5)), store, progress=False, report=lambda line: None)
    assert list(table.k) == [20, 30]


@contextmanager
def cluster(workers):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=None, env={"OMP_NUM_THREADS": "1"}
    ) as started:
        yield started


def test_a_killed_worker_costs_no_cell(tmp_path, one_thread):
    work, store = cells((150, 8), steps=150, seeds=range(24)), tmp_path / "packing.csv"
    with cluster(2) as workers:
        victim = workers.workers[0].pid

        def kill():
            while not (store.is_file() and len(store.read_text().splitlines()) > 4):
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        table = sweep.run(sweep.PACKING, work, store, scheduler=workers.scheduler_address, progress=False)
        killer.join(timeout=10)
        assert workers.workers[0].pid != victim
        bad = cells((10**7, 10**6))
        with pytest.raises(RepcapError, match="not enough memory"):
            sweep.run(sweep.PACKING, bad, store, scheduler=workers.scheduler_address, progress=False)
        few = sweep.run(
            sweep.PACKING,
            cells((150, 8), steps=151, seeds=range(2000)),
            store,
            scheduler=workers.scheduler_address,
            budget=1.5,
            progress=False,
        )
    serial = sweep.run(sweep.PACKING, work, tmp_path / "serial.csv", progress=False)
    assert results(table) == results(serial)
    assert set(table.threads) == {1}
    assert 24 < len(few) < 2024


def test_a_scheduler_that_goes_away_is_one_line(tmp_path):
    store = tmp_path / "packing.csv"
    with cluster(1) as workers:

        def close():
            while not (store.is_file() and len(store.read_text().splitlines()) > 2):
                time.sleep(0.01)
            workers.close()

        closer = threading.Thread(target=close, daemon=True)
        closer.start()
        with pytest.raises(RepcapError, match=r"lost the dask scheduler tcp://.* run the sweep again"):
            sweep.run(
                sweep.PACKING,
                cells((200, 8), steps=100, seeds=range(500)),
                store,
                scheduler=workers.scheduler_address,
                progress=False,
            )
        closer.join(timeout=30)
    assert 2 <= len(sweep.read(sweep.PACKING, store)) < 500


def test_local_scheduler(tmp_path, one_thread):
    work = [draws(k=50, d=8, seed=seed) for seed in range(3)]
    table = sweep.run(sweep.RANDOM, work, tmp_path / "random.csv", scheduler="local", progress=False)
    assert results(table) == results(sweep.run(sweep.RANDOM, work, tmp_path / "serial.csv", progress=False))


def test_interrupt_keeps_finished_rows_and_leaves_no_worker(tmp_path):
    store = tmp_path / "packing.csv"
    options = ["--cells", "400x8", "--seeds", "0-499", "--steps", "60", "--scheduler", "local", "--store", str(store)]
    process = subprocess.Popen(
        [sys.executable, "-m", "repcap_utils.cli", "sweep", *options],
        cwd=paths.ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (store.is_file() and len(store.read_text().splitlines()) > 2):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "WARNING" not in error
    assert 2 <= len(sweep.read(sweep.PACKING, store)) < 500
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # the last of them, which only counts semaphores, goes a moment later
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def test_no_scheduler_and_no_workers_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "CONNECT_SECONDS", 1)
    work, store = cells((20, 4)), tmp_path / "packing.csv"
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        with pytest.raises(RepcapError, match=f"{address}.*dask worker {address}") as error:
            sweep.run(sweep.PACKING, work, store, scheduler=address, progress=False)
        assert "\n" not in str(error.value)
    with cluster(0) as idle, pytest.raises(RepcapError, match="no dask scheduler with workers"):
        sweep.run(sweep.PACKING, work, store, scheduler=idle.scheduler_address, progress=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RepcapError, match="pip install distributed"):
        sweep.run(sweep.PACKING, work, store, scheduler="local", progress=False)


def test_distributed_is_loaded_only_when_asked_for():
    code = "import sys, repcap_utils.sweep; sys.exit('distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT).returncode == 0


def test_published_grid():
    grid = sweep.published_grid()
    assert len(grid) == len(set(grid)) == 166
    assert sum(k <= d for k, d in grid) == 6
    assert len(sweep.published_random_grid()) == 256
    assert all(k > d for k, d in sweep.profile_cells("packing", "cpu"))
    assert sweep.profile_cells("packing", "paper") == grid


@pytest.mark.parametrize("text", ["", "2000", "2000x", "axb", "1x2x3", "20x4,", "2.5x3"])
def test_unreadable_cells_are_refused(text):
    with pytest.raises(RepcapError, match="k x d"):
        sweep.parse_cells(text)


@pytest.mark.parametrize("cell", ["0x4", "20 x -4"])
def test_cells_that_are_not_positive_are_named(cell):
    with pytest.raises(RepcapError, match=f"cell '{cell}'.*positive"):
        sweep.parse_cells(f"20x4,{cell}")


def test_parse_cells():
    assert sweep.parse_cells("2000x64,4000x128") == [(2000, 64), (4000, 128)]
    assert sweep.parse_cells(" 20 × 4 , 30X5") == [(20, 4), (30, 5)]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("0, 2,1", [0, 2, 1]), ("0-4", [0, 1, 2, 3, 4]), ("7,1-2", [7, 1, 2])]
)
def test_parse_seeds(text, seeds):
    assert sweep.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "-1", "4-0", "1,", "0-1-2", "1.5"])
def test_unreadable_seeds_are_refused(text):
    with pytest.raises(RepcapError, match="cannot read seeds"):
        sweep.parse_seeds(text)


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is empty"), (" \n", "is empty"), ("k,d\n1,2\n", "has columns 'k,d'")]
)
def test_unknown_profile_and_foreign_stores_are_refused(tmp_path, content, reason):
    with pytest.raises(RepcapError, match="unknown sweep profile"):
        sweep.profile_cells("packing", "gpu")
    store = tmp_path / "store.csv"
    store.write_text(content)
    for use in (lambda: sweep.read(sweep.PACKING, store), lambda: sweep.run(sweep.PACKING, cells((20, 4)), store)):
        with pytest.raises(RepcapError, match=reason):
            use()
    assert store.read_text() == content
    assert list(tmp_path.iterdir()) == [store]


def test_committed_packings_are_published_cells_and_respect_the_bounds():
    from repcap_utils import bounds

    table = sweep.read(sweep.PACKING, sweep.STORES["packing"])
    ours = table[table.method.str.startswith("optimise-") & (table.k > table.d)]
    pairs = set(zip(ours.k, ours.d, strict=True))
    assert len(pairs & set(sweep.published_grid())) >= 24
    for row in table.itertuples():
        assert row.coherence > bounds.welch(row.k, row.d)
        assert row.coherence > bounds.levenshtein(row.k, row.d)
    assert not table.duplicated(list(sweep.PACKING.key)).any()


GOOD = "optimise-0,20,4,0,600,float32,0.50625,12.9,cpu,1,0.1.0,66e63ce061d3"
DAMAGED = {
    "2 fields instead of 12": "optimise-0,20",
    "13 fields": GOOD + ",more",
    "k is '20.5', not a whole number": GOOD.replace(",20,", ",20.5,"),
    "d is 'four', not a whole number": GOOD.replace(",4,", ",four,"),
    "seconds is 'long', not a number": GOOD.replace("12.9", "long"),
    "coherence is 1.33511e": GOOD.replace("0.50625", "1335113"),
    "coherence is 0, not between Welch's bound and 1": GOOD.replace("0.50625", "0"),
    "coherence is 0.4, not between": GOOD.replace("0.50625", "0.4"),
    "k is 0, below 2": GOOD.replace(",20,", ",0,"),
    "steps is 0, below 1": GOOD.replace(",600,", ",0,"),
    "seconds is -5, below 0": GOOD.replace("12.9", "-5"),
    "coherence is 'nan', not a number": GOOD.replace("0.50625", "nan"),
    "method is empty or not printable": GOOD.replace("optimise-0", ""),
    "version is empty or not printable": GOOD.replace("0.1.0", "0.1\udcff"),
    "a second row of the cell optimise-0, 20, 4, 0, 600": GOOD.replace("0.50625", "0.6"),
    "'0.5\\udcff', not a number": GOOD.replace("0.50625", "0.5\udcff"),
}


@pytest.mark.parametrize("reason", DAMAGED)
def test_damaged_lines_are_named_set_aside_and_cost_no_other_row(tmp_path, reason):
    store, rejected = tmp_path / "packing.csv", tmp_path / "packing.csv.rejected"
    lines = [",".join(sweep.PACKING.columns), GOOD, DAMAGED[reason], GOOD.replace(",20,", ",30,")]
    store.write_text("\n".join(lines) + "\n", errors="surrogateescape")
    before = store.read_bytes()
    with pytest.raises(RepcapError, match="line 3") as error:
        sweep.read(sweep.PACKING, store)
    assert reason in str(error.value)
    said = []
    known = [*sweep.run(sweep.PACKING, [], store, report=said.append).k]
    assert known == [20, 30]
    assert store.read_bytes() == before
    table = sweep.run(sweep.PACKING, cells((40, 5), (50, 5)), store, progress=False, report=said.append)
    assert sorted(table.k) == [20, 30, 40, 50]
    assert len(said) == 2  # one line in each run
    assert all(f"{store}, line 3: " in line and reason in line and "\n" not in line for line in said)
    assert rejected.read_text(errors="surrogateescape") == DAMAGED[reason] + "\n"
    assert len(sweep.read(sweep.PACKING, store)) == 4


def test_a_cut_last_line_is_set_aside(tmp_path):
    store = tmp_path / "packing.csv"
    header = ",".join(sweep.PACKING.columns)
    store.write_text(f"{header}\n{GOOD}\n{GOOD.replace(',20,', ',30,')[:-3]}")
    with pytest.warns(UserWarning, match="line 3: cut short"):
        table = sweep.run(sweep.PACKING, cells((40, 5)), store, progress=False)
    assert sorted(table.k) == [20, 40]
    assert (tmp_path / "packing.csv.rejected").read_text() == f"{GOOD.replace(',20,', ',30,')[:-3]}\n"


def test_rewriting_keeps_rows_to_the_letter(tmp_path):
    for name, task in sweep.TASKS.items():
        committed = sweep.STORES[name].read_text()
        store = tmp_path / f"{name}.csv"
        store.write_bytes(committed.replace("\n", "\r\n").encode())
        new = draws() if task is sweep.RANDOM else cells((20, 4))[0]
        sweep.run(task, [new], store, progress=False)
        written = store.read_bytes().decode()
        assert "\r" not in written
        assert set(committed.splitlines()) < set(written.splitlines())


def test_best_takes_the_lowest_coherence(tmp_path, monkeypatch):
    monkeypatch.setitem(sweep.STORES, "packing", tmp_path / "packing.csv")
    sweep.run(
        sweep.PACKING, cells((20, 4), steps=1) + cells((20, 4), steps=80), sweep.STORES["packing"], progress=False
    )
    table = sweep.read(sweep.PACKING, sweep.STORES["packing"])
    best = sweep.best("optimise-2")
    assert len(table) == 2
    assert len(best) == 1
    assert best.coherence[0] == table.coherence.min() < table.coherence.max()


def test_a_cell_of_at_most_d_vectors_is_finished_once(tmp_path):
    store = tmp_path / "packing.csv"
    first = sweep.run(sweep.PACKING, cells((5, 8)), store, progress=False)
    assert list(first.coherence) == [0]
    before = store.read_bytes()
    assert len(sweep.run(sweep.PACKING, cells((5, 8), (20, 4)), store, progress=False)) == 2
    assert before.splitlines()[1] in store.read_bytes().splitlines()
    assert len(sweep.read(sweep.PACKING, store)) == 2


def test_a_store_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RepcapError, match="is no ordinary file"):
        sweep.read(sweep.PACKING, tmp_path / "pipe")


def test_seeds_beyond_reason_are_refused(tmp_path):
    with pytest.raises(RepcapError, match="at most 100000"):
        sweep.parse_seeds("0-9999999999")
    with pytest.raises(RepcapError, match=r"seed = 1000000000000000000: give a whole number from 0 to 9{18}$"):
        cell = {"method": "optimise-2", "k": 20, "d": 4, "seed": 10**18, "steps": 1}
        sweep.run(sweep.PACKING, [cell], tmp_path / "p.csv", progress=False)
