"""Signatures as they are spelled in the source. Evaluated, a type alias would be all that it stands for."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Spelled(str):
    """An annotation that prints as itself, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def process(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """What autodoc asks of each signature: the arguments and what is returned, or None to leave both as they are."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return None  # an alias of types
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    given = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    spelled = [
        each.replace(annotation=Spelled(each.annotation)) if isinstance(each.annotation, str) else each
        for each in given
    ]
    returned = found.return_annotation if isinstance(found.return_annotation, str) and what != "class" else None
    return str(inspect.Signature(spelled)), returned


def setup(app: Sphinx) -> dict[str, bool]:
    """Have autodoc ask."""
    app.connect("autodoc-process-signature", process)
    return {"parallel_read_safe": True}
