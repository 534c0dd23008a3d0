"""How does the README's picture come to be? Watches a running daemon until it is busy, and draws what is on the screen.

python tests/tui/make_overview.py http://127.0.0.1:11500
"""

import asyncio
import re
import sys
from pathlib import Path

from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient

SIZE = (120, 32)
PICTURE = Path(__file__).parents[2] / "tui" / "overview.svg"
LIVE = range(6, 10)
WATCH_S = 15
"""Before the picture is taken, so that sparklines and rates have a past."""
LOOK_EVERY_S = 0.25


async def main(url: str) -> None:
    """Write the picture. Fonts are whatever the reader's browser has: nothing is fetched."""
    app = Top(DaemonClient(url))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(WATCH_S)
        while len(app.shown.requests()) not in LIVE or not any(one.phase == "prefill" for one in app.shown.requests()):
            await pilot.pause(LOOK_EVERY_S)
        svg = app.export_screenshot(title="llmhostd top")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
