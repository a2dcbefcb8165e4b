"""The recorded conversations of the original, byte for byte except for intended differences.

One server plays all of them, in the order of the recording, and then another server over the next durable storage.
Those in which the recorder slept are played to servers in memory, whose time the test controls.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.config.load import loads
from kestrel.testing.server import MemoryServer
from tests.conversations.playing import Conversation, Step, play, play_in_memory, recorded_conversations
from tests.conversations.replies import PARSERS, Stats, queue_difference, replies_in, stats_of_queue
from tests.conversations.tables import DIFFERENCES, NEEDS, QUEUES_WITH_OTHER_STATS
from tests.server.running import Processes, Server
from tests.server.storages import SERVED, new_storage
from tests.storage.backends import BACKENDS

CONVERSATIONS = recorded_conversations()
UNTIMED = [conversation for conversation in CONVERSATIONS.values() if not conversation.is_timed]
TIMED = [conversation for conversation in CONVERSATIONS.values() if conversation.is_timed]
CONFIG = Path(__file__).with_name("config.toml").read_text()


@pytest.fixture(scope="module", params=SERVED)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(f"conversations-{request.param}")
    with new_storage(request.param) as storage, Processes(folder) as processes:
        server = processes.serve(CONFIG, "--storage", storage)
        yield server
        server.stop()


@pytest.fixture(scope="module")
def played(server: Server) -> list[Conversation]:
    """The conversations that the server has played."""
    return []


def expected_steps(conversation: Conversation) -> list[Step]:
    """Return the recorded steps with the intended differences."""
    difference = DIFFERENCES.get(conversation.name)
    if difference is None:
        return conversation.steps
    steps = list(conversation.steps)
    for index, (reply, closed) in difference.answers.items():
        steps[index] = {**steps[index], "recv": reply, "closed": closed}
    return [*steps, *difference.afterwards]


def prepare(conversation: Conversation, server: Server) -> None:
    if conversation.name in NEEDS:
        with server.connect() as client:
            request, reply = NEEDS[conversation.name]
            client.ask(request.encode(), reply.encode())


def play_up_to(last: Conversation, server: Server, played: list[Conversation]) -> None:
    """Play a conversation, after those before it that the server has not played.

    Some depend on earlier ones, and with several test processes no server plays all.
    """
    for conversation in UNTIMED:
        if conversation not in played:
            played.append(conversation)
            prepare(conversation, server)
            play(conversation, server.port_of(conversation.protocol), expected_steps(conversation))
        if conversation is last:
            break


@pytest.mark.parametrize("conversation", UNTIMED, ids=lambda conversation: conversation.name)
def test_conversation_has_the_recorded_replies(
    conversation: Conversation, server: Server, played: list[Conversation]
) -> None:
    play_up_to(conversation, server, played)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("conversation", TIMED, ids=lambda conversation: conversation.name)
def test_timed_conversation_has_the_recorded_replies(
    conversation: Conversation, backend: str, tmp_path: Path
) -> None:
    server = MemoryServer(config=loads(CONFIG), folder=tmp_path / "queues", make_storage=BACKENDS[backend].make)
    play_in_memory(conversation, server, expected_steps(conversation))


def queues_named_in(conversation: Conversation) -> set[str]:
    """Return every word of its requests that may be the name of a queue."""
    sent = " ".join(str(step.get("send", ""))[:1000] for step in conversation.steps)
    return set(re.split(r"[\s/]+", sent))


def test_stats_of_each_queue_are_those_of_the_original(server: Server, played: list[Conversation]) -> None:
    play_up_to(UNTIMED[-1], server, played)
    recorded = CONVERSATIONS["memcache: stats with arg"].steps[0]["recv"].encode("latin-1")
    original = replies_in(recorded, PARSERS["memcache"])[0][0].stats
    assert original is not None
    with server.connect() as client:
        ours: Stats = client.stats()
    alike = [each for each in UNTIMED if each.name not in DIFFERENCES]
    others = [each for each in CONVERSATIONS.values() if each not in alike]
    named = set[str]().union(*map(queues_named_in, alike)) - set[str]().union(*map(queues_named_in, others))
    different = {}
    for queue in sorted(named - set(QUEUES_WITH_OTHER_STATS)):
        theirs = stats_of_queue(original, queue)
        if theirs and (difference := queue_difference(theirs, stats_of_queue(ours, queue))) is not None:
            different[queue] = difference
    assert different == {}


# The tables.


def test_tables_name_only_recorded_conversations() -> None:
    assert {*DIFFERENCES, *NEEDS} <= set(CONVERSATIONS)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_differs(name: str) -> None:
    conversation = CONVERSATIONS[name]
    for index, (reply, closed) in DIFFERENCES[name].answers.items():
        recorded = conversation.steps[index]
        assert (recorded["recv"], recorded["closed"]) != (reply, closed)


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=lambda conversation: conversation.name)
def test_every_recorded_reply_can_be_compared(conversation: Conversation) -> None:
    for step in conversation.steps:
        _, rest = replies_in(step.get("recv", "").encode("latin-1"), PARSERS[conversation.protocol])
        assert rest == b""
