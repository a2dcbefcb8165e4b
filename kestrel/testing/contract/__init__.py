"""The storage contract as tests. A backend's test class inherits `suite.StorageContract`.

    class TestAcme(StorageContract):
        factory = AcmeStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> IStorage:
            return AcmeStorage(folder, clock, in_thread)

The test class of an `IDatabase` inherits `suite.DatabaseContract`. docs/storage_plugins.md lists the hooks that enable
more tests. This is the only package of `kestrel.testing` that needs pytest and hypothesis.
"""

from pkgutil import iter_modules

try:
    import hypothesis  # noqa: F401  (asked for here, where it can be said what is missing)
    import pytest
except ImportError as error:
    raise ImportError("the contract suite needs pytest and hypothesis: pip install 'kestrel-mq[test]'") from error

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
