"""The hub reader: the real client of huggingface_hub against a local server that speaks the hub's endpoints."""

import errno
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hub_server import HubServer, Trouble, sharded, single
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import close_session
from safetensors import safe_open

from repcap_utils import containers, embeddings, hub, paths
from repcap_utils.errors import RepcapError

REPO = "owner/name"
NAME = "model.embed_tokens.weight"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CHUNK = 1 << 15
SLACK = 1 << 20
FEW = 4 << 10
"""Bytes of the small files and headers of these repositories."""
FILE, API = "/resolve/", "/api/models/"


def matrix(rows: int = 1000, d: int = 64, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ballast(rows: int = 20000, d: int = 64) -> torch.Tensor:
    """A tensor of 2.5 MB that no reading may fetch."""
    return matrix(rows, d, seed=9)


EMBEDDING = matrix()
WEIGHTS = {"a.first": ballast(), NAME: EMBEDDING, "z.last": ballast()}


@pytest.fixture
def server(tmp_path, monkeypatch):
    with HubServer() as running:
        point(monkeypatch, running.url, tmp_path / "home")
        yield running
    close_session()


def point(monkeypatch, url: str, home: Path) -> None:
    """Let huggingface_hub, which reads its environment when it is imported, talk to `url` and cache in `home`."""
    for name, value in {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_ASSETS_CACHE": str(home / "assets"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "AGENT_HARNESSES_PATH": str(home / ".agents.json"),
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value, raising=False)  # versions differ in which they have
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(hub, "BACKOFF_S", 0.01)
    close_session()
    assert hf_hub_url(REPO, SINGLE).startswith(url), "a test must not reach the real hub"


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.view(torch.uint8), right.view(torch.uint8))
    )


def refused(call, *words: str) -> str:
    with pytest.raises(RepcapError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# --- right bytes, and no others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("cdn", [False, True])
def test_one_tensor_of_a_single_file(server, dtype, cdn):
    weight = matrix(dtype=dtype)
    commit = server.add(REPO, {SINGLE: single(WEIGHTS | {NAME: weight}), "config.json": b'{"vocab_size": 1000}'})
    server.cdn = cdn
    container = hub.open_repo(REPO)
    assert set(container.names()) == set(WEIGHTS)
    assert container.entry(NAME) == ((1000, 64), str(dtype).removeprefix("torch."))
    assert same(container.read(NAME), weight)
    assert container.revision == commit
    assert container.config == {"vocab_size": 1000}
    assert container.total_bytes == len(server.repos[REPO].commits[commit][SINGLE])
    size = weight.numel() * weight.element_size()
    assert size <= container.traffic <= server.sent <= size + FEW
    assert server.sent < container.total_bytes / 2


def test_only_the_needed_shard_is_touched(server):
    files = sharded([{"a": ballast()}, {"b": ballast(), NAME: EMBEDDING}, {"c": ballast()}])
    server.add(REPO, files)
    container = hub.open_repo(REPO)
    assert same(container.read(NAME), EMBEDDING)
    assert container.file_of(NAME).name == "model-00002-of-00003.safetensors"
    assert not server.asked("00001-of") and not server.asked("00003-of")
    assert server.sent <= EMBEDDING.numel() * 2 + FEW
    assert container.total_bytes == sum(len(content) for name, content in files.items() if name != INDEX)


def test_every_request_for_a_file_names_the_commit(server):
    old = server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    new = server.add(REPO, {SINGLE: single(WEIGHTS | {NAME: matrix(seed=1)})})
    assert same(container.read(NAME), EMBEDDING)
    assert all(f"/resolve/{old}/" in exchange.path for exchange in server.asked("/resolve/"))
    assert same(hub.open_repo(REPO).read(NAME), matrix(seed=1))
    assert hub.open_repo(REPO).revision == new
    assert hub.open_repo(REPO, revision=old).revision == old
    server.add(REPO, {SINGLE: single({NAME: matrix(seed=2)})}, branch="dev/x")
    assert same(hub.open_repo(f"{REPO}@dev/x").read(NAME), matrix(seed=2))


@pytest.mark.parametrize("length", [99_992, 99_999, 100_000, 100_001, 100_008, 131_072])
def test_header_around_100_kb(server, length):
    server.add(REPO, {SINGLE: single(WEIGHTS, pad_to=length)})
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    assert server.sent <= EMBEDDING.numel() * 2 + length + FEW


@pytest.mark.parametrize("chunk", [8, 1000, EMBEDDING.numel() * 2, 1 << 22])
def test_chunks_of_any_size(server, monkeypatch, chunk):
    weight = matrix(50, 3)
    monkeypatch.setattr(hub, "CHUNK_BYTES", chunk)
    server.add(REPO, {SINGLE: single({"a": matrix(3, 3), NAME: weight})})
    assert same(hub.open_repo(REPO).read(NAME), weight)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        (7, [0, 1, 2, 3, 4, 5, 6]),
        (40, [0, 1, 2, 3, 12, 13, 14, 15, 24, 25, 26, 27, 36, 37, 38, 39]),
        (1000, [*range(4), *range(332, 336), *range(664, 668), *range(996, 1000)]),
        (2000, [*range(4), *range(332, 336), *range(664, 668), *range(996, 1000)]),
    ],
)
def test_a_sample_is_spread_and_reads_no_more(server, monkeypatch, count, expected):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    before = container.traffic
    index, rows = container.sample(NAME, count)
    assert index.tolist() == expected
    assert same(rows, EMBEDDING[expected])
    assert container.traffic - before <= 16 * 64 * 2
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(hub.open_repo(REPO).sample(NAME, count)[1], rows)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert same(container.read(NAME), EMBEDDING)


@pytest.mark.parametrize(("dtype", "rows"), [(torch.bfloat16, 16), (torch.float32, 8), (torch.float64, 4)])
def test_a_sample_of_wide_rows_is_small(server, dtype, rows):
    wide = matrix(40, 16384, dtype)
    server.add(REPO, {SINGLE: single({NAME: wide})})
    container = hub.open_repo(REPO)
    before = container.traffic
    index, found = container.sample(NAME, 40)
    assert same(found, wide[index]) and len(index) == rows
    assert (index[0], index[-1]) == (0, 39)
    assert container.traffic - before <= SLACK / 2


