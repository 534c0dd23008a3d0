"""How is a daemon put together? The only constructor."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmhostd.api.metrics import RequestMetrics
from llmhostd.config import Config
from llmhostd.daemon.decisions import DecisionFeed
from llmhostd.daemon.executors import Executor
from llmhostd.daemon.inquest import Inquest
from llmhostd.daemon.journaling import Journaling, RecordedMind
from llmhostd.daemon.listeners import bind
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.measurements import Measurements
from llmhostd.daemon.mind import MakeMind, Mind
from llmhostd.daemon.models import Models
from llmhostd.daemon.nodes import NodeLayout, has_bf16
from llmhostd.daemon.opening import Opening
from llmhostd.daemon.placements import Placements
from llmhostd.daemon.records import Records
from llmhostd.daemon.reports import Reports
from llmhostd.daemon.requests import LiveRequests
from llmhostd.daemon.returning import Return
from llmhostd.daemon.service import Daemon
from llmhostd.daemon.shelf import Shelf
from llmhostd.daemon.submission import Submission
from llmhostd.daemon.tally import Tally
from llmhostd.daemon.texts import Texts
from llmhostd.daemon.whereabouts import Whereabouts
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import NodeId
from llmhostd.domain.words import Message
from llmhostd.engines.frames import StartFrame
from llmhostd.engines.supervisor import WorkerSupervisor
from llmhostd.host.core import HostMind
from llmhostd.state.journal import MadeWith
from llmhostd.state.last_run import RunNote
from llmhostd.text.cache import TokenizerCache
from llmhostd.text.template_process import TemplateProcess


@dataclass(frozen=True)
class Parts:
    """What a daemon is made of, as far as its beginning and its end must know."""

    config: Config
    nodes: Sequence[NodeSpec]
    listeners: list[socket.socket]
    workers: dict[NodeId, WorkerSupervisor]
    models: Models
    measurements: Measurements
    records: Records
    note: RunNote
    returned: Return
    placements: Placements
    texts: Texts
    requests: LiveRequests
    shelf: Shelf
    submission: Submission
    feed: DecisionFeed
    metrics: RequestMetrics
    opening: Opening
    journaling: Journaling
    loop: HostLoop
    whereabouts: Whereabouts
    service: Daemon


def compose(config: Config, layout: NodeLayout, state_dir: Path, make_mind: MakeMind | None = None) -> Parts:
    """Make every part and connect them; nothing runs yet. Raises OperatorError. Within a running event loop.

    `make_mind`: whoever decides instead of the host mind with the configured policies, for comparisons.
    """
    nodes = layout.nodes
    listeners = bind(config.http, state_dir)
    records = Records(state_dir)
    metrics = RequestMetrics()
    tally = Tally(metrics, records.usage)
    note = RunNote(state_dir)
    requests = LiveRequests(tally, note)
    feed = DecisionFeed(config.http.max_event_streams)
    models = Models(config.slo, config.precision, config.adapters, bf16_hardware=has_bf16())
    process = TemplateProcess(config.templates)
    texts = Texts(process, TokenizerCache(process, config.tokenizers))
    decides: Mind = make_mind(nodes) if make_mind else HostMind(nodes, config.host_policies())
    made_with = MadeWith(nodes=tuple(nodes), policies=config.host_policies())
    journaling = Journaling(state_dir, config.journal, mind=type(decides).__name__, made_with=made_with)
    mind = RecordedMind(decides, journaling)
    measurements = Measurements()
    workers: dict[NodeId, WorkerSupervisor] = {}

    def send(node_id: NodeId, message: Message) -> None:
        workers[node_id].send(message)

    loop = HostLoop(mind, requests, feed, Executor(models, requests, send, records.keep_start, records.quarantine))
    whereabouts = Whereabouts(models, loop)
    opening = Opening(mind)
    reports = Reports(mind, loop, records, measurements, whereabouts, Inquest(models.checkpoint_of), opening)
    workers |= {one.id: WorkerSupervisor(_start(one, config), reports.hear, config.supervision) for one in nodes}
    returned = Return(note.last, load_again=config.daemon.load_again)
    placements = Placements(mind, records, note, config.daemon.placement_flush_s)
    shelf = Shelf(records, config.flex)
    submission = Submission(models, texts, whereabouts, requests, loop, shelf, config.http.max_live_requests)
    service = Daemon(
        nodes=nodes, mind=mind, loop=loop, models=models, records=records, texts=texts, feed=feed, tally=tally,
        measurements=measurements, submission=submission, shelf=shelf, returned=returned,
        journaling=journaling, opening=opening, adapters=config.adapters, left_out=layout.excluded,
    )  # fmt: skip
    return Parts(
        config, nodes, listeners, workers, models, measurements, records, note, returned, placements, texts, requests,
        shelf, submission, feed, metrics, opening, journaling, loop, whereabouts, service,
    )  # fmt: skip


def _start(spec: NodeSpec, config: Config) -> StartFrame:
    """What a worker is told when it begins."""
    return StartFrame(
        spec=spec, scheduling=config.scheduling, kv_demand=config.kv_demand, watermark=config.watermark,
        correction=config.correction, machine_memory=config.machine_memory, fetch=config.fetch,
    )  # fmt: skip
