"""How does a report become one file that a browser shows, without anything beside it?"""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: #22303c;
       background: #f6f7f9; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 0 0 .2rem; }
p { max-width: 78ch; margin: .5rem 0; }
p.lead { font-size: 1.08rem; }
.pale { color: #66727d; }
section { background: #fff; border: 1px solid #e4e8ec; border-radius: 10px; padding: 1.4rem 1.6rem 1.2rem;
          margin: 1.6rem 0; }
section > svg { width: 100%; height: auto; margin: .6rem 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; margin: .9rem 0 .3rem; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; white-space: nowrap; }
td.wide { white-space: normal; min-width: 30ch; }
th { font-weight: 600; color: #66727d; border-bottom: 2px solid #e4e8ec; }
td { border-bottom: 1px solid #eef1f3; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.good { color: #0b7259; font-weight: 600; } .bad { color: #a83c4f; font-weight: 600; }
nav { margin: 1.2rem 0 0; } nav a { margin-right: 1.1rem; color: #3b6fb6; text-decoration: none; }
nav a:hover { text-decoration: underline; }
details summary { cursor: pointer; color: #3b6fb6; margin-top: .6rem; }
"""


class Cell(str):
    """A table's cell that is coloured: `good` or `bad`."""

    look: str

    def __new__(cls, text: str, look: str = "") -> "Cell":
        made = super().__new__(cls, text)
        made.look = look
        return made


def page(title: str, parts: Iterable[str]) -> bytes:
    """A whole document around its parts, which are HTML already."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    ).encode()


def heading(title: str, lead: str, pale: str = "") -> str:
    """The top of a page."""
    more = f'<p class="pale">{escape(pale)}</p>' if pale else ""
    return f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{more}'


def links(names: Iterable[tuple[str, str]]) -> str:
    """Links to sections: (anchor, name)."""
    return "<nav>" + "".join(f'<a href="#{escape(to)}">{escape(name)}</a>' for to, name in names) + "</nav>"


def section(anchor: str, title: str, parts: Iterable[str]) -> str:
    """A card with a title; its parts are HTML already."""
    return f'<section id="{escape(anchor)}">\n<h2>{escape(title)}</h2>\n' + "\n".join(parts) + "\n</section>"


def paragraph(text: str, look: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{look}">{escape(text)}</p>' if look else f"<p>{escape(text)}</p>"


def folded(summary: str, inner: str) -> str:
    """Something that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table; but for the first `words` columns, figures are aligned to the right."""
    head = "".join(_cell("th", name, right=n >= words) for n, name in enumerate(columns))
    body = "\n".join(
        "<tr>" + "".join(_cell("td", one, right=n >= words) for n, one in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(tag: str, text: str, *, right: bool) -> str:
    look = text.look if isinstance(text, Cell) else ""
    classes = " ".join(one for one in ("number" if right else "wide" if len(text) > 60 else "", look) if one)
    return f'<{tag} class="{classes}">{escape(text)}</{tag}>' if classes else f"<{tag}>{escape(text)}</{tag}>"