@pytest.mark.parametrize("shape", [(), (300,), (300, 1), (3, 2), (150, 4)])
def test_a_sample_of_float8_is_scaled_by_its_own_rows(server, shape):
    weight = matrix(300, 200, torch.float32).to(torch.float8_e4m3fn)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    server.add(REPO, {SINGLE: single({NAME: weight, f"{NAME}_scale": scale, "z.last": ballast()})})
    container = hub.open_repo(REPO)
    before = container.traffic
    index, rows = container.sample(NAME, 300)
    assert container.traffic - before <= 16 * (200 + 16)
    assert torch.equal(rows, container.read(NAME)[index])


def test_an_empty_tensor_and_a_number(server):
    server.add(REPO, {SINGLE: single({"none": torch.zeros(0, 4), "one": torch.tensor(3.0)})})
    container = hub.open_repo(REPO)
    assert container.read("none").shape == (0, 4)
    assert container.read("one") == 3.0


def test_the_token_stays_with_the_hub(server):
    Path(constants.HF_TOKEN_PATH).parent.mkdir(parents=True)
    Path(constants.HF_TOKEN_PATH).write_text("hf_secret")
    server.cdn = True
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    assert {exchange.token for exchange in server.asked("/resolve/")} == {"hf_secret"}
    assert server.asked("/cdn/") and {exchange.token for exchange in server.asked("/cdn/")} == {None}


def test_a_renamed_repository(server):
    server.add("new/home", sharded([{"a": ballast()}, {NAME: EMBEDDING}]))
    server.renamed = {REPO: "new/home"}
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


def test_provenance_lies_beside_the_tensor(server):
    commit = server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    container.read(NAME)
    assert container.path == Path(constants.HF_ASSETS_CACHE) / "repcap" / "owner--name" / commit
    with safe_open(container.path / f"{NAME}.safetensors", framework="pt") as file:
        assert list(file.keys()) == [NAME]
        assert file.metadata()["commit"] == commit
    record = json.loads((container.path / f"{NAME}.json").read_text())
    assert record["repo_id"] == REPO and record["commit"] == commit and record["file"] == SINGLE
    start, stop = record["bytes"]
    assert server.repos[REPO].commits[commit][SINGLE][start:stop] == bytes(EMBEDDING.view(torch.uint8).numpy())
    assert not list(container.path.glob("*.part*"))


def test_load_takes_a_hub_id(server):
    commit = server.add(REPO, sharded([{"a": ballast()}, {NAME: EMBEDDING}]))
    embedding = embeddings.load(f"{REPO}@{commit}")
    assert same(embedding.weight, EMBEDDING)
    assert embedding.name == REPO
    assert embedding.provenance["source"] == "hub"
    assert embedding.provenance["revision"] == commit
    assert EMBEDDING.numel() * 2 <= embedding.provenance["traffic"] <= server.sent <= EMBEDDING.numel() * 2 + FEW


def test_an_equal_head_costs_no_second_tensor(server):
    server.add(REPO, {SINGLE: single({NAME: EMBEDDING, "lm_head.weight": EMBEDDING.clone()})})
    size = EMBEDDING.numel() * 2
    sampled = embeddings.load(REPO, unembedding=False)
    assert (sampled.head, sampled.tied, sampled.head_rows) == ("equal", True, 16)
    assert server.sent < 1.5 * size
    whole = embeddings.load(REPO)
    assert (whole.head, whole.head_rows, whole.unembedding) == ("equal", len(EMBEDDING), None)
    assert 2 * size <= server.sent < 2.5 * size


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_second_reading_needs_no_network(server):
    commit = server.add(REPO, {SINGLE: single(WEIGHTS), "config.json": b"{}"})
    assert hub.open_repo(REPO).config == {}
    hub.open_repo(REPO).read(NAME)
    server.log.clear()
    assert same(hub.open_repo(REPO, revision=commit).read(NAME), EMBEDDING)
    assert not server.log
    container = hub.open_repo(REPO)
    assert same(container.read(NAME), EMBEDDING)
    assert container.traffic == 0
    assert not server.asked("/resolve/") and len(server.asked("/api/models/")) == 1, "the branch is looked up, no more"


@pytest.mark.parametrize("revision", [None, "main", "commit"])
def test_offline_reads_the_cache(server, monkeypatch, revision):
    commit = server.add(REPO, sharded([{"a": ballast()}, {NAME: EMBEDDING}]) | {"config.json": b'{"a": 1}'})
    first = hub.open_repo(REPO)
    first.read(NAME)
    assert first.config == {"a": 1}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.log.clear()
    container = hub.open_repo(REPO, revision=commit if revision == "commit" else revision)
    assert same(container.read(NAME), EMBEDDING)
    assert container.config == {"a": 1}
    assert not server.log
    refused(lambda: container.read("a"), "HF_HUB_OFFLINE")


@pytest.mark.parametrize("revision", [None, "main", "0" * 40])
def test_offline_without_a_cache(server, monkeypatch, revision):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(lambda: hub.open_repo(REPO, revision=revision), "HF_HUB_OFFLINE", "not in the cache")
    assert not server.log


def test_offline_the_newest_revision_counts(server, monkeypatch):
    server.add(REPO, {SINGLE: single(WEIGHTS)}, branch="old")
    newest = server.add(REPO, {SINGLE: single({NAME: matrix(seed=1)})}, branch="new")
    for number, branch in enumerate(("old", "new")):
        path = hub.open_repo(REPO, revision=branch)
        path.read(NAME)
        os.utime(path.path / "repository.json", (1e9 + number, 1e9 + number))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.open_repo(REPO).revision == newest
    assert same(hub.open_repo(REPO, revision="old").read(NAME), EMBEDDING)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_copy_is_read_again(server, damage):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    path = hub.open_repo(REPO)
    path.read(NAME)
    copy = path.path / f"{NAME}.safetensors"
    content = copy.read_bytes()
    copy.write_bytes(content[:-1] if damage == "cut" else b"x" * len(content))
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


