"""llmhostd hosts many language models on one box and keeps its promises under load.

The deciding code does no I/O: two state machines, `host` (one box) and `node` (one device), both
`step(event, now) -> actions`. Three shells drive them: `daemon`, `worker` and `simulator`.
Imports point down only; `pyproject.toml` holds the contract.

    cli                                      what a person types
    evaluation                               questions put to the minds and to the simulator
    daemon | worker | simulator              shells: clocks, processes, sockets
    config                                   every setting, gathered
    api | engines | devices | demo | bench | state   I/O that speaks events and actions only
    text | loader                            tokens and tensors
    host | node                              step(event, now) -> actions
    consolidation | migration                how few devices can carry it, how requests move
    compute | memory | checkpoints           what it costs, whether it fits
    domain                                   words

ARCHITECTURE.md draws how a request flows through them.
"""

__version__ = "0.1.0"
