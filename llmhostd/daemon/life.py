"""How does the daemon begin, drain and end?"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from llmhostd.api.exposure import check_exposure
from llmhostd.config import Config
from llmhostd.daemon.compose import Parts, compose
from llmhostd.daemon.known_profiles import known_profiles
from llmhostd.daemon.listeners import address_of
from llmhostd.daemon.mind import MakeMind
from llmhostd.daemon.node_cores import cores_of_daemon
from llmhostd.daemon.nodes import NodeLayout, node_layout, say_nodes
from llmhostd.daemon.systemd import Notifier
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import (
    DrainAsked,
    ModelAdded,
    ProfileKnown,
    QuarantineKnown,
    StartsRemembered,
    WarmUpAsked,
)
from llmhostd.domain.ids import ModelName, NodeId, ShapeKey
from llmhostd.domain.profile import Profile
from llmhostd.state.lock import own_state
from llmhostd.state.models import RegisteredModel
from llmhostd.state.set_aside import Kind

if TYPE_CHECKING:
    from llmhostd.daemon.server import Server

log = logging.getLogger(__name__)

Running = list["asyncio.Task[None]"]
"""What must run until the end: a part that ends earlier ends the daemon."""


def run(config: Config, state_dir: Path, make_mind: MakeMind | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises OperatorError for what only whoever runs the box can mend.

    `make_mind`: see `compose`.
    """
    check_exposure(config.http)
    layout = node_layout(config.nodes, config.devices, config.machine_memory)
    with own_state(state_dir):
        say_nodes(layout)
        uvloop.run(_live(config, layout, state_dir, make_mind))


async def _live(config: Config, layout: NodeLayout, state_dir: Path, make_mind: MakeMind | None) -> None:
    """Begin, serve, drain, end."""
    stop, hurry = _signals()
    notifier = Notifier()
    parts = compose(config, layout, state_dir, make_mind)
    # Workers start first: their engines load while this process imports its web framework.
    running: Running = [asyncio.create_task(worker.run()) for worker in parts.workers.values()]
    try:
        introduce(parts)
        cut_off = await parts.shelf.waiting()  # before anybody can add to it
        parts.returned.say(parts.placements.awaited(), len(cut_off), parts.feed)
        parts.note.begin()
        server = await asyncio.to_thread(_make_server, parts)
        running += [
            asyncio.create_task(server.listen()),
            asyncio.create_task(parts.loop.tick()),
            asyncio.create_task(parts.records.flush_often(config.daemon.usage_flush_s)),
            asyncio.create_task(parts.journaling.flush_often()),
            asyncio.create_task(parts.whereabouts.look_often()),
            asyncio.create_task(parts.shelf.save_often()),
            asyncio.create_task(parts.placements.save_often()),
            asyncio.create_task(_feed_watchdog(notifier)),
        ]
        for begun in (server.listening, parts.opening.open):
            await _until(running, begun, stop)
        if not stop.is_set():
            _keep_out_of_the_way(parts)
            _say_ready(parts, notifier)
            running.append(asyncio.create_task(_go_on(parts, cut_off)))
            await _until(running, stop)
        await _drain(parts, notifier, hurry)
        server.stop()
        await asyncio.wait([running[len(parts.workers)]])
    finally:
        await _end(parts, running)


def introduce(parts: Parts) -> None:
    """Tell the mind what earlier runs left. Raises OperatorError for a setting that no model can have."""
    models, profiles, placements = parts.records.load()
    _introduce_starts(parts)
    known = _introduce_models(parts, models) | _introduce_profiles(parts, profiles)
    if parts.config.daemon.profile_at_start:
        for spec in parts.models:
            if spec.shape.key not in known and spec.adapter is None:
                parts.loop.hear(WarmUpAsked(name=spec.name))
    _introduce_set_aside(parts)
    parts.placements.begin(placements)
    parts.returned.load_again(placements, parts.loop)


def _introduce_models(parts: Parts, models: Sequence[RegisteredModel]) -> set[ShapeKey]:
    """Return the shapes that every node's engine knows without measuring."""
    known = set()
    for spec in parts.models.add(models):
        parts.loop.hear(ModelAdded(spec=spec))
        told = list(known_profiles(parts.nodes, spec))
        for profile in told:
            parts.loop.hear(ProfileKnown(profile=profile))
        if len(told) == len(parts.nodes):
            known.add(spec.shape.key)
    return known