@pytest.mark.parametrize("record", ["repository.json", f"{SINGLE}.header.json"])
def test_damaged_records_are_written_anew(server, record):
    commit = server.add(REPO, {SINGLE: single(WEIGHTS)})
    path = hub.open_repo(REPO).path / record
    path.write_text('{"header": {"a"')
    assert same(hub.open_repo(REPO, revision=commit).read(NAME), EMBEDDING)


def test_two_readers_read_once(server):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    server.delay_s, server.slice_bytes = 0.002, 4096
    read: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: read.append(hub.open_repo(REPO).read(NAME))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [same(weight, EMBEDDING) for weight in read] == [True] * 3
    assert server.sent <= EMBEDDING.numel() * 2 + 3 * FEW


def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "file" / "assets"))
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    refused(lambda: hub.open_repo(REPO), "cannot write", "HF_HOME", "permissions")


def test_the_hubs_own_cache_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    server.add(REPO, sharded([{NAME: EMBEDDING}]))
    refused(lambda: hub.open_repo(REPO), "cannot write", "HF_HOME")


def test_a_full_disk(server, monkeypatch):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(hub.os, "fsync", full)
        refused(lambda: container.read(NAME), "No space left", "HF_HOME")
    assert not container.is_cached(NAME)
    assert same(container.read(NAME), EMBEDDING)


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_connection_cut_once_is_taken_up_again(server):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    before = server.sent
    server.troubles.append(Trouble(SINGLE, cut=CHUNK // 2, times=1))
    assert same(container.read(NAME), EMBEDDING)
    assert not server.troubles[0].times
    assert server.sent - before <= EMBEDDING.numel() * 2 + CHUNK


def test_a_line_that_breaks_for_good_resumes_later(server):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    size, before = EMBEDDING.numel() * 2, container.traffic
    server.troubles.append(Trouble(SINGLE, cut=6000))
    refused(lambda: container.read(NAME), "cannot read", "try again", "HF_ENDPOINT")
    first = container.traffic - before
    assert first > CHUNK // 2
    server.troubles.clear()
    container = hub.open_repo(REPO)
    assert same(container.read(NAME), EMBEDDING)
    assert size - first <= container.traffic <= size - first + CHUNK


def test_a_short_answer_is_completed(server):
    content = single(WEIGHTS)
    server.add(REPO, {SINGLE: content})
    server.troubles.append(Trouble(FILE, 206, {"Content-Range": f"bytes 0-7/{len(content)}"}, content[:3], times=1))
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


BIG_CHUNK = 1 << 21
KILLED = f"""
import os
from repcap_utils import hub
hub.CHUNK_BYTES = {BIG_CHUNK}
container = hub.open_repo("{REPO}")
hub._Remote.count = lambda _remote, size: os.write(1, b"%d\\n" % size)
container.read("{NAME}")
"""


def test_a_killed_reading_resumes(server, monkeypatch):
    weight = matrix(1 << 17, 64)
    size = weight.numel() * 2
    server.add(REPO, {SINGLE: single(WEIGHTS | {NAME: weight})})
    server.slice_bytes, server.delay_s = 1 << 15, 0.01
    environment = os.environ | {
        "HF_ENDPOINT": server.url,
        "HF_HOME": constants.HF_HOME,
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(paths.ROOT),
    }
    process = subprocess.Popen([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True)
    read = 0
    while read < size // 2:
        read += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    read += sum(map(int, process.stdout))
    process.stdout.close()
    assert size // 2 <= read < size
    server.delay_s = 0.0
    monkeypatch.setattr(hub, "CHUNK_BYTES", BIG_CHUNK)
    container = hub.open_repo(REPO)
    assert same(container.read(NAME), weight)
    assert size - read <= container.traffic <= size - read + BIG_CHUNK


def test_a_part_of_another_plan_is_thrown_away(server, monkeypatch):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    server.troubles.append(Trouble(SINGLE, cut=5000))
    refused(lambda: container.read(NAME))
    server.troubles.clear()
    monkeypatch.setattr(hub, "CHUNK_BYTES", CHUNK // 2)
    assert same(container.read(NAME), EMBEDDING)


def test_a_torn_record_costs_only_its_last_piece(server, monkeypatch):
    monkeypatch.setattr(hub, "WORKERS", 1)
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    container = hub.open_repo(REPO)
    server.troubles.append(Trouble(SINGLE, cut=3000))
    refused(lambda: container.read(NAME))
    record = container.path / f"{NAME}.part.pieces"
    pieces = record.read_text().split("\n")[1:-1]
    assert pieces == [str(piece) for piece in range(len(pieces))]
    record.write_text(record.read_text() + "1")
    refused(lambda: container.read(NAME))
    assert f"1{len(pieces)}" not in record.read_text().split("\n"), "the next piece was added to the torn line"
    server.troubles.clear()
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


# --- servers that refuse or misbehave ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Trouble(API, 401), ["login", "hf auth login"]),
        (Trouble(FILE, 401), ["login", "hf auth login"]),
        (Trouble(API, 401, {"X-Error-Code": "RepoNotFound"}), ["no such repository", "hf auth login"]),
        (Trouble(FILE, 401, {"X-Error-Code": "GatedRepo"}), ["restricted", "hf auth login", "/owner/name"]),
        (Trouble(FILE, 403, {"X-Error-Code": "GatedRepo"}), ["restricted (403)", "ask for it at", "/owner/name"]),
        (Trouble(FILE, 403), ["restricted (403)", "/owner/name"]),
        (Trouble(FILE, 404, {"X-Error-Code": "EntryNotFound"}), ["is not there", "model.safetensors"]),
        (Trouble(API, 404), ["no such repository", "owner/name"]),
        (Trouble(API, 410), ["no such repository"]),
        (Trouble(FILE, 429), ["429", "some minutes"]),
        (Trouble(FILE, 500), ["500", "HF_ENDPOINT", "try again"]),
        (Trouble(API, 503), ["503", "HF_ENDPOINT"]),
        (Trouble(API, 200, body=b"<html>a proxy"), ["not one of a hub", "HF_ENDPOINT"]),
        (Trouble(API, 200, body=b'{"id": "owner/name"}'), ["names no commit", "HF_ENDPOINT"]),
        (Trouble(FILE, 206, {"Content-Range": "bytes 5-12/100"}, b"12345678"), ["bytes 5-12/100", "HF_ENDPOINT"]),
        (Trouble(FILE, 206, {}, b"12345678"), ["'none'", "HF_ENDPOINT"]),
        (Trouble(FILE, 418), ["418"]),
    ],
)
def test_refusals_are_one_line(server, trouble, words):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    server.troubles.append(trouble)
    refused(lambda: hub.open_repo(REPO).read(NAME), REPO, *words)


def test_a_gated_index(server):
    server.add(REPO, sharded([{NAME: EMBEDDING}]))
    server.troubles.append(Trouble(INDEX, 403, {"X-Error-Code": "GatedRepo"}))
    refused(lambda: hub.open_repo(REPO), "restricted (403)", f"{server.url}/{REPO}")


@pytest.mark.parametrize("revision", ["nosuch", "0" * 40])
def test_no_such_revision(server, revision):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    refused(lambda: hub.open_repo(REPO, revision=revision), repr(revision))


def test_no_such_repository(server):
    refused(lambda: hub.open_repo(REPO), "no such repository", server.url)


def test_no_server(server, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(lambda: hub.open_repo(REPO), "HF_ENDPOINT is http://127.0.0.1:9")


@pytest.mark.parametrize("where", [API, FILE, SINGLE])
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_one_failure_then_success(server, where, status):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    server.troubles.append(Trouble(where, status, times=1))
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    assert not server.troubles[0].times


SMALL = {SINGLE: single(WEIGHTS), "config.json": b'{"vocab_size": 1000}', "tokenizer.json": b"{}"}


@pytest.mark.parametrize(
    "trouble",
    [Trouble(API, cut=5), Trouble("config.json", cut=5), Trouble("config.json", 429), Trouble("config.json", 500)],
)
def test_a_small_file_is_asked_for_again(server, trouble):
    server.add(REPO, SMALL)
    server.troubles.append(Trouble(**vars(trouble) | {"times": 1}))
    container = hub.open_repo(REPO)
    assert container.config == {"vocab_size": 1000}
    assert same(container.read(NAME), EMBEDDING)
    assert not server.troubles[0].times


def test_a_line_lost_before_a_small_file_is_taken_up_again(server, monkeypatch):
    server.add(REPO, SMALL)
    container, download, lost = hub.open_repo(REPO), hub.hf_hub_download, [1, 1]

    def breaking(*args, **options):
        if lost:
            lost.pop()
            try:
                raise HTTPError("Server disconnected without sending a response.")
            except HTTPError as error:
                raise LocalEntryNotFoundError("no connection") from error
        return download(*args, **options)

    monkeypatch.setattr(hub, "hf_hub_download", breaking)
    assert container.config == {"vocab_size": 1000}
    assert not lost


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (404, {}, "is not there (404)"),
        (404, {"X-Error-Code": "RepoNotFound"}, "is not there (404)"),
        (410, {}, "is not there (410)"),
        (401, {"X-Error-Code": "RepoNotFound"}, "wants a login"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", SINGLE])
def test_a_repository_that_was_listed_is_not_said_to_be_absent(server, status, headers, words, file):
    server.add(REPO, SMALL)
    server.troubles.append(Trouble(f"{FILE}.*{file}", status, headers))
    message = refused(lambda: hub.open_repo(REPO).config, file, words)
    assert "no such repository" not in message


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_tokenizer_that_cannot_be_had_is_no_error_of_the_weights(server, monkeypatch, status):
    monkeypatch.setattr(hub.time, "sleep", lambda _seconds: None)
    server.add(REPO, SMALL)
    server.troubles.append(Trouble("tokenizer.json", status))
    with pytest.raises(containers.VocabularyError, match=r"tokenizer.json"):
        embeddings.load(REPO)
    assert same(embeddings.load(REPO, tokens=False).weight, EMBEDDING)


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("100000", 60.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.01)])
def test_retry_after_is_honoured(server, monkeypatch, asked, waited):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    server.troubles.append(Trouble(FILE, 429, {"Retry-After": asked}, times=1))
    pauses: list[float] = []
    monkeypatch.setattr(hub.time, "sleep", pauses.append)
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    assert pauses == [waited]


def test_a_large_file_is_not_downloaded_from_a_server_without_ranges(server):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    server.ignores_ranges = True
    container = hub.open_repo(REPO)
    refused(lambda: container.read(NAME), "ignores byte ranges", "HF_ENDPOINT")
    refused(lambda: container.sample(NAME, 10), "ignores byte ranges", "HF_ENDPOINT")
    assert container.traffic <= SLACK


def test_a_small_file_is_read_from_a_server_without_ranges(server):
    server.add(REPO, {SINGLE: single({"a": matrix(10, 10), NAME: EMBEDDING, "z": matrix(10, 10)})})
    server.ignores_ranges = True
    container = hub.open_repo(REPO)
    assert same(container.sample(NAME, 10)[1], EMBEDDING[:10])
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    assert container.traffic <= EMBEDDING.numel() * 2 + 2 * server.slice_bytes + FEW
    server.add("owner/cut", {SINGLE: single({NAME: EMBEDDING})})
    hub.open_repo("owner/cut")
    server.troubles.append(Trouble("owner/cut.*safetensors", cut=50_000, times=5))
    assert same(hub.open_repo("owner/cut").read(NAME), EMBEDDING)


# --- large indices ----------------------------------------------------------------------------------------------------

EXPERTS = [
    f"model.layers.{i}.mlp.experts.{j}.{part}_proj.weight" for i in range(40) for j in range(256) for part in "abc"
]
"""Tensors of a mixture of experts, as many as make an index of 3 MB; the files of their shards are not there."""
FIRST, OUTER, INNER, LAST = (f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4))


def experts(before: dict, after: dict, *, among: dict | None = None, indent: int | None = 2) -> dict[str, bytes]:
    """A repository with some tensors named before those of EXPERTS in its index, among them, and after them.

    The shard INNER is named in the middle alone.
    """
    part = len(EXPERTS) // 4
    shards = {FIRST: before, OUTER: {}, INNER: among or {}, LAST: after}
    inner = [*EXPERTS[part : 2 * part], *(among or {}), *EXPERTS[2 * part : -part]]
    weight_map = dict.fromkeys(before, FIRST) | dict.fromkeys(EXPERTS[:part], OUTER) | dict.fromkeys(inner, INNER)
    weight_map |= dict.fromkeys(EXPERTS[-part:], OUTER) | dict.fromkeys(after, LAST)
    files = {file: single(tensors or {"none": torch.zeros(1)}) for file, tensors in shards.items()}
    content = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return files | {INDEX: json.dumps(content, indent=indent).encode()}


def index_bytes(server) -> int:
    return sum(exchange.sent for exchange in server.asked(INDEX))


HEAD = matrix(seed=3)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({NAME: EMBEDDING}, {"lm_head.weight": HEAD}),
        ({"lm_head.weight": HEAD, NAME: EMBEDDING}, {"model.norm.weight": torch.ones(64)}),
        ({"lm_head.weight": HEAD}, {NAME: EMBEDDING}),
    ],
)
def test_the_ends_of_a_large_index_are_enough(server, before, after, indent):
    files = experts(before, after, indent=indent)
    server.add(REPO, files)
    assert len(files[INDEX]) > 2.5e6
    found = embeddings.load(REPO, unembedding=False)
    assert same(found.weight, EMBEDDING) and found.head == "different"
    assert found.provenance["traffic"] <= server.sent <= EMBEDDING.numel() * 2 + 10**6 / 2
    assert index_bytes(server) == 256 << 10
    rest = found.provenance["traffic"] - found.provenance["needed_bytes"]
    assert 0 <= rest - 16 * 64 * 2 < 200, "the sample of the head, and the header of its shard"
    assert found.provenance["total_bytes"] == sum(len(content) for file, content in files.items() if file != INDEX)
    (note,) = found.notes
    assert f"{(len(files[INDEX]) - (256 << 10)) / 1e6:.1f} MB" in note
    before = server.sent
    again = embeddings.load(REPO, unembedding=False)
    assert again.provenance["traffic"] == 0 and again.provenance["needed_bytes"] == found.provenance["needed_bytes"]
    assert server.sent - before < FEW, "the listing alone"


