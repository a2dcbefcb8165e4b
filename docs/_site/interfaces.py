"""The directive `interfaces`: what a module with interfaces of zope says, read from its source.

At run time an interface knows the names of its methods' arguments, but no types. The source has both.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from docstrings import as_restructured
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def indented(lines: Iterator[str]) -> Iterator[str]:
    """As what belongs to the directive before."""
    for line in lines:
        yield f"   {line}" if line else ""


def documentation(text: str) -> Iterator[str]:
    """A docstring, or what an `Attribute` is told of itself."""
    yield ""
    yield from as_restructured(inspect.cleandoc(text).split("\n"))
    yield ""


def of_attribute(node: ast.AnnAssign) -> Iterator[str]:
    """One `name: type = Attribute("what it is")`."""
    yield f".. py:attribute:: {ast.unparse(node.target)}"
    yield f"   :type: {ast.unparse(node.annotation)}"
    if isinstance(node.value, ast.Call) and node.value.args and isinstance(node.value.args[0], ast.Constant):
        yield from indented(documentation(str(node.value.args[0].value)))


def of_method(node: ast.FunctionDef) -> Iterator[str]:
    """One method, which has no self."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    yield f".. py:method:: {node.name}({ast.unparse(node.args)}){returns}"
    yield from indented(documentation(ast.get_docstring(node) or ""))


def of_interface(node: ast.ClassDef) -> Iterator[str]:
    """One interface, with its members in their order."""
    yield f".. py:class:: {node.name}"
    yield from indented(documentation(ast.get_docstring(node) or ""))
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            yield from indented(of_attribute(member))
        elif isinstance(member, ast.FunctionDef):
            yield from indented(of_method(member))
    yield ""


def is_interface(node: ast.stmt) -> bool:
    """Whether a statement of a module makes an interface."""
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("I") for base in node.bases)


class Interfaces(SphinxDirective):
    """All interfaces of the module that is named."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The docstring of the module, and each interface."""
        (module,) = self.arguments
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise self.error(f"there is no module {module}")
        self.env.note_dependency(spec.origin)
        tree = ast.parse(Path(spec.origin).read_text())
        lines = [f".. py:module:: {module}", *documentation(ast.get_docstring(tree) or "")]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and is_interface(node):
                lines += of_interface(node)
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=spec.origin), self.content_offset, container)
        return container.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("interfaces", Interfaces)
    return {"parallel_read_safe": True}
