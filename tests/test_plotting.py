import stat

import matplotlib

matplotlib.use("Agg")

import os

import matplotlib.pyplot as plt
import pytest

from repcap_utils import paths, plotting
from repcap_utils.errors import RepcapError


@pytest.fixture
def figures(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "FIGURES", tmp_path / "figures")
    return tmp_path / "figures"


def draw():
    figure, axes = plotting.subplots()
    axes.plot([0, 1], [1, 0], label="line")
    axes.legend()
    return figure


def test_same_picture_same_bytes(figures):
    plotting.save(draw(), "01_line")
    first = (figures / "01_line.png").read_bytes()
    stamp = (figures / "01_line.png").stat().st_mtime_ns
    plotting.save(draw(), "01_line")
    assert (figures / "01_line.png").read_bytes() == first
    assert (figures / "01_line.png").stat().st_mtime_ns == stamp
    assert b"Software" not in first
    assert first.startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert [path.name for path in figures.iterdir()] == ["01_line.png"]


def test_style_leaves_global_settings_alone():
    before = dict(matplotlib.rcParams)
    plt.close(draw())
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["line", "01 line", "../01_line", "01_line.png"])
def test_bad_names_are_refused(figures, name):
    with pytest.raises(RepcapError, match="figure name"):
        plotting.save(draw(), name)
    plt.close("all")


def test_missing_figure_is_named(figures):
    with pytest.raises(RepcapError, match="no figure"):
        plotting.show("01_nothing")


def test_unwritable_folder_is_one_line(tmp_path, monkeypatch):
    blocker = tmp_path / "figures"
    blocker.write_text("a file where the folder should be")
    monkeypatch.setattr(paths, "FIGURES", blocker)
    with pytest.raises(RepcapError, match="cannot write"):
        plotting.save(draw(), "01_line")
    plt.close("all")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_one_line(figures):
    figures.mkdir()
    figures.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RepcapError, match="Permission denied"):
        plotting.save(draw(), "01_line")
    plt.close("all")