def test_a_large_index_that_is_cached_whole_is_used_whole(server):
    server.add(REPO, experts({NAME: EMBEDDING}, {}, among={"lm_head.weight": HEAD}))
    assert embeddings.load(REPO, unembedding=False).head == "not compared"
    assert hub.open_repo(REPO).complete()
    found = embeddings.load(REPO, unembedding=False)
    assert found.head == "different" and found.notes == ()


@pytest.mark.parametrize("rival", ["mtp.embed_tokens.weight", "text_encoder.embed_tokens.weight"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_lesser_name_at_an_end_does_not_hide_the_embedding_in_the_middle(server, rival, is_first):
    ends = ({rival: HEAD}, {}) if is_first else ({}, {rival: HEAD})
    server.add(REPO, experts(*ends, among={NAME: EMBEDDING}))
    found = embeddings.load(REPO, unembedding=False)
    assert found.provenance["tensor"] == NAME and same(found.weight, EMBEDDING)


def test_an_equal_rival_at_an_end_is_told_from_the_embedding_in_the_middle(server):
    server.add(REPO, experts({"shared.weight": HEAD}, {}, among={NAME: EMBEDDING}))
    refused(lambda: embeddings.load(REPO), "several models", NAME, "shared.weight", "--tensor")


def test_a_head_that_may_stand_in_the_middle_is_not_called_absent(server):
    server.add(REPO, experts({NAME: EMBEDDING}, {}, among={"lm_head.weight": HEAD}))
    found = embeddings.load(REPO, unembedding=False)
    assert (found.head, found.tied) == ("not compared", None)
    assert index_bytes(server) == 256 << 10
    whole = embeddings.load(REPO)
    assert (whole.head, whole.tied) == ("different", False) and same(whole.unembedding, HEAD)


def test_an_index_in_the_order_of_names_tells_that_there_is_no_head(server, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "EXPERTS", sorted(EXPERTS))
    server.add(REPO, experts({NAME: EMBEDDING}, {"model.norm.weight": torch.ones(64)}))
    found = embeddings.load(REPO, unembedding=False)
    assert (found.head, found.tied) == ("absent", True)
    assert index_bytes(server) == 256 << 10


@pytest.mark.parametrize("name", ["lm\\u005fhead.weight", "lm_head\xff.weight"])
def test_ends_that_cannot_be_understood_are_not_relied_on(server, name):
    files = experts({NAME: EMBEDDING}, {"LAST NAME": HEAD})
    files[INDEX] = files[INDEX].replace(b"LAST NAME", name.encode("latin-1"))
    files[LAST] = single({"lm_head.weight": HEAD})
    server.add(REPO, files)
    if "\xff" in name:
        refused(lambda: embeddings.load(REPO), INDEX, "not JSON")
    else:
        assert embeddings.load(REPO, unembedding=False).head == "different"


@pytest.mark.parametrize("content", ["{", "[]", '{"first": {"a": 3}, "last": {"b": "c"}}', '{"first": {}, "last": {}}'])
def test_a_damaged_record_of_the_ends_is_read_anew(server, content):
    server.add(REPO, experts({NAME: EMBEDDING}, {"lm_head.weight": HEAD}))
    container = hub.open_repo(REPO)
    (record,) = container.path.glob("*.ends.json")
    record.write_text(content)
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


def test_the_shards_of_a_large_index_are_not_guessed(server):
    files = experts({NAME: EMBEDDING}, {"lm_head.weight": HEAD})
    renamed = {name.replace("-of-00004", ""): content for name, content in files.items() if name != INDEX}
    server.add(REPO, renamed | {INDEX: files[INDEX].replace(b"-of-00004", b"")})
    container = hub.open_repo(REPO)
    assert same(container.read(NAME), EMBEDDING) and container.total_bytes is None
    container.complete()
    assert container.total_bytes == sum(map(len, renamed.values()))


def test_the_middle_of_a_large_index_is_read_when_its_ends_name_no_embedding(server):
    files = experts({}, {"model.norm.weight": torch.ones(64)}, among={NAME: EMBEDDING})
    server.add(REPO, files)
    found = embeddings.load(REPO, unembedding=False)
    assert same(found.weight, EMBEDDING) and found.notes == ()
    assert found.provenance["traffic"] > len(files[INDEX])


def test_any_tensor_of_a_large_index_can_be_asked_for(server):
    server.add(REPO, experts({NAME: EMBEDDING}, {}, among={"model.aux.weight": HEAD}))
    assert same(hub.open_repo(REPO).read("model.aux.weight"), HEAD)
    assert same(embeddings.load(REPO, tensor="model.aux.weight", unembedding=False).weight, HEAD)
    refused(lambda: embeddings.load(REPO, tensor="model.no.weight"), "there is none")


def test_a_scale_in_the_middle_of_a_large_index(server):
    weight, scale = matrix(dtype=torch.float32).to(torch.float8_e4m3fn), torch.tensor(0.5)
    server.add(REPO, experts({NAME: weight}, {}, among={f"{NAME}_scale": scale}))
    assert same(hub.open_repo(REPO).read(NAME), weight.float() * 0.5)
    assert index_bytes(server) > 256 << 10


@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_a_scale_beside_its_weight_takes_no_more_of_the_index(server, suffix):
    weight, scale = matrix(dtype=torch.float32).to(torch.float8_e4m3fn), torch.tensor(0.5)
    server.add(REPO, experts({NAME: weight, f"{NAME}{suffix}": scale}, {}))
    assert same(hub.open_repo(REPO).read(NAME), weight.float() * 0.5)
    assert index_bytes(server) == 256 << 10


def test_a_large_index_without_ranges_is_read_whole(server):
    server.add(REPO, experts({NAME: EMBEDDING}, {}))
    server.ignores_ranges = True
    container = hub.open_repo(REPO)
    assert container.unread_index == 0 and set(EXPERTS) < set(container.names())


def test_a_large_index_offline(server, monkeypatch):
    server.add(REPO, experts({NAME: EMBEDDING}, {}))
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)
    refused(lambda: hub.open_repo(REPO).read("model.aux.weight"), "HF_HUB_OFFLINE", INDEX)


def test_a_large_file_that_is_no_index(server):
    server.add(REPO, {INDEX: b"<html>" + b"x" * (1 << 20)})
    refused(lambda: hub.open_repo(REPO), INDEX, "not JSON")


# --- damaged repositories ---------------------------------------------------------------------------------------------


def with_length(length: int) -> bytes:
    return struct.pack("<Q", length) + b"{}" * 500


def with_header(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (with_length(0), ["0 bytes"]),
        (with_length(2**63), ["9223372036854775808 bytes"]),
        (with_length(1001), ["1001 bytes of 1008"]),
        (with_length(1000), ["not JSON"]),
        (b"", ["(0 bytes)"]),
        (b"short", ["(5 bytes)"]),
        (b"<!DOCTYPE html><html>" + b" " * 100, ["an HTML page"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", ["a git-lfs pointer"]),
        (with_header([1, 2]), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": "two"}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"data_offsets": [16, 0]}}), ["not one of safetensors"]),
        (with_header({NAME: {"dtype": "F32"}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": "22"}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": [math.inf, 2]}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": [2.0, 2]}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": [True, 4]}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"data_offsets": [0, 16.0]}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"dtype": ["F32"]}}), ["not one of safetensors"]),
        (with_header({NAME: ENTRY | {"shape": [2, 3]}}), ["do not fit", NAME]),
        (with_header({NAME: ENTRY | {"shape": [25, 4], "data_offsets": [0, 400]}}), ["do not fit", NAME]),
    ],
)
def test_damaged_files_are_refused(server, content, words):
    server.add(REPO, {SINGLE: content})
    refused(lambda: hub.open_repo(REPO), REPO, SINGLE, *words)


