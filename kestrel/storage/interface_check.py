"""Checks that an object has all members of an interface."""

from __future__ import annotations

from zope.interface.exceptions import BrokenImplementation, BrokenMethodImplementation, DoesNotImplement, Invalid
from zope.interface.interface import InterfaceClass
from zope.interface.verify import verifyObject


def missing_members(interface: InterfaceClass, candidate: object) -> str:
    """Describe on one line how `candidate` differs from the interface. Return "" if it provides all members.

    Raises the errors that its attributes raise.
    """
    try:
        verifyObject(interface, candidate)
    except Invalid as error:
        return ", ".join(map(_describe, getattr(error, "exceptions", (error,))))
    return ""


def _describe(error: Invalid) -> str:
    if isinstance(error, DoesNotImplement):
        return "it does not declare the interface"
    if isinstance(error, BrokenImplementation):
        return f"it has no {getattr(error.name, '__name__', error.name)}"
    if isinstance(error, BrokenMethodImplementation):
        return f"{getattr(error.method, '__name__', error.method)}: {error.mess}"
    return " ".join(str(error).split())
