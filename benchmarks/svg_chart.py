"""Curves as an SVG picture: panels side by side with the same axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.harness import Spread

_PANEL_WIDTH: Final = 400
_HEIGHT: Final = 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 64, 56
_COLOURS: Final = ("#1f5fa8", "#c2571a", "#3c7d3c", "#7a4f9e")
_TICK: Final = 0.25
_GREY: Final = "#666"


class Curve(NamedTuple):
    """A line: ratios over backlogs."""

    name: str
    points: list[tuple[int, Spread]]


class _Panel:
    """One panel. Backlogs have equal distances, and ratios range from 0 to `top`."""

    def __init__(self, left: int, xs: Sequence[int], top: float) -> None:
        self._left = left + _LEFT
        self._xs = xs
        self._top = top
        self._width = _PANEL_WIDTH - _LEFT - _RIGHT
        self._height = _HEIGHT - _TOP - _BOTTOM

    def x(self, value: int) -> float:
        inset = 20
        step = (self._width - 2 * inset) / max(1, len(self._xs) - 1)
        return self._left + inset + step * self._xs.index(value)

    def y(self, ratio: float) -> float:
        return _TOP + self._height * (1 - ratio / self._top)

    def axes(self, title: str) -> Iterator[str]:
        right = self._left + self._width
        yield _text(self._left + self._width / 2, _TOP - 12, title, "middle", bold=True)
        for tick in range(round(self._top / _TICK) + 1):
            y = self.y(tick * _TICK)
            colour = _GREY if tick * _TICK == 1 else "#ddd"
            yield f'<line x1="{self._left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{colour}"/>'
            yield _text(self._left - 6, y + 4, f"{tick * _TICK:.2f}", "end")
        for value in self._xs:
            yield _text(self.x(value), _TOP + self._height + 18, _short(value), "middle")
        yield _text(self._left + self._width / 2, _TOP + self._height + 40, "items in the queue", "middle")

    def curve(self, curve: Curve, colour: str, shift: int) -> Iterator[str]:
        """Draw the line through the medians, with a bar from the least to the most at each point."""
        places = [(self.x(value) + shift, ratio) for value, ratio in curve.points]
        for x, ratio in places:
            ends = f'y1="{self.y(ratio.least):.1f}" y2="{self.y(min(ratio.most, self._top)):.1f}"'
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}" stroke-opacity="0.5"/>'
        line = " ".join(f"{x:.1f},{self.y(ratio.median):.1f}" for x, ratio in places)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, ratio in places:
            yield f'<circle cx="{x:.1f}" cy="{self.y(ratio.median):.1f}" r="3.5" fill="{colour}"/>'


def draw(title: str, panels: Mapping[str, Sequence[Curve]]) -> str:
    """Return the picture as SVG text."""
    width = _PANEL_WIDTH * len(panels)
    curves = [curve for each in panels.values() for curve in each]
    xs = sorted({value for curve in curves for value, _ in curve.points})
    highest = max(ratio.most for curve in curves for _, ratio in curve.points)
    top = min(2.0, _TICK * (highest // _TICK + 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_LEFT, 20, title, "start", bold=True),
    ]
    for number, (name, panel_curves) in enumerate(panels.items()):
        panel = _Panel(number * _PANEL_WIDTH, xs, top)
        parts += panel.axes(name)
        for place, curve in enumerate(panel_curves):
            parts += panel.curve(curve, _COLOURS[place % len(_COLOURS)], 3 * place)
    names = list(dict.fromkeys(curve.name for curve in curves))
    for place, name in enumerate(names):
        x, colour = _LEFT + 200 * place, _COLOURS[place % len(_COLOURS)]
        parts.append(f'<circle cx="{x + 4}" cy="35" r="3.5" fill="{colour}"/>')
        parts.append(_text(x + 14, 39, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _short(value: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return str(value)


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    colour = "#222" if bold else _GREY
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="12" fill="{colour}"{weight}>{escape(text)}</text>'
