# SPDX-License-Identifier: Apache-2.0
"""A curve in characters, and as SVG."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character: four rows of two


def smoothed(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """A running mean that starts at the first value."""
    found: list[float] = []
    for value in values:
        found.append(value if not found else weight * found[-1] + (1 - weight) * value)
    return found


def curve(values: Sequence[float], width: int, height: int, *, unicode: bool = True) -> list[str]:
    """Lines of a chart with its scale; from the lowest to the highest value."""
    across, down = (2, 4) if unicode else (1, 1)
    columns, rows = width * across, height * down
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    cells = [[0] * width for _ in range(height)]
    previous = None
    for x in range(columns):
        row = round((high - _at(values, x / max(columns - 1, 1))) / span * (rows - 1))
        for y in range(min(row, previous if previous is not None else row), max(row, previous or row) + 1):
            cells[y // down][x // across] |= _DOTS[y % 4][x % 2] if unicode else 1
        previous = row
    lines = []
    for number, line in enumerate(cells):
        label = f"{high - span * number / max(height - 1, 1):5.2f} "
        drawn = "".join((chr(0x2800 + cell) if cell else " ") if unicode else (" *"[cell]) for cell in line)
        lines.append(label + ("┤" if unicode else "|") + drawn.rstrip())
    return lines


def axis(width: int, marks: dict[str, tuple[float, float]], end: str, *, unicode: bool = True) -> list[str]:
    """The line under a chart, with stretches of it marked and named."""
    line = ["─" if unicode else "-"] * width
    names = [" "] * width
    for name, (start, stop) in marks.items():
        first, last = int(start * (width - 1)), max(int(start * (width - 1)), round(stop * (width - 1)))
        for x in range(first, last + 1):
            line[x] = "▀" if unicode else "="
        place = max(0, min((first + last) // 2 - len(name) // 2, width - len(name) - len(end) - 2))
        names[place : place + len(name)] = name[:width]
    text = "".join(names)[: width - len(end)].ljust(width - len(end)) + end
    return ["      " + ("└" if unicode else "+") + "".join(line), "       " + text]


def _at(values: Sequence[float], share: float) -> float:
    """The curve between its points."""
    place = share * (len(values) - 1)
    left = min(int(place), len(values) - 2) if len(values) > 1 else 0
    right = min(left + 1, len(values) - 1)
    return values[left] + (values[right] - values[left]) * (place - left)


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 360" font-family="system-ui" font-size="13">
<title>{title}</title>
<style>
  .ink {{ fill: #222 }} .soft {{ fill: #777 }} .grid {{ stroke: #ddd }} .page {{ fill: #fff }}
  .each {{ stroke: #9bc4e8 }} .mean {{ stroke: #1668b0; stroke-width: 2.5 }} .mark {{ fill: #e8590c }}
  @media (prefers-color-scheme: dark) {{
    .ink {{ fill: #eee }} .soft {{ fill: #999 }} .grid {{ stroke: #333 }} .page {{ fill: #161616 }}
    .each {{ stroke: #31556f }}
  }}
  polyline {{ fill: none; stroke-linejoin: round }}
</style>
<rect class="page" width="760" height="360"/>
<text class="ink" x="50" y="26" font-size="16" font-weight="600">{title}</text>
{grid}
<polyline class="each" points="{each}"/>
<polyline class="mean" points="{mean}"/>
{marks}
<text class="soft" x="740" y="350" text-anchor="end">{steps} steps</text>
</svg>
"""


def svg(title: str, values: Sequence[float], marks: dict[str, tuple[float, float]]) -> str:
    """A self-contained picture: each value, their running mean, and marked stretches."""
    left, right, top, bottom = 50.0, 740.0, 44.0, 320.0
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def points(curve: Sequence[float]) -> str:
        step = (right - left) / max(len(curve) - 1, 1)
        return " ".join(
            f"{left + i * step:.1f},{bottom - (value - low) / span * (bottom - top):.1f}"
            for i, value in enumerate(curve)
        )

    grid = []
    for i in range(5):
        y = bottom - (bottom - top) * i / 4
        grid.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        grid.append(
            f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{low + span * i / 4:.2f}</text>'
        )
    drawn = []
    for name, (start, stop) in marks.items():
        x = left + (right - left) * start
        width = max((right - left) * (stop - start), 3)
        drawn.append(f'<rect class="mark" x="{x:.1f}" y="{bottom}" width="{width:.1f}" height="6"/>')
        drawn.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 22}" text-anchor="middle">{name}</text>')
    return _SVG.format(
        title=title,
        grid="\n".join(grid),
        each=points(values),
        mean=points(smoothed(values)),
        marks="\n".join(drawn),
        steps=len(values),
    )