def test_a_header_larger_than_any_is_not_read(server, monkeypatch):
    monkeypatch.setattr(hub, "MAX_HEADER_BYTES", 1000)
    server.add(REPO, {SINGLE: single(WEIGHTS, pad_to=1001)})
    refused(lambda: hub.open_repo(REPO), "its header would be 1001 bytes")


def test_the_index_names_a_missing_shard(server):
    files = sharded([{"a": ballast()}, {NAME: EMBEDDING}])
    del files["model-00002-of-00002.safetensors"]
    server.add(REPO, files)
    container = hub.open_repo(REPO)
    refused(lambda: container.read(NAME), "model-00002-of-00002.safetensors", "lacks")
    assert container.total_bytes is None


def test_the_index_names_a_tensor_that_its_shard_lacks(server):
    files = sharded([{"a": ballast()}, {NAME: EMBEDDING}])
    files[INDEX] = files[INDEX].replace(b"00002-of-00002", b"00001-of-00002")
    server.add(REPO, files)
    refused(lambda: hub.open_repo(REPO).read(NAME), "though the index says so", "model-00001-of-00002")


@pytest.mark.parametrize("index", [b"<html>", b"[]", b"{}", b'{"weight_map": 3}'])
def test_a_damaged_index(server, index):
    server.add(REPO, {INDEX: index})
    refused(lambda: hub.open_repo(REPO), INDEX)


