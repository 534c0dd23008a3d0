"""The same minds, driven by a heap of (time, event) and engines that take profiled time."""
