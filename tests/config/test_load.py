"""A file loads, or all its mistakes are reported."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from kestrel.config.load import ConfigError, load, loads
from kestrel.config.model import Config
from kestrel.errors import KestrelError

TAP_CONFIGS = Path(__file__).parents[2] / "tap-configs"
SHIPPED = sorted(path.name for path in TAP_CONFIGS.glob("*.toml"))


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    return caught.value.problems


def test_an_empty_file_gives_the_defaults() -> None:
    assert loads("") == Config()


@pytest.mark.parametrize(
    ("line", "sync_journal_ms"),
    [
        ('syncJournal = "never"', None),
        ('syncJournal = "none"', None),
        ("syncJournal = 0", 0),
        ('syncJournal = "0s"', 0),
        ("syncJournal = 0.01", 10),
        ('syncJournal = "10ms"', 10),
    ],
)
def test_sync_journal_accepts_durations_never_and_none(line: str, sync_journal_ms: int | None) -> None:
    assert loads(f"[default]\n{line}").default.values == {"sync_journal_ms": sync_journal_ms}


def test_none_differs_from_a_setting_that_is_not_given() -> None:
    config = loads('[default]\nmaxItems = "none"')
    assert config.default.values == {"max_items": None}


def test_given_settings_are_remembered_even_at_their_defaults() -> None:
    config = loads("memcacheListenPort = 22133\n[admin]\nhttpPort = 2223")
    assert config == Config()
    assert config.given == {"memcache_listen_port", "admin"}
    assert config.admin.given == {"http_port"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("memcacheListenPort = 70000", "memcacheListenPort: 70000 is not a port number from 1 to 65535; or"),
        ("memcacheListenPort = -1", "memcacheListenPort: -1 is not a port number"),
        ("memcacheListenPort = true", "memcacheListenPort: true is not a port number"),
        ("memcacheListenPort = 0.0", "memcacheListenPort: 0.0 is not a port number"),
        ("maxOpenTransactions = true", "maxOpenTransactions: true is not a whole number"),
        ("maxOpenTransactions = 0", "maxOpenTransactions: 0 is not between 1 and"),
        ("maxOpenTransactions = 1.0", "maxOpenTransactions: 1.0 is not a whole number"),
        ("maxOpenTransactions = 2147483648", "maxOpenTransactions: 2147483648 is not between"),
        ("maxLineSize = 0", "maxLineSize: 0 is not greater than 0"),
        pytest.param(
            "maxLineSize = 0x" + "f" * 5_000, "maxLineSize: a number of 20000 bits is more than 2**62 bytes", id="huge"
        ),
        ("maxLineSize = 1979-05-27", "maxLineSize: a date or time is not a size"),
        ("clientTimeout = 0", 'clientTimeout: 0 is not greater than 0; or "none"'),
        ("echoRequestedKey = 1", "echoRequestedKey: 1 is neither true nor false"),
        ('echoRequestedKey = "true"', 'echoRequestedKey: "true" is neither true nor false'),
        ('queuePath = ""', 'queuePath: "" is empty'),
        (
            f"[admin]\ntokenDigests = ['{'0' * 64}', 'secret']",
            "admin.tokenDigests: a value is not a SHA-256 digest of 64 small hexadecimal digits",
        ),
        (
            f"[admin]\ntokenDigests = ['{sha256().hexdigest()}']",
            "admin.tokenDigests: a value is the digest of an empty token: create the token again",
        ),
        (r'queuePath = "a\u0000b"', "queuePath: "),
        ("queuePath = 5", "queuePath: 5 is not a text in quotes"),
        ('storage = "/var/spool"', 'storage: "/var/spool" is not a storage description; write for example'),
        ('defaultStatus = "Down"', 'defaultStatus: "Down" is none of "Up", "WriteAvoid", "ReadOnly", "Quiescent"'),
        ("default = 5", "default: 5 is not a table"),
        ('default.maxSize = "128 bananas"', 'default.maxSize: "128 bananas" is not a size; write for example'),
        ("[[queues]]\nname = 'a'\nexpireToQueue = 'b.c'", 'queues["a"].expireToQueue: a queue name cannot hold'),
        ("default.expireToQueue = 'b/c'", "default.expireToQueue: a queue name cannot hold"),
        ("default.errorQueue = 'b/c'", "default.errorQueue: a queue name cannot hold"),
        ("default.maxRedeliveries = 0", 'default.maxRedeliveries: 0 is not between 1 and 2147483647; or "none"'),
        ("maxTotalMemory = 0", 'maxTotalMemory: 0 is not greater than 0; or "none"'),
        ("default.whiteListClientIdForEnqueue = 5", "default.whiteListClientIdForEnqueue: 5 is not a list"),
        ("admin = []", "admin: a list is not a table"),
        ("admin.httpPort = 65536", "admin.httpPort: 65536 is not a port number"),
        ("[queues]\nname = 'a'", "queues: a table is not a list of tables, whose heads have two brackets"),
        ("queues = [5]", "queues[0]: 5 is not a table"),
        ("[[queues]]\nmaxItems = 1", "queues[0].name: is missing"),
        ("[[queues]]\nname = 5", "queues[0].name: 5 is not a text in quotes"),
        ("[[queues]]\nname = ''", "queues[0].name: queue name required"),
        ("[[queues]]\nname = '+'", 'queues["+"].name: a queue cannot be called "+"'),
        ("[[queues]]\nname = 'a'\nmaxItems = '1'", 'queues["a"].maxItems: "1" is not a whole number; or "none"'),
        ("[[aliases]]\nname = 'a'", 'aliases["a"].destinationQueues: is missing'),
        ("[[aliases]]\nname = 'a'\ndestinationQueues = 'b'", 'aliases["a"].destinationQueues: "b" is not a list'),
        ("[[aliases]]\nname = 'a'\ndestinationQueues = []", 'aliases["a"].destinationQueues: the list is empty'),
        ("[zookeeper]\nhost = 'zoo'", "zookeeper.pathPrefix: is missing"),
        ("[zookeeper]\nhost = 'zoo'\npathPrefix = 'x'", 'zookeeper.pathPrefix: "x" is not a path from the root'),
        (
            "[zookeeper]\nhost = 'zoo'\npathPrefix = '/a/../b'",
            'zookeeper.pathPrefix: "/a/../b" is not a path from the root',
        ),
        (
            "[zookeeper]\nhost = 'zoo'\npathPrefix = '/a'\ncredentials = 'a password'",
            "zookeeper.credentials: the value is not a pair of user and password; write for example",
        ),
        ("[logging]\nlevel = 'loud'", 'logging.level: "loud" is none of "debug", "info"'),
        ("[logging.levels]\n'kestrel.net' = 'loud'", 'logging.levels: "kestrel.net": "loud" is none of'),
    ],
)
def test_a_mistake_is_reported_with_the_path_of_the_setting(text: str, problem: str) -> None:
    (told,) = problems_of(text)
    assert told.startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listenAddres = 'x'", "listenAddres: unknown setting; did you mean listenAddress?"),
        ("max_open_transactions = 1", "max_open_transactions: unknown setting; did you mean maxOpenTransactions?"),
        ("[loging]", "loging: unknown setting; did you mean logging?"),
        ("xyzzy = 1", "xyzzy: unknown setting"),
        ("given = 1", "given: unknown setting"),
        ("maxItems = 1", "maxItems: unknown setting; it belongs in [default] or in a [[queues]] table"),
        ("[logging]\nqueuePath = 'x'", "logging.queuePath: unknown setting; it belongs above the first [table]"),
        ("[default]\nname = 'x'", "default.name: unknown setting"),
        ("[[queues]]\nname = 'a'\nmaxitems = 1", 'queues["a"].maxitems: unknown setting; did you mean maxItems?'),
        ('"a b" = 1', '"a b": unknown setting'),
    ],
)
def test_an_unknown_setting_is_reported_with_a_hint(text: str, problem: str) -> None:
    assert problems_of(text) == (problem,)


def test_all_mistakes_are_reported_at_once() -> None:
    text = """
        memcacheListenPort = 70000
        qeuePath = "x"

        [default]
        maxSize = "128 bananas"
        expireToQueue = "dead"

        [[queues]]
        name = "work"
        maxItems = true
        maxAge = -1

        [[queues]]
        name = "work"

        [[aliases]]
        name = "round"
        destinationQueues = ["about"]

        [[aliases]]
        name = "about"
        destinationQueues = ["round"]

        [logging]
        level = "loud"
        """
    with pytest.raises(KestrelError) as caught:
        loads(text, "kestrel.toml")
    assert isinstance(caught.value, ConfigError)
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {
        "memcacheListenPort",
        "qeuePath",
        "default.maxSize",
        "default.expireToQueue",
        'queues["work"].maxItems',
        'queues["work"].maxAge',
        'queues["work"].name',
        'aliases["round"].destinationQueues',
        "logging.level",
    }
    assert str(caught.value).splitlines() == ["kestrel.toml:", *("  " + each for each in caught.value.problems)]


def queue(name: str, expire_to: str | None = None) -> str:
    return f"[[queues]]\nname = '{name}'\n" + (f"expireToQueue = '{expire_to}'\n" if expire_to else "")


def alias(name: str, *destinations: str) -> str:
    return f"[[aliases]]\nname = '{name}'\ndestinationQueues = {list(destinations)}\n"


def default(expire_to: str) -> str:
    return f"[default]\nexpireToQueue = '{expire_to}'\n"


@pytest.mark.parametrize(
    ("text", "path", "way"),
    [
        (queue("a", "a"), 'queues["a"].expireToQueue', '"a" -> "a"'),
        (queue("a", "b") + queue("b", "a"), 'queues["a"].expireToQueue', '"a" -> "b" -> "a"'),
        (default("dead"), "default.expireToQueue", '"dead" -> "dead"'),
        (default("dead") + queue("dead"), "default.expireToQueue", '"dead" -> "dead"'),
        # What is put to a parent goes to its children, so what a child gives back comes again.
        (queue("a+x", "a"), 'queues["a+x"].expireToQueue', '"a+x" -> "a" -> "a+x"'),
        # A child inherits.
        (queue("a", "a+x"), 'queues["a"].expireToQueue', '"a+x" -> "a+x"'),
        (queue("a", "all") + alias("all", "b", "a"), 'queues["a"].expireToQueue', '"all" -> "a" -> "all"'),
        (alias("a", "a"), 'aliases["a"].destinationQueues', '"a" -> "a"'),
        (alias("a", "b") + alias("b", "a"), 'aliases["a"].destinationQueues', '"a" -> "b" -> "a"'),
    ],
)
def test_cycles_of_queues_and_aliases_are_refused(text: str, path: str, way: str) -> None:
    (told,) = problems_of(text)
    assert told.startswith(f"{path}: ")
    assert f"cycle: {way}" in told


@pytest.mark.parametrize(
    "text",
    [
        default("dead") + queue("dead", "none"),
        default("dead") + queue("dead", "graveyard") + queue("graveyard", "none"),
        queue("a", "b") + queue("b", "c"),
        queue("a", "dead") + queue("a+x"),
        alias("all", "a", "b") + alias("more", "all", "a"),
        # An alias hides the queue of its name, and has no children.
        alias("a", "b") + queue("a", "a"),
        alias("a", "a+x"),
    ],
)
def test_routes_without_a_cycle_load(text: str) -> None:
    loads(text)


def errors(name: str, to: str) -> str:
    return f"[[queues]]\nname = '{name}'\nerrorQueue = '{to}'\n"


def default_errors(to: str) -> str:
    return f"[default]\nerrorQueue = '{to}'\n"


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        (errors("a", "a"), 'queues["a"].errorQueue', "a"),
        (default_errors("dead"), "default.errorQueue", "dead"),
        (default_errors("dead") + queue("dead"), "default.errorQueue", "dead"),
        (default_errors("dead") + errors("dead", "dead"), 'queues["dead"].errorQueue', "dead"),
        # A child inherits.
        (errors("a", "a+x"), 'queues["a"].errorQueue', "a+x"),
        (errors("a", "a+x") + queue("a+x"), 'queues["a"].errorQueue', "a+x"),
        (default_errors("a+x") + queue("a"), "default.errorQueue", "a+x"),
    ],
)
def test_a_queue_cannot_be_its_own_error_queue(text: str, path: str, name: str) -> None:
    assert problems_of(text) == (
        f'{path}: items would move from "{name}" to itself; end it by errorQueue = "none" on that queue',
    )


@pytest.mark.parametrize(
    "text",
    [
        default_errors("dead") + errors("dead", "none"),
        default_errors("dead") + errors("dead", "worse") + errors("worse", "none"),
        default_errors("a+x") + errors("a", "none"),
        errors("a", "a+x") + errors("a+x", "none"),
        errors("a", "b") + errors("b", "c"),
        # Errors rest in another queue for a while and come back: a delayed retry.
        errors("a", "later") + "maxRedeliveries = 3\n" + queue("later", "a") + "maxAge = '1m'\n",
        errors("a", "b") + errors("b", "a"),
        errors("a+x", "a"),
        # An alias hides the queue of its name.
        alias("a", "b") + errors("a", "a"),
        default_errors("none"),
    ],
)
def test_an_error_queue_may_be_any_other_queue(text: str) -> None:
    loads(text)


def test_each_queue_that_is_its_own_error_queue_is_reported() -> None:
    assert [problem.partition(":")[0] for problem in problems_of(errors("a", "a") + errors("b", "b"))] == [
        'queues["a"].errorQueue',
        'queues["b"].errorQueue',
    ]


def test_alias_may_share_name_with_queue_but_not_alias() -> None:
    loads(alias("a", "b") + queue("a"))
    assert problems_of(alias("a", "b") + alias("a", "c")) == (
        'aliases["a"].name: another [[aliases]] table has that name',
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 1\nb = ?\n", "line 2, column 5: Invalid value"),
        ('a = 1\n[[queues]]\nname = "', "line 3, the end: "),
        ("[a]\n[a]\n", "line 2, column 3: "),
        ("a = " + "[" * 5_000, "not usable TOML: brackets"),
        ("a = " + "1" * 5_000, "not usable TOML: "),
    ],
)
def test_a_syntax_error_is_reported_with_its_line(text: str, problem: str) -> None:
    (told,) = problems_of(text)
    assert told.startswith(problem)


def test_a_missing_file_is_reported_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:\n  cannot be read: No such file or directory"


def test_a_folder_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_non_utf8_file_is_reported_with_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.toml"
    path.write_bytes(b'a = 1\nname = "Gr\xf6\xdfe"\n')
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load(path)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_load(name: str) -> None:
    load(TAP_CONFIGS / name)


@pytest.mark.parametrize("name", SHIPPED)
def test_examples_in_comments_of_shipped_files_load(name: str) -> None:
    text = (TAP_CONFIGS / name).read_text()
    loads(re.sub(r"(?m)^# (?=\[\[|\w+ = )", "", text), name)