def test_no_such_tensor_lists_candidates(server):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    refused(lambda: hub.open_repo(REPO).read("nosuch"), "'nosuch'", NAME, "--tensor")


def test_integers_are_refused(server):
    server.add(REPO, {SINGLE: single({"a": torch.zeros(4, 4, dtype=torch.int32)})})
    refused(lambda: hub.open_repo(REPO).read("a"), "I32", "bfloat16")


def test_several_files_without_an_index_are_listed(server):
    server.add(REPO, {"one.safetensors": single(WEIGHTS), "two.safetensors": single(WEIGHTS)})
    refused(lambda: hub.open_repo(REPO), "no index", "one.safetensors, two.safetensors", "hf download")


def test_a_mistyped_path_is_said_to_be_none(server):
    refused(lambda: embeddings.load("models/foo"), "no such repository", "no such path here")


def test_no_weights(server):
    server.add(REPO, {"README.md": b"#", "x.gguf": b"GGUF"})
    refused(lambda: hub.open_repo(REPO), "no weights", "hf download")


def test_a_lone_file_of_another_name(server):
    server.add(REPO, {"consolidated.safetensors": single(WEIGHTS), "sub/other.safetensors": b""})
    assert same(hub.open_repo(REPO).read(NAME), EMBEDDING)


