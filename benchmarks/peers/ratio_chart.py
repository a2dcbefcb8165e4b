"""Ratios along each axis as an SVG picture, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.harness import Spread

_PANEL_WIDTH: Final = 380
_PANEL_HEIGHT: Final = 320
_HEAD: Final = 62
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 34, 80
_INSET: Final = 24
_ACROSS: Final = 3
_BOUNDS: Final = (1 / 16, 64.0)
"""The bounds of the ratios. Values beyond them are drawn at the edge."""

_COLOURS: Final = {
    "#1f5fa8": "#6cb0ff",
    "#c2571a": "#ff9d5c",
    "#3c7d3c": "#7fce7f",
    "#7a4f9e": "#c79bf0",
    "#8a6d00": "#e0c04a",
    "#a03050": "#ff8fab",
}
"""The colours of the curves: on a light page, and on a dark one."""


def _style(back: str, text: str, grid: str, one: str, curves: Iterable[str]) -> str:
    rules = [f".back {{ fill: {back} }} text {{ fill: {text} }} .grid {{ stroke: {grid} }} .one {{ stroke: {one} }}"]
    rules += [f".c{n} {{ stroke: {each} }} circle.c{n} {{ fill: {each} }}" for n, each in enumerate(curves)]
    return "\n".join(rules)


_LIGHT: Final = _style("#ffffff", "#333333", "#dddddd", "#555555", _COLOURS)
_DARK: Final = _style("#0d1117", "#d0d7de", "#30363d", "#9aa4af", _COLOURS.values())
_STYLE: Final = f"""
text {{ font: 12px sans-serif }} .title {{ font-weight: bold }} .one {{ stroke-width: 1.5 }}
.curve {{ fill: none; stroke-width: 2 }} .spread {{ stroke-opacity: 0.5 }}
{_LIGHT}
@media (prefers-color-scheme: dark) {{
{_DARK}
}}
"""


class Curve(NamedTuple):
    """The ratios at some points of an axis."""

    name: str
    ratios: Mapping[str, Spread]


class _Panel:
    """The panel of one axis. Points have equal distances, and ratios a logarithmic scale."""

    def __init__(self, left: float, top: float, points: Sequence[str], bounds: tuple[int, int]) -> None:
        self._left, self._top = left + _LEFT, top + _TOP
        self._points = list(points)
        self._least, self._most = bounds
        self._width = _PANEL_WIDTH - _LEFT - _RIGHT
        self._height = _PANEL_HEIGHT - _TOP - _BOTTOM

    def x(self, point: str) -> float:
        step = (self._width - 2 * _INSET) / max(1, len(self._points) - 1)
        return self._left + _INSET + step * self._points.index(point)

    def y(self, ratio: float) -> float:
        power = min(max(math.log2(ratio), self._least), self._most) if ratio > 0 else self._least
        return self._top + self._height * (self._most - power) / (self._most - self._least)

    def axes(self, title: str) -> Iterator[str]:
        yield _text(self._left + self._width / 2, self._top - 12, title, "middle", "title")
        for power in range(self._least, self._most + 1):
            y = self.y(2.0**power)
            kind = "one" if power == 0 else "grid"
            yield _line(self._left, y, self._left + self._width, y, kind)
            yield _text(self._left - 6, y + 4, f"{2**power}" if power >= 0 else f"1/{2**-power}", "end")
        for point in self._points:
            x, y = self.x(point), self._top + self._height + 14
            turned = f' transform="rotate(-25 {x:.1f} {y:.1f})"'
            yield _text(x + 6, y, point, "end", more=turned)

    def curve(self, curve: Curve, colour: int, shift: float) -> Iterator[str]:
        places = [(self.x(point) + shift, ratio) for point, ratio in curve.ratios.items()]
        for x, ratio in places:
            yield _line(x, self.y(ratio.least), x, self.y(ratio.most), f"spread c{colour}")
        line = " ".join(f"{x:.1f},{self.y(ratio.median):.1f}" for x, ratio in places)
        yield f'<polyline class="curve c{colour}" points="{line}"/>'
        for x, ratio in places:
            yield f'<circle class="c{colour}" cx="{x:.1f}" cy="{self.y(ratio.median):.1f}" r="3"/>'


def draw(title: str, axes: Mapping[str, Sequence[Curve]]) -> str:
    """Return the picture as SVG text: a panel for each axis, with a curve for each pair of servers."""
    names = list(dict.fromkeys(curve.name for curves in axes.values() for curve in curves))
    bounds = _powers([ratio for curves in axes.values() for curve in curves for ratio in curve.ratios.values()])
    width, height = _ACROSS * _PANEL_WIDTH, _HEAD + -(-len(axes) // _ACROSS) * _PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        _text(_LEFT, 22, title, "start", "title"),
    ]
    for colour, name in enumerate(names):
        x = _LEFT + colour * (width - _LEFT) / len(names)
        parts += [f'<circle class="c{colour}" cx="{x + 4:.1f}" cy="42" r="4"/>', _text(x + 14, 46, name, "start")]
    for number, (axis, curves) in enumerate(axes.items()):
        left, top = number % _ACROSS * _PANEL_WIDTH, _HEAD + number // _ACROSS * _PANEL_HEIGHT
        points = list(dict.fromkeys(point for curve in curves for point in curve.ratios))
        panel = _Panel(left, top, points, bounds)
        parts += panel.axes(axis)
        for curve in curves:
            colour = names.index(curve.name)
            parts += panel.curve(curve, colour, 3 * colour)
    return "\n".join([*parts, "</svg>", ""])


def _powers(ratios: Sequence[Spread]) -> tuple[int, int]:
    """Return the exponents of the powers of two between which all ratios lie. The range includes 1/2 to 2."""
    least, most = _BOUNDS
    low = max(least, min([0.5, *(ratio.median for ratio in ratios if ratio.median > 0)]))
    high = min(most, max([2.0, *(ratio.median for ratio in ratios)]))
    return math.floor(math.log2(low)), math.ceil(math.log2(high))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "", more: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
