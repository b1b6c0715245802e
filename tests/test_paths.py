import os

import pytest

from repcap_utils import paths
from repcap_utils.errors import RepcapError


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "data.csv"
    target.write_text("old")
    with pytest.raises(KeyError), paths.atomic(target) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_is_one_line_and_keeps_the_old_file(tmp_path):
    target = tmp_path / "data.csv"
    target.write_text("old")
    with pytest.raises(RepcapError, match="No space left"), paths.atomic(target):
        raise OSError(28, "No space left on device")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_unchanged_content_keeps_its_time_stamp(tmp_path):
    target = tmp_path / "deep" / "data.csv"
    assert paths.write_text(target, "a\n")
    stamp = target.stat().st_mtime_ns
    assert not paths.write_text(target, "a\n")
    assert target.stat().st_mtime_ns == stamp
    assert paths.write_text(target, "b\n")
    assert target.stat().st_mode & 0o777 == 0o666 & ~paths._umask()


def test_folders_follow_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "weights"))
    monkeypatch.setenv("REPCAP_REFERENCE", str(tmp_path / "published"))
    assert paths.models_dir() == tmp_path / "weights"
    assert paths.reference_dir() == tmp_path / "published"
    monkeypatch.setenv("REPCAP_REFERENCE", "../elsewhere")
    monkeypatch.chdir(tmp_path)
    assert paths.reference_dir() == paths.ROOT.parent / "elsewhere"
    monkeypatch.delenv("REPCAP_MODELS")
    assert paths.models_dir() == paths.DATA / "models"


def test_measured_output_can_go_elsewhere(tmp_path):
    import subprocess
    import sys

    code = "from repcap_utils import paths; print(paths.FIGURES, paths.RECORDS, paths.SURVEY, paths.PUBLISHED)"
    environment = {**os.environ, "REPCAP_OUTPUT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=paths.ROOT)
    figures, records, survey, published = done.stdout.split()
    assert (figures, records, survey) == (
        f"{tmp_path}/figures",
        f"{tmp_path}/data/records",
        f"{tmp_path}/data/survey",
    )
    assert published == str(paths.DATA / "published"), "what is published is read, never written"
