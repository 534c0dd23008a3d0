"""Fine-tunes as models of their own: does each say what its merged weights say, all out of one instance of their base?

Everything over HTTP, in f32, greedily: an answer is right or wrong.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon_process import EXACT, PATIENT, DaemonProcess
from goldens.adapters import adapter_config, merged_into, seeded_adapter
from streams import ask

BASE = "tiny-llama"
CONFIGS = {
    "poet": adapter_config(rank=4, alpha=8, base_model_name_or_path="someone/Tiny-Llama"),
    "clerk": adapter_config(rank=3, alpha=6, targets=("q_proj", "v_proj")),
    "judge": adapter_config(rank=8, alpha=8, targets=("up_proj", "down_proj", "o_proj")),
}
NAMES = (BASE, *CONFIGS)
TWO_NODES = '[[nodes]]\nid = "cpu0"\ncores = "0"\n[[nodes]]\nid = "cpu1"\ncores = "1"\n'
TWO_SLOTS = "[adapters]\nslots = 2\nmost_rank = 8\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> dict[str, Path]:
    """Adapters by name, and `NAME-merged` checkpoints."""
    directory, base = tmp_path_factory.mktemp("adapters"), tiny_models_dir / BASE
    config = json.loads((base / "config.json").read_text())
    made = {BASE: base}
    for seed, (name, described) in enumerate(CONFIGS.items()):
        made[name] = seeded_adapter(directory / name, config, seed, config=described)
        made[f"{name}-merged"] = merged_into(directory / f"{name}-merged", base, described, seed)
    made["wide"] = seeded_adapter(directory / "wide", config, 9, config=adapter_config(rank=9))
    return made


@pytest.fixture(scope="module")
def served(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """The base, loaded before its first adapter comes, and merged weights as models of their own."""
    models = [files[BASE], *(files[f"{name}-merged"] for name in CONFIGS)]
    with DaemonProcess(tmp_path_factory.mktemp("state"), models, settings=EXACT + PATIENT + TWO_SLOTS) as one:
        yield one
    assert "Traceback" not in one.log


@pytest.fixture(scope="module")
def expected(served: DaemonProcess) -> dict[tuple[str, int], str]:
    """What merged weights say."""
    merged = {name: name if name == BASE else f"{name}-merged" for name in NAMES}
    calls = [(name, number) for name in NAMES for number in (0, 1)]
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = pool.map(lambda call: ask(served, merged[call[0]], call[1]), calls)
        said = dict(zip(calls, answers, strict=True))
    assert len(set(said.values())) == len(said)
    return said


def instances(daemon: DaemonProcess) -> list[str]:
    return [row["id"] for row in daemon.http.get("/api/v1/instances").json() if row["model"] == BASE]


@pytest.fixture(scope="module")
def daemon(
    served: DaemonProcess, files: dict[str, Path], expected: dict[tuple[str, int], str]
) -> Iterator[DaemonProcess]:
    assert expected
    before = instances(served)
    for name in CONFIGS:
        # The first says itself what it was made for.
        add(served, files[name], **({} if name == "poet" else {"base": BASE}))
        assert served.http.delete(f"/api/v1/models/{name}-merged").status_code == 204
    yield served
    assert before
    assert set(before).isdisjoint(instances(served))


def add(daemon: DaemonProcess, path: Path, name: str = "", **more: object) -> dict[str, object]:
    body = {"name": name or path.name, "path": str(path), **more}
    answer = daemon.http.post("/api/v1/models", json=body)
    assert answer.status_code == 201, answer.text
    row: dict[str, object] = answer.json()
    return row


def refused(daemon: DaemonProcess, path: Path, name: str = "", **more: object) -> str:
    answer = daemon.http.post("/api/v1/models", json={"name": name or path.name, "path": str(path), **more})
    assert answer.status_code == 400
    message: str = answer.json()["error"]["message"]
    return message


def everybody(daemon: DaemonProcess, pool: ThreadPoolExecutor) -> dict[tuple[str, int], str]:
    running = {(name, number): pool.submit(ask, daemon, name, number) for name in NAMES for number in (0, 1)}
    return {key: one.result() for key, one in running.items()}


def wait_until_one_has_said_something(daemon: DaemonProcess, running: list[Future[str]]) -> None:
    """On a slow machine all of them may be over before anybody looks."""
    while not all(one.done() for one in running):
        if any(row["tokens_out"] > 40 for row in daemon.http.get("/api/v1/requests").json()):
            return
        time.sleep(0.002)


def test_all_of_them_at_once_say_what_merged_weights_say(
    daemon: DaemonProcess, expected: dict[tuple[str, int], str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert everybody(daemon, pool) == expected
        running = [pool.submit(ask, daemon, name, number) for name in NAMES for number in (0, 1)]
        wait_until_one_has_said_something(daemon, running)
        for pid in daemon.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert [one.result() for one in running] == list(expected.values())
    assert len(instances(daemon)) == 1


@pytest.mark.usefixtures("leases")
def test_files_that_are_cut_short_disturb_no_stream(
    daemon: DaemonProcess, expected: dict[tuple[str, int], str], files: dict[str, Path]
) -> None:
    weights = [files[name] / "adapter_model.safetensors" for name in CONFIGS]
    contents, workers = [one.read_bytes() for one in weights], daemon.worker_pids()
    with ThreadPoolExecutor(8) as pool:
        # Three take turns in two slots, so each is read again and again.
        running = [pool.submit(ask, daemon, name, number) for name in NAMES for number in (0, 1)]
        wait_until_one_has_said_something(daemon, running)
        for one in weights:
            os.truncate(one, 100)
        assert [one.result() for one in running] == list(expected.values())
    answer = daemon.http.post("/v1/completions", json={"model": "poet", "prompt": "a", "max_tokens": 1})
    assert "adapter_model.safetensors: is truncated" in answer.text
    for one, content in zip(weights, contents, strict=True):
        one.write_bytes(content)
    assert ask(daemon, "poet", 0) == expected["poet", 0]
    assert daemon.worker_pids() == workers


def test_they_are_listed_and_counted_under_their_own_names(daemon: DaemonProcess) -> None:
    ask(daemon, "clerk", 0)
    rows = {row["name"]: row for row in daemon.http.get("/api/v1/models").json()}
    assert {name: rows[name]["base"] for name in NAMES} == {BASE: "", "poet": BASE, "clerk": BASE, "judge": BASE}
    assert rows["clerk"]["state"] == rows[BASE]["state"] == "resident"
    # q and v of two layers, f32: rank 3 times (64 + 64) and (64 + 32).
    assert (rows["clerk"]["parameters"], rows["clerk"]["weight_bytes"]) == (2 * 3 * 224, 2 * 3 * 224 * 4)
    cards = {card["id"]: card["parent"] for card in daemon.http.get("/v1/models").json()["data"]}
    assert {name: cards[name] for name in NAMES} == {name: rows[name]["base"] or None for name in NAMES}
    used = {row["model"]: row["requests"] for row in daemon.http.get("/api/v1/usage").json()}
    assert used["clerk"] >= 1
    assert 'model="clerk"' in daemon.http.get("/metrics").text


def test_an_adapter_speaks_with_its_own_template_and_promise_if_it_has_them(
    daemon: DaemonProcess, files: dict[str, Path], tmp_path: Path, expected: dict[tuple[str, int], str]
) -> None:
    (tmp_path / "actor").mkdir()
    for file in files["poet"].iterdir():
        (tmp_path / "actor" / file.name).write_bytes(file.read_bytes())
    same = add(daemon, tmp_path / "actor", base=BASE, tpot_s=3.0)
    assert same["slo"] == {"ttft_s": 60.0, "tpot_s": 3.0}
    assert ask(daemon, "actor", 0) == expected["poet", 0]
    (tmp_path / "actor" / "chat_template.jinja").write_text("number 1{# as if nobody had said anything #}")
    add(daemon, tmp_path / "actor", base=BASE)
    assert ask(daemon, "actor", 0) not in (expected["poet", 0], expected["poet", 1])
    assert daemon.http.delete("/api/v1/models/actor").status_code == 204
    answer = daemon.http.post(
        "/v1/chat/completions", json={"model": "actor", "messages": [{"role": "user", "content": "hi"}]}
    )
    assert answer.status_code == 404


def test_what_cannot_be_served_is_refused_when_it_is_added(
    daemon: DaemonProcess, files: dict[str, Path], tiny_models_dir: Path, tmp_path: Path
) -> None:
    assert refused(daemon, files["poet"], "x", base="tiny-lama") == (
        "base: there is no model 'tiny-lama'; did you mean 'tiny-llama'?"
    )
    assert refused(daemon, files["poet"], "x", base="clerk") == (
        "base: clerk is an adapter itself; name its base, tiny-llama"
    )
    assert refused(daemon, files["clerk"], "x") == (
        "base: clerk was made for someone/base, which is none of the models here; there are: tiny-llama; "
        "add it, or name it"
    )
    assert refused(daemon, files["wide"], base=BASE) == (
        "path: its rank is 9; slots have at most 8 (setting adapters.most_rank)"
    )
    assert refused(daemon, files["poet"], "x", base=BASE, kv="u8") == (
        "kv: an adapter is computed as its base is; leave it out"
    )
    assert refused(daemon, files["poet"], BASE, base=BASE) == (
        "name: tiny-llama is what its base is called; choose another name"
    )
    assert "is no adapter: it has no adapter_config.json" in refused(daemon, files[BASE], "x", base=BASE)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text(json.dumps(adapter_config(use_dora=True)))
    assert "`use_dora` is True; that is not computed" in refused(daemon, broken, base=BASE)
    other = add(daemon, tiny_models_dir / "tiny-qwen3")
    assert other["base"] == ""
    said = refused(daemon, files["poet"], "x", base="tiny-qwen3")
    assert said.endswith("(base: tiny-qwen3); it fits tiny-llama")
    assert "has shape [64, 4]; the configuration and the base ask for [128, 4]" in said
    gone = daemon.http.delete(f"/api/v1/models/{BASE}")
    assert (gone.status_code, gone.json()["error"]["message"]) == (
        400, "tiny-llama is the base of clerk, judge, poet: remove them first",
    )  # fmt: skip
    idle = daemon.http.post("/api/v1/models/poet/unload", json={})
    assert (idle.status_code, idle.json()["error"]["message"]) == (
        400, "name: poet is an adapter and holds next to nothing; unload tiny-llama, its base",
    )  # fmt: skip
    assert daemon.http.delete("/api/v1/models/tiny-qwen3").status_code == 204


def test_files_that_change_behind_its_back_are_said_so(
    daemon: DaemonProcess, files: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((files[BASE] / "config.json").read_text())
    path = seeded_adapter(tmp_path / "moody", config, 5)
    add(daemon, path, base=BASE)
    seeded_adapter(path, config, 6)
    body = {"model": "moody", "prompt": "a", "max_tokens": 3}
    answer = daemon.http.post("/v1/completions", json=body)
    assert answer.status_code == 500
    assert "its files changed since it was added; add it again" in answer.json()["error"]["message"]
    add(daemon, path, base=BASE)
    assert daemon.http.post("/v1/completions", json=body).status_code == 200
    assert daemon.http.delete("/api/v1/models/moody").status_code == 204


def test_streams_of_adapters_move_between_nodes_unnoticed(
    files: dict[str, Path], expected: dict[tuple[str, int], str], tmp_path: Path
) -> None:
    settings = EXACT + PATIENT + TWO_SLOTS + TWO_NODES
    with DaemonProcess(tmp_path / "state", [files[BASE]], settings=settings) as daemon:
        daemon.await_nodes()
        for name in CONFIGS:
            add(daemon, files[name], base=BASE)
        calls, moved = [(name, 0) for name in NAMES], 0
        with ThreadPoolExecutor(len(calls)) as pool:
            running = [pool.submit(ask, daemon, *call) for call in calls]
            while not all(one.done() for one in running):
                for row in daemon.http.get("/api/v1/requests").json():
                    node = "cpu1" if "cpu0" in (row["instance_id"] or "") else "cpu0"
                    daemon.http.post(f"/api/v1/requests/{row['id']}/move", json={"node": node})
                    moved = max(moved, row["moves"] * (row["model"] != BASE))
            assert [one.result() for one in running] == [expected[call] for call in calls]
        assert moved, "no stream of an adapter moved"
    assert "Traceback" not in daemon.log