def _introduce_profiles(parts: Parts, profiles: Sequence[Profile]) -> set[ShapeKey]:
    """Return the shapes that were measured on this hardware."""
    known = set()
    ours = {spec.hardware_key for spec in parts.nodes}
    for profile in profiles:
        if profile.hardware_key in ours:
            try:
                parts.loop.hear(ProfileKnown(profile=profile))
            except OperatorError as error:
                log.warning("a stored profile is not used: %s", error)
            else:
                parts.measurements.keep(profile)
                known.add(profile.shape_key)
    return known


def _introduce_starts(parts: Parts) -> None:
    """Let estimates of start times begin where those of earlier runs ended."""
    starts = parts.records.starts({spec.hardware_key for spec in parts.nodes})
    if starts:
        parts.loop.hear(StartsRemembered(starts=tuple(starts)))


def _introduce_set_aside(parts: Parts) -> None:
    """Let quarantines and drains of earlier runs hold."""
    nodes = [spec.id for spec in parts.nodes]
    for one in parts.records.set_aside():
        if one.kind is Kind.QUARANTINED_MODEL:
            parts.loop.hear(QuarantineKnown(model=ModelName(one.name), because=one.because))
            log.warning(
                "%s is quarantined: %s; `llmhostd models release %s` tries again", one.name, one.because, one.name
            )
        elif one.name in nodes:
            parts.loop.hear(DrainAsked(node_id=NodeId(one.name)))
            log.warning("%s is drained: %s; `llmhostd drain %s --end` uses it again", one.name, one.because, one.name)


def _make_server(parts: Parts) -> "Server":
    """Import what is heavy, in a thread: the workers' first reports are heard meanwhile."""
    from llmhostd.api.app import create_app
    from llmhostd.api.metrics import BoxGauges
    from llmhostd.daemon.server import Server

    parts.metrics.registry.register(BoxGauges(parts.service))
    return Server(create_app(parts.service, parts.config.http, parts.metrics.registry), parts.listeners)


def _say_ready(parts: Parts, notifier: Notifier) -> None:
    where = " and ".join(map(address_of, parts.listeners))
    count = sum(1 for _ in parts.models)
    notifier.ready(f"serving {count} models on {where}")
    log.info("serving %d models on %s", count, where)
    parts.texts.start()


def _keep_out_of_the_way(parts: Parts) -> None:
    """Cost whoever computes as little as can be. Holds for this thread, and for those that it starts from now on."""
    os.sched_setaffinity(0, cores_of_daemon(parts.nodes, os.sched_getaffinity(0)))
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.freeze()


async def _go_on(parts: Parts, cut_off: list[str]) -> None:
    """Take up the best-effort calls that the end of an earlier run cut off."""
    from llmhostd.daemon.adoption import Adoption

    await Adoption(parts.shelf, parts.submission, parts.feed).take_up(cut_off)


async def _drain(parts: Parts, notifier: Notifier, hurry: asyncio.Event) -> None:
    """Let running requests finish, for a while; new ones are refused from now on."""
    timeout_s = parts.config.daemon.drain_timeout_s
    parts.service.draining = True
    notifier.stopping()
    notifier.extend(timeout_s + 30.0)
    if len(parts.requests):
        log.info("draining: %d requests may finish within %g s", len(parts.requests), timeout_s)
    waits = [asyncio.create_task(parts.requests.wait_for_none()), asyncio.create_task(hurry.wait())]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
    parts.shelf.stop()
    parts.placements.save()
    parts.note.stopped()
    parts.requests.fail_all("the daemon stops")
    parts.feed.close()


async def _end(parts: Parts, running: Running) -> None:
    """Take everything down, whatever happened before."""
    await asyncio.gather(*(worker.stop() for worker in parts.workers.values()))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for listener in parts.listeners:
        listener.close()
    parts.texts.close()
    parts.records.close()
    parts.journaling.close()
    parts.note.close()


async def _until(running: Running, *events: asyncio.Event) -> None:
    """Wait for the first of these events. Raises what ended a part of the daemon instead."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait([*running, *waits], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
    for task in running:
        if task in done:
            task.result()
            raise RuntimeError("a part of the daemon ended on its own")


async def _feed_watchdog(notifier: Notifier) -> None:
    if not notifier.period_s:
        await asyncio.Event().wait()
    while True:
        notifier.alive()
        await asyncio.sleep(notifier.period_s)


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return events of the first and the second signal to stop."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def heard() -> None:
        (hurry if stop.is_set() else stop).set()

    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, heard)
    return stop, hurry
