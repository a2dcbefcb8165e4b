"""The names of `kestrel.spark.reports`: no module of the package takes the place of one of them."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from kestrel.spark import reports


def test_what_the_package_names_is_there_still_when_all_its_modules_are_imported() -> None:
    names = [module.name for module in pkgutil.iter_modules(reports.__path__)]
    assert "tables" in names
    for name in names:
        importlib.import_module(f"{reports.__name__}.{name}")
    assert [name for name in reports.__all__ if isinstance(getattr(reports, name), ModuleType)] == []
