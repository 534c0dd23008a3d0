"""How many placement decisions are made a second? (ServerlessLLM §6.3: thousands of loading tasks per second.)"""

import time

import pytest

from llmhostd.checkpoints.tiers import StartPolicy, StartRates
from llmhostd.domain.start import TierBytes
from llmhostd.migration.cost import ResumeCost
from llmhostd.migration.start_choice import Model, Running, Server, soonest

SIZE = 13_400_000_000
NEAR, FAR = TierBytes(memory_bytes=SIZE), TierBytes(disk_bytes=SIZE)


def cluster(servers: int, gpus: int, models: list[Model], busy: float) -> list[Server]:
    """Servers of which a part of the GPUs compute; every model lies in the memory of one server in three."""
    made = []
    for place in range(servers):
        lies = {one.name: NEAR if (place + n) % 3 == 0 else FAR for n, one in enumerate(models)}
        computing = int(gpus * busy) if place else gpus
        running = [Running(place * gpus + n, models[(place + n) % len(models)], 200 + n) for n in range(computing)]
        made.append(Server(place, gpus - computing, 0.5 * (place % 3), lies, {}, running))
    return made


@pytest.mark.parametrize(("servers", "gpus"), [(4, 4), (16, 8)])
def test_decisions_per_second(servers: int, gpus: int, capsys: pytest.CaptureFixture[str]) -> None:
    models = [Model(f"m{n}", 1, SIZE) for n in range(32)]
    told = []
    for busy in (0.5, 1.0):
        seen, rates, resume = cluster(servers, gpus, models, busy), StartRates(StartPolicy()), ResumeCost(0.0025, 0.05)
        began_s, count = time.process_time(), 0
        while time.process_time() - began_s < 1.0:
            soonest(models[count % len(models)], seen, rates.read_s, resume)
            count += 1
        told.append(f"{count / (time.process_time() - began_s):,.0f} at {busy:.0%} busy")
    with capsys.disabled():
        print(f"\n{servers} servers of {gpus} GPUs: decisions per second of one core: {', '.join(told)}")
