"""Which colour means what? One palette, used by the theme and by everything that is drawn line by line."""

from textual.theme import Theme

GROUND = "#11151a"
RAISED = "#171c23"
HEADING = "#1d242c"
CURSOR = "#25313c"
TEXT = "#d3dae3"
DIM = "#8593a3"
FAINT = "#3d4854"
ACCENT = "#6cb6c4"
GOOD = "#86b878"
WARN = "#dfb35c"
BAD = "#e5727a"
WEIGHTS = "#6f95cf"
KV = "#5fb8a6"
KV_FREE = "#3a6f66"
PROMISED = "#8a7a4a"
UNUSED = "#232c36"

THEME = Theme(
    name="llmhostd",
    primary=ACCENT,
    secondary=WEIGHTS,
    accent=ACCENT,
    success=GOOD,
    warning=WARN,
    error=BAD,
    foreground=TEXT,
    background=GROUND,
    surface=RAISED,
    panel=HEADING,
    variables={
        "dim": DIM,
        "faint": FAINT,
        "footer-background": HEADING,
        "footer-key-foreground": ACCENT,
        "footer-description-foreground": DIM,
        "scrollbar": FAINT,
        "scrollbar-background": GROUND,
        "scrollbar-background-hover": GROUND,
        "scrollbar-background-active": GROUND,
    },
)
