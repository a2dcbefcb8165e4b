"""The storage contract as tests: `suite.StorageContract` is what a backend's test class inherits.

    class TestAcme(StorageContract):
        factory = AcmeStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> IStorage:
            return AcmeStorage(folder, clock, in_thread)

`suite.DatabaseContract` is the same for an `IDatabase`. docs/storage_plugins.md says what else an author may tell. This
package alone of `kestrel.testing` needs pytest and hypothesis.
"""

from pkgutil import iter_modules

try:
    import hypothesis  # noqa: F401  (asked for here, where it can be said what is missing)
    import pytest
except ImportError as error:
    raise ImportError("the contract suite needs pytest and hypothesis: pip install 'kestrel-mq[test]'") from error

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
