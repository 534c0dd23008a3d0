"""How fast are devices that are not there?"""

FAST = {"memory_bytes_per_s": 1e12, "operations_per_s": 1e14, "iteration_overhead_s": 0.002, "load_overhead_s": 0.05}
"""A device on which an iteration of a tiny model takes two milliseconds."""
