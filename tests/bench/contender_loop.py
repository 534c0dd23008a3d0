"""How is a contender asked for a point? By a line on its standard input; its answer is a line of seconds, as JSON.

So all contenders are there at once and take turns at one point: a machine's moods last longer than that.
"""

import json
import sys
from collections.abc import Callable, Mapping

READY = "ready"
"""What a contender says when it may be asked."""


def answer(points: Mapping[str, Callable[[], list[float]]]) -> None:
    """Measure what is asked for until nobody asks any more."""
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(points[line.strip()]()), flush=True)
