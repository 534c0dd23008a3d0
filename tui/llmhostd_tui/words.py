"""How is an amount spelled, in few characters and with its unit?"""

KIB = 1024
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def spell_bytes(amount: int) -> str:
    """`6.1 GiB`, `512 MiB`: three figures at most, so that columns stay narrow."""
    value, unit = float(amount), 0
    while abs(value) >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / KIB, unit + 1
    figures = f"{value:.1f}" if unit >= 2 and abs(value) < 99.95 else f"{value:.0f}"
    return f"{figures} {UNITS[unit]}"


def spell_seconds(seconds: float) -> str:
    """`41 ms`, `1.93 s`, `12.4 s`, `3 m 05 s`, `2 h 10 m`, `4 d 3 h`."""
    size = abs(seconds)
    if size < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if size < 9.995:
        return f"{seconds:.2f} s"
    if size < 59.95:
        return f"{seconds:.1f} s"
    whole = round(size)
    sign = "-" if seconds < 0 else ""
    if whole < 3600:
        return f"{sign}{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{sign}{whole // 86_400} d {whole % 86_400 // 3600} h"


def spell_rate(per_second: float) -> str:
    """`0`, `3.2`, `412`: one decimal only where it says something."""
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else f"{per_second:.0f}"


def spell_share(part: float) -> str:
    """`78 %` of a share 0-1; never `100 %` unless it is all of it."""
    if 0.9995 <= part < 1:
        return "99.9 %"
    return f"{part:.0%}".replace("%", " %") if part in (0.0, 1.0) or part < 0.98 else f"{part * 100:.1f} %"


def spell_kind(kind: str) -> str:
    """`SubmitRequest` -> `submit`, `NodeDown` -> `node down`: what it is about stands in the next column."""
    for about in ("Request", "Instance", "Model", "Profile", "Reported"):
        kind = kind.removeprefix(about).removesuffix(about) or kind
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind).strip()
