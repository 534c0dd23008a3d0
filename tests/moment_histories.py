"""Random traffic on a daemon, copies of its state at random moments, and what must hold of each copy."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon_process import EXACT, PATIENT, DaemonProcess
from moments import Caller, Callers, Found, copy_state, cut_power, look_into, standing_still, synced

from llmhostd.state.flex import FlexCall

SETTINGS = (
    f"{EXACT}{PATIENT}[keep_alive]\nleast_s = 3600.0\n[flex]\nsave_s = 0.05\n[daemon]\nplacement_flush_s = 0.05\n"
)
BODIES = [
    {
        "model": model, "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 400,
        "ignore_eos": True, "temperature": 0,
    }
    for number, model in enumerate(("tiny-llama", "tiny-qwen3", "tiny-llama"))
]  # fmt: skip
PEOPLE_AT_ONCE, FLEX_AT_ONCE = 3, 4


@dataclass
class Moment:
    """A copy of the state, and what was known outside when it was made."""

    copy: Path
    power_cut: bool
    owed: dict[str, Caller]
    """Best-effort calls that were accepted and had no whole answer."""
    models: set[str]
    people: tuple[int, int]
    """At least and at most so many streams of people were under way."""


class History:
    """Random traffic on one daemon, with a copy of its state now and again."""

    def __init__(self, daemon: DaemonProcess, models: Path, seed: int) -> None:
        self.daemon, self.chance, self.models_dir = daemon, random.Random(seed), models
        self.callers = Callers(daemon)
        self.names = {"tiny-llama", "tiny-qwen3"}
        self.numbers = iter(range(10**6))
        self.durable = synced(daemon.state_dir)

    def go_on(self) -> None:
        """Something happens."""
        live = [one for one in self.callers.all if not one.finished and not one.hung_up]
        flex = [one for one in live if "service_tier" in one.body]
        if len(flex) < FLEX_AT_ONCE and self.chance.random() < 0.5:
            self._ask_flex()
        elif len(live) - len(flex) < PEOPLE_AT_ONCE and self.chance.random() < 0.5:
            self.callers.ask(f"person-{next(self.numbers)}", self.chance.choice(BODIES))
        elif self.chance.random() < 0.3:
            self._change_models()
        elif live and self.chance.random() < 0.1:
            self.callers.hang_up(self.chance.choice(live))
        self.callers.listen(self.chance.uniform(0.0, 0.12))

    def copy(self, to: Path) -> Moment:
        """Copy the state, as it is now."""
        with standing_still(self.daemon.process.pid):
            self.callers.hear_all()
            copy_state(self.daemon.state_dir, to)
            live = [one for one in self.callers.all if not one.finished and not one.hung_up]
            owed = {one.name: one for one in live if one.accepted and "service_tier" in one.body}
            people = [one for one in live if "service_tier" not in one.body]
            # Of one that is nearly over, the rest may be on its way: the daemon is through with it then.
            surely = [one for one in people if one.accepted and not one.over and 0 < one.chunks < 60]
        moment = Moment(to, False, owed, set(self.names), (len(surely), len(people) + 1))
        moment.power_cut = self.chance.random() < 0.5 and cut_power(to, self.durable, self.chance)
        return moment

    def _ask_flex(self) -> None:
        caller = self.callers.ask(f"flex-{next(self.numbers)}", self.chance.choice(BODIES) | {"service_tier": "flex"})
        while not caller.accepted:
            assert not caller.over, bytes(caller.heard)
            self.callers.listen(0.002)
        self.durable = synced(self.daemon.state_dir)

    def _change_models(self) -> None:
        name = f"extra-{self.chance.randrange(3)}"
        if name in self.names:
            assert self.daemon.http.delete(f"/api/v1/models/{name}").status_code == 204
            self.names.remove(name)
        else:
            body = {"name": name, "path": str(self.models_dir / "tiny-qwen2")}
            assert self.daemon.http.post("/api/v1/models", json=body).status_code == 201
            self.names.add(name)
            self.daemon.http.post(f"/api/v1/models/{name}/load")
        self.durable = synced(self.daemon.state_dir)


def check(moment: Moment, found: Found) -> None:
    """Nothing that was promised is missing, and nobody is made up."""
    assert found.models == moment.models
    assert moment.owed.keys() <= found.waiting.keys(), "an accepted call was lost"
    least, most = moment.people
    assert found.last is not None
    assert not found.last.stopped
    assert least <= found.last.people <= most


def check_tokens(found: list[Found]) -> None:
    """What was written of a call at different moments are beginnings of one and the same answer."""
    longest: dict[str, tuple[int, ...]] = {}
    for call in (one for each in found for one in each.waiting.values()):
        seen, tokens = longest.get(call.caller_id, ()), call.choices[0].tokens
        short, long = sorted((seen, tokens), key=len)
        assert long[: len(short)] == short
        longest[call.caller_id] = long
    assert any(longest.values()), "none of them had begun"


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.02)


def kept(daemon: DaemonProcess, call: FlexCall) -> dict[str, Any]:
    answer: dict[str, Any] = daemon.http.get(f"/api/v1/requests/{call.id}").raise_for_status().json()
    return answer


def check_next_run(
    moment: Moment, found: Found, questions: dict[str, str], undisturbed: dict[tuple[str, str], str]
) -> None:
    """A daemon on the copy goes on with every call, loads what was loaded, and says what it could not go on with."""
    with DaemonProcess(moment.copy, settings=SETTINGS) as daemon:
        host = daemon.http.get("/api/v1/host").json()
        people = found.last.people if found.last else 0
        assert host["last_run"].startswith("the last run was not told to end, ")
        assert (f"{people} stream" in host["last_run"]) == (people > 0)
        assert ("best-effort call" in host["returned"]) == bool(found.waiting)
        there = [one for one in found.placements if one.model in found.models]  # what was just removed is given up
        assert all(one.model in host["returned"] for one in there)
        assert host["last_run"] in daemon.log
        for call in found.waiting.values():
            until(lambda call=call: kept(daemon, call)["done"])  # type: ignore[misc]
            answer = kept(daemon, call)["answer"]
            text = answer["choices"][0]["message"]["content"]
            assert text == undisturbed[call.model, questions[call.caller_id]]
        placed = {(one.model, one.node_id) for one in there}
        until(lambda: placed <= {(one["model"], one["node_id"]) for one in loaded(daemon)})
        assert {row["id"] for row in daemon.http.get("/v1/models").json()["data"]} == found.models
        assert "Traceback" not in daemon.log


def loaded(daemon: DaemonProcess) -> list[dict[str, Any]]:
    instances: list[dict[str, Any]] = daemon.http.get("/api/v1/instances").json()
    return [one for one in instances if one["state"] in ("warm", "resident")]


def live_and_die_often(directory: Path, models_dir: Path, seed: int, *, moments: int, next_runs: int) -> None:
    """Run one history, copy its state so many times, look into every copy, and start daemons on some of them."""
    chance = random.Random(-seed)
    undisturbed: dict[tuple[str, str], str] = {}
    copies: list[Moment] = []
    models = [models_dir / name for name in ("tiny-llama", "tiny-qwen3")]
    with DaemonProcess(directory / "state", models, settings=SETTINGS) as daemon:
        for body in BODIES:
            answer = daemon.http.post("/v1/chat/completions", json=body).raise_for_status().json()
            undisturbed[str(body["model"]), said(body)] = answer["choices"][0]["message"]["content"]
        history = History(daemon, models_dir, seed)
        while len(copies) < moments:
            for _ in range(chance.randrange(1, 4)):
                history.go_on()
            copies.append(history.copy(directory / f"copy-{len(copies)}"))
        questions = {one.name: said(one.body) for one in history.callers.all}
        os.kill(daemon.process.pid, signal.SIGKILL)
        history.callers.close()
    found = []
    for moment in copies:
        looked_at = moment.copy.with_name(f"{moment.copy.name}-looked-at")
        copy_state(moment.copy, looked_at)
        found.append(look_into(looked_at))
        check(moment, found[-1])
    check_tokens(found)
    assert {one.power_cut for one in copies} == {True, False}
    richest = sorted(range(moments), key=lambda number: -len(copies[number].owed))
    for cut in (True, False):
        for number in [one for one in richest if copies[one].power_cut == cut][: next_runs // 2]:
            assert copies[number].owed
            check_next_run(copies[number], found[number], questions, undisturbed)


def said(body: dict[str, Any]) -> str:
    """What a call's caller says."""
    return str(body["messages"][0]["content"])
