import os
import signal
import subprocess
import sys
import time

import pytest

from repcap_utils import paths, sweep
from repcap_utils.errors import RepcapError


def cells(*sizes, steps=3):
    return [{"method": "optimise-1", "k": k, "d": d, "seed": 0, "steps": steps} for k, d in sizes]


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
    from repcap_utils import packing

    table = sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "packing.csv", progress=False)
    assert table.coherence[0] == pytest.approx(packing.optimise(20, 4, seed=0, steps=3).coherence, abs=1e-8)


def test_two_runs_may_share_a_store(tmp_path):
    store = tmp_path / "packing.csv"
    script = (
        "from pathlib import Path; from repcap_utils import sweep;"
        "sweep.run(sweep.PACKING, [{'method': 'optimise-1', 'k': 8, 'd': 4, 'seed': s, 'steps': 1} for s in range(60)],"
        f" Path({str(store)!r}), progress=False)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], cwd=paths.ROOT) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(sweep.read(sweep.PACKING, store).seed) == list(range(60))


def test_bad_cells_are_one_line(tmp_path):
    with pytest.raises(RepcapError, match="draws = 1"):
        sweep.run(sweep.RANDOM, [{"k": 5, "d": 2, "seed": 0, "draws": 1}], tmp_path / "random.csv", progress=False)
    with pytest.raises(RepcapError, match="not enough memory"):
        sweep.run(
            sweep.RANDOM, [{"k": 10**8, "d": 10**5, "seed": 0, "draws": 2}], tmp_path / "random.csv", progress=False
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(RepcapError, match="cannot write"):
        sweep.run(sweep.PACKING, cells((20, 4)), tmp_path / "file" / "packing.csv", progress=False)


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


def test_budget_starts_no_further_cell(tmp_path):
    table = sweep.run(sweep.PACKING, cells((20, 4), (30, 5)), tmp_path / "p.csv", budget=-1.0, progress=False)
    assert table.empty


def test_kill_loses_at_most_the_running_cell(tmp_path):
    store = tmp_path / "packing.csv"
    script = (
        "from pathlib import Path; from repcap_utils import sweep;"
        "sweep.run(sweep.PACKING, [{'method': 'optimise-1', 'k': 60, 'd': 4, 'seed': s, 'steps': 40} for s in range(500)],"
        f" Path({str(store)!r}), progress=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=paths.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (store.is_file() and len(store.read_text().splitlines()) > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = sweep.read(sweep.PACKING, store)
    assert 3 <= len(finished) < 500
    wanted = [{"method": "optimise-1", "k": 60, "d": 4, "seed": seed, "steps": 40} for seed in range(len(finished) + 2)]
    again = sweep.run(sweep.PACKING, wanted, store, progress=False)
    assert sorted(again.seed) == list(range(len(finished) + 2))
    merged = again.merge(finished, on=list(sweep.PACKING.key))
    assert (merged.coherence_x == merged.coherence_y).all()


def test_published_grid():
    grid = sweep.published_grid()
    assert len(grid) == len(set(grid)) == 166
    assert sum(k <= d for k, d in grid) == 6
    assert len(sweep.published_random_grid()) == 256
    assert all(k > d for k, d in sweep.profile_cells("packing", "cpu"))
    assert sweep.profile_cells("packing", "paper") == grid


@pytest.mark.parametrize("text", ["", "2000", "2000x", "axb", "1x2x3"])
def test_unreadable_cells_are_refused(text):
    with pytest.raises(RepcapError, match="k x d"):
        sweep.parse_cells(text)


def test_parse_cells():
    assert sweep.parse_cells("2000x64,4000x128") == [(2000, 64), (4000, 128)]


def test_unknown_profile_and_broken_stores_are_refused(tmp_path):
    with pytest.raises(RepcapError, match="unknown sweep profile"):
        sweep.profile_cells("packing", "gpu")
    store = tmp_path / "store.csv"
    store.write_text("k,d\n1,2\n")
    with pytest.raises(RepcapError, match="has columns"):
        sweep.read(sweep.PACKING, store)
    store.write_text("")
    with pytest.raises(RepcapError, match="is not readable as CSV"):
        sweep.read(sweep.PACKING, store)
    with pytest.raises(RepcapError, match="lacks method"):
        sweep.run(sweep.PACKING, [{"k": 3, "d": 2}], tmp_path / "other.csv", progress=False)


def test_committed_packings_are_published_cells_and_respect_the_bounds():
    from repcap_utils import bounds

    table = sweep.read(sweep.PACKING, sweep.STORES["packing"])
    ours = table[(table.method == "optimise-1") & (table.k > table.d)]
    pairs = set(zip(ours.k, ours.d, strict=True))
    assert len(pairs & set(sweep.published_grid())) >= 24
    for row in table.itertuples():
        assert row.coherence > bounds.welch(row.k, row.d)
        assert row.coherence > bounds.levenshtein(row.k, row.d)
    assert not table.duplicated(list(sweep.PACKING.key)).any()


def test_damaged_stores_are_named(tmp_path):
    store = tmp_path / "packing.csv"
    sweep.run(sweep.PACKING, cells((20, 4)), store, progress=False)
    good = store.read_text()
    store.write_text(good.replace("optimise-1,20,", "optimise-1,20.5,"))
    with pytest.raises(RepcapError, match="is not readable as CSV"):
        sweep.read(sweep.PACKING, store)
    coherence = good.splitlines()[1].split(",")[6]
    store.write_text(good.replace(coherence, "1335113"))
    with pytest.raises(RepcapError, match="row 2: coherence is 1335113"):
        sweep.read(sweep.PACKING, store)


def test_best_takes_the_lowest_coherence(tmp_path, monkeypatch):
    monkeypatch.setitem(sweep.STORES, "packing", tmp_path / "packing.csv")
    sweep.run(
        sweep.PACKING, cells((20, 4), steps=1) + cells((20, 4), steps=80), sweep.STORES["packing"], progress=False
    )
    table = sweep.read(sweep.PACKING, sweep.STORES["packing"])
    best = sweep.best("optimise-1")
    assert len(table) == 2
    assert len(best) == 1
    assert best.coherence[0] == table.coherence.min() < table.coherence.max()
