"""The load generator speaks each server's protocol, and compares every reply."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.generator import Generator, Load, WrongReply
from tests.child import Child
from tests.client.scripted import ScriptedServer, scripted, talk

pytestmark = pytest.mark.needs("gcc")

ITEM = b"\0\0\0\0\0\0\0\0"
"""The first item of the first connection. Its eight bytes are its number."""
SECOND = b"\1\0\0\0\0\0\0\0"
NO_PID = 1

Conversation = Sequence[tuple[bytes, bytes]]
"""A fake server with the requests of the generator, and its replies."""


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    return Generator(tmp_path_factory.mktemp("load"))


def port_of(server: ScriptedServer) -> int:
    return int(server.address.rpartition(":")[2])


def memcache_put(item: bytes = ITEM, queue: bytes = b"bench00000") -> bytes:
    return b"set %b 0 0 8\r\n%b\r\n" % (queue, item)


def value(item: bytes = ITEM, queue: bytes = b"bench00000") -> bytes:
    return b"VALUE %b 0 8\r\n%b\r\nEND\r\n" % (queue, item)


def redis(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


HELLO = (b"version\r\n", b"VERSION 1\r\n")
PING = (b"PING\r\n", b"+PONG\r\n")
TUBES = (b"list-tube-used\r\n", b"USING default\r\n")
USE = (
    b"use bench00000\r\nwatch bench00000\r\nignore default\r\n",
    b"USING bench00000\r\nWATCHING 2\r\nWATCHING 1\r\n",
)
QUEUE = b"bench00000"

CONVERSATIONS: dict[str, tuple[Load, Conversation]] = {
    "memcache: two items, one after the other": (
        Load("memcache", items=2),
        [
            HELLO,
            (memcache_put(), b"STORED\r\n"),
            (b"get bench00000\r\n", value()),
            (memcache_put(SECOND), b"STORED\r\n"),
            (b"get bench00000\r\n", value(SECOND)),
        ],
    ),
    "memcache: two items in a flight": (
        Load("memcache", items=2, pipeline=2),
        [
            HELLO,
            (memcache_put() + memcache_put(SECOND), b"STORED\r\nSTORED\r\n"),
            (b"get bench00000\r\nget bench00000\r\n", value() + value(SECOND)),
        ],
    ),
    "memcache: items that come back if the client dies": (
        Load("memcache", workload="reliable", items=2),
        [
            HELLO,
            (memcache_put(), b"STORED\r\n"),
            (b"get bench00000/close/open\r\n", value(queue=b"bench00000/close/open")),
            (memcache_put(SECOND), b"STORED\r\n"),
            (b"get bench00000/close/open\r\n", value(SECOND, b"bench00000/close/open")),
            (b"get bench00000/close\r\n", b"END\r\n"),
        ],
    ),
    "memcache: a parent and two children": (
        Load("memcache", workload="fanout", children=2, items=1),
        [
            HELLO,
            (b"get bench00000+c1\r\n", b"END\r\n"),
            (b"get bench00000+c2\r\n", b"END\r\n"),
            (memcache_put(), b"STORED\r\n"),
            (b"get bench00000\r\n", value()),
            (b"get bench00000+c1\r\n", value(queue=b"bench00000+c1")),
            (b"get bench00000+c2\r\n", value(queue=b"bench00000+c2")),
        ],
    ),
    "memcache: a backlog is put": (
        Load("memcache", workload="fill", items=2, name="more"),
        [
            HELLO,
            (memcache_put(queue=b"more00000"), b"STORED\r\n"),
            (memcache_put(SECOND, b"more00000"), b"STORED\r\n"),
        ],
    ),
    "memcache: a backlog is taken": (
        Load("memcache", workload="drain", items=2),
        [HELLO, (b"get bench00000\r\n", value()), (b"get bench00000\r\n", value(SECOND))],
    ),
    "memcache: behind items of others": (
        Load("memcache", items=1, is_behind=True),
        [HELLO, (memcache_put(), b"STORED\r\n"), (b"get bench00000\r\n", value(b"whatever"))],
    ),
    "cache: each get of a flight brings the last item": (
        Load("cache", items=2, pipeline=2),
        [
            HELLO,
            (memcache_put() + memcache_put(SECOND), b"STORED\r\nSTORED\r\n"),
            (b"get bench00000\r\nget bench00000\r\n", value(SECOND) * 2),
        ],
    ),
    "beanstalk: put, reserve, delete": (
        Load("beanstalk", items=2, pipeline=2),
        [
            TUBES,
            USE,
            (b"put 0 0 120 8\r\n%b\r\nput 0 0 120 8\r\n%b\r\n" % (ITEM, SECOND), b"INSERTED 9\r\nINSERTED 10\r\n"),
            (b"reserve\r\nreserve\r\n", b"RESERVED 9 8\r\n%b\r\nRESERVED 10 8\r\n%b\r\n" % (ITEM, SECOND)),
            (b"delete 000000000009\r\ndelete 000000000010\r\n", b"DELETED\r\nDELETED\r\n"),
        ],
    ),
    "redis: a list": (
        Load("redis", items=1),
        [
            PING,
            (redis(b"LPUSH", QUEUE, ITEM), b":1\r\n"),
            (redis(b"RPOP", QUEUE), b"$8\r\n%b\r\n" % ITEM),
        ],
    ),
    "redis: a list of what is being worked on": (
        Load("redis", workload="reliable", items=1),
        [
            PING,
            (redis(b"LPUSH", QUEUE, ITEM), b":1\r\n"),
            (redis(b"LMOVE", QUEUE, QUEUE + b":held", b"RIGHT", b"LEFT"), b"$8\r\n%b\r\n" % ITEM),
            (redis(b"LREM", QUEUE + b":held", b"-1", ITEM), b":1\r\n"),
        ],
    ),
    "redis: the client puts to each of two lists": (
        Load("redis", workload="fanout", children=1, items=1),
        [
            PING,
            (redis(b"LPUSH", QUEUE, ITEM), b":1\r\n"),
            (redis(b"LPUSH", QUEUE + b":c1", ITEM), b":1\r\n"),
            (redis(b"RPOP", QUEUE), b"$8\r\n%b\r\n" % ITEM),
            (redis(b"RPOP", QUEUE + b":c1"), b"$8\r\n%b\r\n" % ITEM),
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_requests_have_the_protocol_of_each_server(name: str, generator: Generator) -> None:
    load, conversation = CONVERSATIONS[name]
    with scripted(talk(*conversation)) as server:
        figures = generator.run(load._replace(connections=1, size=8), port_of(server), NO_PID)
    places = load.children + 1 if load.workload == "fanout" else 1
    assert figures.items == (load.items or 0) * places
    assert 0 < figures.p50_us <= figures.p99_us <= figures.p999_us <= figures.max_us


def test_user_time_of_the_server_is_reported(generator: Generator) -> None:
    def play(connection: socket.socket) -> None:
        talk(HELLO, (memcache_put(), b"STORED\r\n"))(connection)
        end_s = os.times().user + 0.05
        while os.times().user < end_s:
            sum(range(10_000))
        talk((b"get bench00000\r\n", value()))(connection)

    with scripted(play) as server:
        figures = generator.run(Load("memcache", connections=1, size=8, items=1), port_of(server), os.getpid())
    assert figures.server_user_s >= 0.04  # in steps of 10 ms
    assert figures.user_us == figures.server_user_s * 1_000_000 / 2


def lies(lie: bytes) -> Conversation:
    return [HELLO, (memcache_put(), b"STORED\r\n"), (b"get bench00000\r\n", lie)]


LIES: dict[str, tuple[Conversation, str]] = {
    "a put that was not stored": (
        [HELLO, (memcache_put(), b"NOT_STORED\r\n")],
        r'expected "STORED\\r\\n", came "NOT_STORED\\r\\n"',
    ),
    "no item": (lies(b"END\r\n"), r'expected "VALUE bench00000 0 8\\r\\n", came "END\\r\\n"'),
    "another item": (lies(value(SECOND)), r'expected item 0, came "1"'),
    "another queue's item": (lies(value(queue=b"bench00001")), r'expected "VALUE bench00000 0 8'),
    "too much": (lies(value() + b"END\r\n"), r'expected nothing more, came "END\\r\\n"'),
    "too little": (lies(value()[:-1]), r"the server hung up \(.*\) after 0 of 1 replies"),
    "what nobody asked for": ([(HELLO[0], HELLO[1] + b"END\r\n"), (memcache_put(), b"")], r'expected "STORED\\r\\n"'),
}


@pytest.mark.parametrize("name", LIES)
def test_wrong_reply_is_found(name: str, generator: Generator) -> None:
    conversation, sentence = LIES[name]
    with scripted(talk(*conversation)) as server, pytest.raises(WrongReply, match=sentence):
        generator.run(Load("memcache", connections=1, size=8, items=1), port_of(server), NO_PID, "the liar")


def test_wrong_byte_behind_the_number_of_an_item_is_found(generator: Generator) -> None:
    put = b"set bench00000 0 0 9\r\n" + ITEM
    lie = b"VALUE bench00000 0 9\r\n" + ITEM + b"\xff\r\nEND\r\n"

    def play(connection: socket.socket) -> None:
        talk(HELLO)(connection)
        with connection.makefile("rb") as requests:
            heard = requests.read(len(put) + 3)
        assert heard.startswith(put) and not heard.endswith(b"\xff\r\n")
        connection.sendall(b"STORED\r\n")
        talk((b"get bench00000\r\n", lie))(connection)

    wrong = r'expected "(.|\\x[0-9a-f]{2})", came "\\xff'
    with scripted(play) as server, pytest.raises(WrongReply, match=wrong):
        generator.run(Load("memcache", connections=1, size=9, items=1), port_of(server), NO_PID)


@pytest.mark.parametrize(
    "lie, sentence",
    [
        ([(b"", b"")], "no answer"),
        ([PING, (redis(b"LPUSH", QUEUE, ITEM), b":2\r\n")], r'expected a count of 1, came "2"'),
        ([PING, (redis(b"LPUSH", QUEUE, ITEM), b":x\r\n")], r'expected a number, came "x'),
    ],
)
def test_wrong_number_is_found(lie: Conversation, sentence: str, generator: Generator) -> None:
    with scripted(talk(*lie)) as server, pytest.raises(WrongReply, match=sentence):
        generator.run(Load("redis", connections=1, size=8, items=1), port_of(server), NO_PID)


def test_job_with_another_number_than_put_is_found(generator: Generator) -> None:
    put = (b"put 0 0 120 8\r\n%b\r\n" % ITEM, b"INSERTED 9\r\n")
    lie = (b"reserve\r\n", b"RESERVED 8 8\r\n%b\r\n" % ITEM)
    talked = talk(TUBES, USE, put, lie)
    with scripted(talked) as server, pytest.raises(WrongReply, match=r'item number 9, came "8"'):
        generator.run(Load("beanstalk", connections=1, size=8, items=1), port_of(server), NO_PID)


@contextmanager
def ceiling(generator: Generator) -> Iterator[tuple[int, int]]:
    """Return the port and the process of `load serve`."""
    with Child[str]([generator.path, "serve"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.read_line().removeprefix("port ")), process.pid
        finally:
            process.kill()


FLAGS: dict[str, tuple[list[str], Callable[[dict[str, float]], bool]]] = {
    "connections": (["--connections", "20", "--items", "41"], lambda told: told["requests"] == 82),
    "one queue for all": (["--connections", "5", "--queues", "1", "--items", "25"], lambda told: told["items"] == 25),
    "small items": (["--size", "1", "--items", "300"], lambda told: told["items"] == 300),
    "large items": (["--size", "3000000", "--items", "4", "--pipeline", "2"], lambda told: told["items"] == 4),
    "a long pipeline": (["--pipeline", "30000", "--items", "30001"], lambda told: told["requests"] == 60002),
    "seconds": (["--seconds", "0.05"], lambda told: told["seconds"] >= 0.05 and told["requests"] == 2 * told["items"]),
    "other bytes": (["--seed", "7", "--items", "3"], lambda told: told["items"] == 3),
    "another name": (["--name", "others", "--items", "3"], lambda told: told["items"] == 3),
    "reliable": (["--workload", "reliable", "--items", "3"], lambda told: told["requests"] == 6),
    "fill": (["--workload", "fill", "--items", "3"], lambda told: told["requests"] == 3),
    "behind": (["--behind", "--items", "3"], lambda told: told["items"] == 3),
}


@pytest.mark.parametrize("name", FLAGS)
def test_each_option_has_its_effect(name: str, generator: Generator) -> None:
    words, is_so = FLAGS[name]
    with ceiling(generator) as (port, pid):
        asked = [generator.path, "--protocol", "memcache", "--port", str(port), "--pid", str(pid), *words]
        told = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert is_so(told), told
    assert told["requests_per_s"] == pytest.approx(told["requests"] / told["seconds"], rel=0.01)
    assert told["server_cpu_s"] >= 0


def test_all_times_are_in_the_histogram(generator: Generator) -> None:
    with ceiling(generator) as (port, _):
        asked = [generator.path, "--protocol", "memcache", "--port", str(port), "--items", "500", "--latencies"]
        told = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout)
    times = told["latencies_us"]
    assert sum(count for _, count in times) == 1000
    assert times == sorted(times)
    assert told["max_us"] == pytest.approx(times[-1][0], rel=1 / 64, abs=0.1)


WRONG_CALLS = {
    "nothing": ([], "--protocol and --port are required"),
    "no such protocol": (["--protocol", "smtp"], 'unknown protocol "smtp"'),
    "no such workload": (["--workload", "rest"], 'unknown workload "rest"'),
    "no such option": (["--host", "example.org"], "unrecognized option"),
    "no number": (["--size", "12k"], '"12k" is not a number from 1'),
    "too many": (["--connections", "1000000"], "is not a number from 1 to 100000"),
    "too long": (["--seconds", "1e9"], "is not a number of seconds up to 3600"),
    "a name that is none": (["--name", "a b"], "is not a name"),
    "no fanout": (["--protocol", "beanstalk", "--port", "1", "--workload", "fanout"], "not support workload fanout"),
    "a flight that waits": (
        ["--protocol", "redis", "--port", "1", "--workload", "waiting", "--pipeline", "2"],
        "the waiting workload needs --pipeline 1",
    ),
    "more than memory": (
        ["--protocol", "redis", "--port", "1", "--pipeline", "1000000", "--size", "1000000"],
        "more than 4 GiB",
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_arguments_are_explained(name: str, generator: Generator) -> None:
    words, sentence = WRONG_CALLS[name]
    done = subprocess.run([generator.path, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stdout == ""


def test_help_names_every_option(generator: Generator) -> None:
    said = subprocess.run([generator.path, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    load = Load("memcache", queues=1, items=1, is_behind=True)
    options = [word for word in load.arguments(1, 1) if word.startswith("--")]
    assert not [option for option in options if f"{option} " not in said]


def test_missing_compiler_is_reported_with_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install gcc"):
        Generator(tmp_path)