# --- float8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("suffix", "shape"),
    [
        ("_scale_inv", (3, 2)),
        ("_scale", ()),
        ("_scale", (1,)),
        ("_scale", (300,)),
        ("_scale", (300, 1)),
        ("_scale", (150, 4)),
    ],
)
def test_float8_is_scaled(server, dtype, suffix, shape):
    weight = matrix(300, 200, torch.float32).to(dtype)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    server.add(REPO, sharded([{NAME: weight}, {NAME + suffix: scale}]))
    container = hub.open_repo(REPO)
    value = container.read(NAME)
    sides = {(3, 2): (128, 128), (150, 4): (2, 50), (300,): (1, 200), (300, 1): (1, 200)}.get(shape, (300, 200))
    grid = scale.reshape(scale.shape[0], -1) if scale.ndim else scale.reshape(1, 1)
    expected = torch.stack([weight[i].float() * grid[i // sides[0], torch.arange(200) // sides[1]] for i in range(300)])
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert (
        container.entry(NAME).storage == {torch.float8_e4m3fn: "float8_e4m3", torch.float8_e5m2: "float8_e5m2"}[dtype]
    )
    assert container.byte_count(NAME) == weight.numel() + 4 * scale.numel()


def test_float8_without_a_scale_is_cast(server):
    weight = matrix(30, 20, torch.float32).to(torch.float8_e4m3fn)
    server.add(REPO, {SINGLE: single({NAME: weight})})
    assert torch.equal(hub.open_repo(REPO).read(NAME), weight.float())


@pytest.mark.parametrize("shape", [(7, 3), (400, 1), (2, 2, 2), (301,)])
def test_a_scale_that_does_not_fit(server, shape):
    server.add(
        REPO,
        {
            SINGLE: single(
                {NAME: matrix(300, 200, torch.float32).to(torch.float8_e4m3fn), f"{NAME}_scale": torch.ones(shape)}
            )
        },
    )
    refused(lambda: hub.open_repo(REPO).read(NAME), NAME, f"scale of shape {shape}")


# --- pickled weights --------------------------------------------------------------------------------------------------


def pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def pickled_shards() -> dict[str, bytes]:
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    weight_map = {"a": names[0], NAME: names[1]}
    return {
        names[0]: pickled({"a": ballast()}),
        names[1]: pickled({NAME: EMBEDDING}),
        "pytorch_model.bin.index.json": json.dumps({"weight_map": weight_map}).encode(),
    }


@pytest.mark.parametrize("files", [{"pytorch_model.bin": pickled({NAME: EMBEDDING})}, pickled_shards()])
def test_pickled_weights_are_refused_unless_allowed(server, files):
    server.add(REPO, files)
    refused(lambda: hub.open_repo(REPO), "pickled weights only", "--allow-download")
    assert not server.asked(FILE)
    container = hub.open_repo(REPO, allow_download=True)
    assert container.format == "pytorch"
    assert same(container.read(NAME), EMBEDDING)
    assert container.entry(NAME) == ((1000, 64), "bfloat16")
    assert not server.asked("00001-of")
    assert container.traffic == server.sent - sum(exchange.sent for exchange in server.asked("/api/"))


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_a_pickle_that_runs_code_is_refused(server):
    server.add(REPO, {"pytorch_model.bin": pickled({NAME: Bomb()})})
    refused(lambda: hub.open_repo(REPO, allow_download=True).read(NAME), "pytorch_model.bin")


def test_safetensors_are_preferred(server):
    server.add(REPO, {SINGLE: single({NAME: EMBEDDING}), "pytorch_model.bin": pickled({NAME: matrix(seed=3)})})
    assert same(hub.open_repo(REPO, allow_download=True).read(NAME), EMBEDDING)


# --- vocabulary -------------------------------------------------------------------------------------------------------


VOCABULARY = json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}).encode()


def test_tokens(server):
    server.add(REPO, {SINGLE: single(WEIGHTS), "tokenizer.json": VOCABULARY, "vocab.json": b"{}"})
    container = hub.open_repo(REPO)
    before = container.traffic
    assert not server.asked("tokenizer.json"), "only when asked for"
    assert container.tokens() == {0: "a", 1: "b", 2: "<s>"}
    assert container.tokenizer_traffic == len(VOCABULARY)
    assert container.traffic == before


def test_no_tokens(server, monkeypatch):
    server.add(REPO, {SINGLE: single(WEIGHTS)})
    assert hub.open_repo(REPO).tokens() is None
    server.add("owner/other", {SINGLE: single(WEIGHTS), "tokenizer.json": VOCABULARY})
    hub.open_repo("owner/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.open_repo("owner/other").tokens() is None


# --- ids and the pre-flight -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("Qwen/Qwen2.5-0.5B@main", True),
        ("openai-community/gpt2@607a30d783dfa663caf39e06633721c8d4cfcd7e", True),
        ("gpt2", False),
        ("a/b/c", False),
        ("/a/b", False),
        ("./b", False),
        ("~/b", False),
        ("folder/model.gguf", False),
        ("folder/model.safetensors", False),
        ("a b/c", False),
        ("a/b\0", False),
        ("a/" + "b" * 5000, False),
        ("", False),
        ("@main", False),
    ],
)
def test_is_repo_id(text, expected):
    assert hub.is_repo_id(text) is expected


def test_a_path_is_no_repo_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.is_repo_id("data/model")
    (tmp_path / "data" / "model").mkdir(parents=True)
    assert not hub.is_repo_id("data/model")


def test_two_revisions_are_refused(server):
    refused(lambda: hub.open_repo(f"{REPO}@a", revision="b"), "'a'", "'b'")
    refused(lambda: hub.open_repo("gpt2"), "owner/name")


def choose(container: hub.HubContainer) -> str:
    if NAME not in container.names():
        raise RepcapError("no tensor")
    return NAME


