"""Conversion of matplotlib charts to SVG for a page: accessible texts, the page's colours, and unique ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any, Final
from warnings import catch_warnings, simplefilter
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

INK: Final = "#101112"
FAINT: Final = "#202122"
FIRST: Final = "#303132"
SECOND: Final = "#404142"
THIRD: Final = "#505152"
FOURTH: Final = "#606162"
_VARIABLES: Final = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
    FOURTH: "var(--fourth)",
}
"""Placeholder colours that become the page's variables, which have a light and a dark set."""

_SETTINGS: Final[Any] = {
    "text.parse_math": False,  # a queue may be called $x$
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "kestrel",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "date.epoch": "1970-01-01T00:00:00",
    "timezone": "UTC",
}

_SVG: Final = "{http://www.w3.org/2000/svg}"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_REFERENCE: Final = re.compile(r"url\(#([^)]*)\)")
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")


@contextmanager
def settings() -> Iterator[None]:
    """Apply the drawing settings of matplotlib until the context ends."""
    with rc_context(_SETTINGS):
        yield


def as_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return the chart as an SVG element. `name` must be unique in the page and prefixes each id."""
    drawn = StringIO()
    with settings(), catch_warnings():
        simplefilter("ignore", UserWarning)  # the font lacks some characters, but the browser has other fonts
        figure.savefig(drawn, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(drawn.getvalue())
    _strip(root)
    for element in root.iter():
        _adopt(element, name)
    for number, (tag, text) in enumerate((("title", title), ("desc", description))):
        words = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        words.text = text
        root.insert(number, words)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("xmlns", _SVG.strip("{}"))
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    return ElementTree.tostring(root, encoding="unicode")


def _strip(root: ElementTree.Element) -> None:
    """Remove the metadata and the style sheet, which would apply to the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)


def _adopt(element: ElementTree.Element, name: str) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    attributes = {}
    for key, value in element.attrib.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == _HREF:
            key, value = "href", f"#{name}-{value.removeprefix('#')}"
        else:
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        if key == "style":
            value = _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), value)
        attributes[key] = value
    element.attrib.clear()
    element.attrib.update(attributes)
