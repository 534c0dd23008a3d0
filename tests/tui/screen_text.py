"""What does a person read on the screen? The text of the screenshot that Textual itself exports."""

import html
import re
import time
from collections import defaultdict
from collections.abc import Callable

from textual.app import App
from textual.pilot import Pilot

CELL = re.compile(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*clip-path[^>]*>(.*?)</text>')
CELL_WIDTH = 12.2
PATIENCE_S = 90.0


def read(app: App[None]) -> str:
    """All lines, spaces kept."""
    lines: dict[float, str] = defaultdict(str)
    for x, y, text in CELL.findall(app.export_screenshot()):
        line = lines[float(y)].ljust(round(float(x) / CELL_WIDTH))
        lines[float(y)] = line + html.unescape(text).replace("\xa0", " ")
    return "\n".join(lines[y] for y in sorted(lines))


async def until(pilot: Pilot[None], holds: Callable[[str], bool]) -> str:
    """Wait until the screen reads so, and return what it reads."""
    patience_s = time.monotonic() + PATIENCE_S
    while not holds(text := read(pilot.app)):
        assert time.monotonic() < patience_s, f"it never came to read so:\n{text}"
        await pilot.pause(0.05)
    return text
