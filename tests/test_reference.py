import pandas as pd
import pooch
import pytest

from repcap_utils import paths, reference
from repcap_utils.errors import RepcapError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_REFERENCE", str(tmp_path))
    return tmp_path


@pytest.fixture
def refit(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "REFIT", tmp_path / "refit.csv")
    return tmp_path / "refit.csv"


def test_absent_files_are_none(folder):
    assert reference.load("optimised") is None
    assert reference.load("random") is None


def test_other_files_are_refused(folder):
    (folder / "optimized_packing.json").write_text("[[2000, 64, 0.2]]")
    with pytest.raises(RepcapError, match="is not the published file"):
        reference.load("optimised")
    with pytest.raises(RepcapError, match="unknown published sweep 'optimized'"):
        reference.load("optimized")


def test_fetch_without_network_or_with_other_bytes(folder, monkeypatch):
    def no_network(*_, **__):
        raise OSError("unreachable")

    monkeypatch.setattr(pooch, "retrieve", no_network)
    with pytest.raises(RepcapError, match="check the network"):
        reference.fetch()

    def tampered(*_, **__):
        raise ValueError("SHA256 hash of downloaded file does not match")

    monkeypatch.setattr(pooch, "retrieve", tampered)
    with pytest.raises(RepcapError, match="its sha256 is not the published one"):
        reference.fetch()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", list(reference.SWEEPS))
def test_published_files(name):
    cells = reference.load(name)
    if cells is None:
        pytest.skip("the published sweeps are not here: `make reference`, or set REPCAP_REFERENCE")
    assert len(cells) == reference.SWEEPS[name].cells
    assert not cells.duplicated(["k", "d"]).any()


def test_kept_values_replace_and_stay(refit):
    reference.keep("04_fitting_c", "optimised", {"b": 1.23456789, "a": 2.0})
    reference.keep("02_jl_failure", "random", {"a": 3.0})
    stamp = refit.stat().st_mtime_ns
    reference.keep("04_fitting_c", "optimised", {"a": 2.0})
    assert refit.stat().st_mtime_ns == stamp
    kept = reference.kept("04_fitting_c")
    assert kept.to_dict() == {"a": 2.0, "b": 1.23457}
    assert set(pd.read_csv(refit).source) == {"optimized_packing.json", "random_packing.json"}
    with pytest.raises(RepcapError, match="no rows for 03_packing"):
        reference.kept("03_packing")


def test_committed_refit_is_readable():
    assert reference.kept("04_fitting_c").notna().all()
    assert reference.kept("02_jl_failure").notna().all()
    assert not (paths.DATA / "published" / "optimized_packing.json").exists()