def test_preflight_of_a_model(server):
    files = sharded([{"a": ballast()}, {NAME: EMBEDDING}])
    commit = server.add(REPO, files)
    plan = hub.preflight(REPO, choose)
    total = sum(len(content) for name, content in files.items() if name != INDEX)
    assert plan == hub.Preflight(
        REPO, commit, "reachable", NAME, (1000, 64), "bfloat16", EMBEDDING.numel() * 2, False, total, ""
    )
    assert server.sent < FEW, "index and header only"
    hub.open_repo(REPO).read(NAME)
    assert hub.preflight(REPO, choose).cached


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (Trouble(FILE, 403, {"X-Error-Code": "GatedRepo"}), "gated"),
        (Trouble(FILE, 401, {"X-Error-Code": "GatedRepo"}), "gated"),
        (Trouble(API, 401), "gated"),
        (Trouble(API, 404, {"X-Error-Code": "RepoNotFound"}), "absent"),
        (Trouble(API, 401, {"X-Error-Code": "RepoNotFound"}), "absent"),
        (Trouble(API, 503), "unreachable"),
        (Trouble(FILE, 500), "unreachable"),
    ],
)
@pytest.mark.parametrize("files", [{SINGLE: single(WEIGHTS)}, sharded([{"a": ballast()}, {NAME: EMBEDDING}])])
def test_preflight_of_a_refusal(server, monkeypatch, trouble, status, files):
    monkeypatch.setattr(hub.time, "sleep", lambda _seconds: None)
    server.add(REPO, files)
    server.troubles.append(Trouble(**vars(trouble)))
    plan = hub.preflight(REPO, choose)
    assert plan.status == status
    assert plan.reason and "\n" not in plan.reason
    assert plan.bytes_to_read is None


def test_preflight_of_what_cannot_be_read(server):
    server.add("owner/pickled", pickled_shards())
    plan = hub.preflight("owner/pickled", choose)
    assert plan.status == "pickled only"
    assert plan.total_bytes == sum(len(content) for name, content in pickled_shards().items() if name.endswith(".bin"))
    assert "--allow-download" in plan.reason
    server.add("owner/empty", {"README.md": b""})
    assert hub.preflight("owner/empty", choose).status == "absent"
    server.add("owner/damaged", {SINGLE: with_length(0)})
    plan = hub.preflight("owner/damaged", choose)
    assert (plan.status, plan.bytes_to_read) == ("reachable", None)
    assert "not an intact safetensors file" in plan.reason
    server.add("owner/strange", {SINGLE: single({"x": EMBEDDING})})
    plan = hub.preflight("owner/strange", choose)
    assert (plan.status, plan.tensor) == ("reachable", None)
    assert "no tensor" in plan.reason


@pytest.mark.parametrize("names", [("encoder.token_table", "decoder.tok"), ("first", "second")])
def test_listing_what_could_be_meant_costs_no_header(server, names):
    server.add(REPO, sharded([{name: ballast(100)} for name in names]))
    with pytest.raises(RepcapError, match="no token embedding under a known name") as error:
        embeddings.load(REPO)
    assert all(name in str(error.value) for name in names)
    assert str(error.value).startswith(f"{REPO}@")
    assert not [exchange for exchange in server.asked("/resolve/") if exchange.path.endswith(".safetensors")]


def test_a_head_costs_little_however_wide_the_model_is(server):
    wide, head = matrix(40, 16384), matrix(40, 16384, seed=1)
    config = json.dumps({"vocab_size": 40, "hidden_size": 16384}).encode()
    server.add(REPO, sharded([{NAME: wide}, {"lm_head.weight": head}]) | {"config.json": config})
    assert embeddings.load(REPO, unembedding=False).head == "different"
    assert server.sent <= wide.nbytes + 16 * 16384 * 2 + FEW


def heads(**tensors: torch.Tensor) -> dict[str, bytes]:
    config = json.dumps({"vocab_size": 1000, "hidden_size": 64}).encode()
    return {SINGLE: single(tensors), "config.json": config}


def test_an_equal_start_does_not_make_a_head_equal(server):
    head = EMBEDDING.clone()
    head[16:] = matrix(seed=5)[16:]
    server.add(REPO, heads(**{NAME: EMBEDDING, "lm_head.weight": head}))
    assert (embeddings.load(REPO, unembedding=False).head, embeddings.load(REPO).head) == ("different", "different")


def test_a_head_in_float8_is_sampled(server):
    weight, head = (matrix(20000, 64, torch.float32, seed).to(torch.float8_e4m3fn) for seed in (0, 1))
    server.add(REPO, heads(**{NAME: weight, "lm_head.weight": head}))
    assert embeddings.load(REPO, unembedding=False).head == "different"
    assert server.sent <= weight.numel() + 16 * 64 + FEW


@pytest.mark.parametrize("turned", [False, True])
def test_a_transposed_head_is_compared_on_request_alone(server, turned):
    weight = EMBEDDING.T.contiguous() if turned else EMBEDDING
    server.add(REPO, heads(**{NAME: weight, "lm_head.weight": EMBEDDING.T.contiguous()}))
    found = embeddings.load(REPO, unembedding=False)
    assert (found.head, found.tied, found.provenance["transposed"]) == ("not compared", None, turned)
    assert server.sent <= weight.nbytes + FEW
    assert embeddings.load(REPO).head == "equal"


def test_no_pickled_shard_is_fetched_for_the_head_alone(server):
    files = pickled_shards()
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    files[names[0]] = pickled({"lm_head.weight": ballast()})
    weight_map = {"lm_head.weight": names[0], NAME: names[1]}
    files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    server.add(REPO, files)
    found = embeddings.load(REPO, allow_download=True, unembedding=False)
    assert (found.head, found.tied) == ("not compared", None)
    assert not server.asked("00001-of")
    assert found.provenance["needed_bytes"] == found.provenance["traffic"]
    assert embeddings.load(REPO, allow_download=True).head == "different"


def test_needed_bytes_do_not_depend_on_the_cache(server):
    files = sharded([{"a": ballast()}, {NAME: EMBEDDING, "lm_head.weight": EMBEDDING.clone()}])
    server.add(REPO, files | {"config.json": b'{"vocab_size": 1000, "hidden_size": 64}'})
    first = embeddings.load(REPO, unembedding=False).provenance
    again = embeddings.load(REPO, unembedding=False).provenance
    assert first["needed_bytes"] == again["needed_bytes"] == first["traffic"] - 16 * 64 * 2
    assert again["traffic"] == 0


def test_a_home_that_is_a_file_is_told(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "file" / "token"))
    refused(lambda: hub.open_repo(REPO), "Not a directory", "set HF_HOME")
