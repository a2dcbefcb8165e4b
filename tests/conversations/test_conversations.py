"""The original's recorded conversations, byte for byte but for what we do otherwise on purpose.

One server takes part in all of them, in the order in which they were recorded; and then another, over the next of the
durable backends. Those in which the recorder slept are played to servers in memory, whose time is the test's.
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
    """Those in which that server has taken part."""
    return []


def expected_steps(conversation: Conversation) -> list[Step]:
    """The recorded steps with our differences in place of what was recorded."""
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
    """Have the server take part in that one, and before in those in front of it that it has not been in.

    Some go on with what others have left, and where several processes run these tests no server is in all.
    """
    for conversation in UNTIMED:
        if conversation not in played:
            played.append(conversation)
            prepare(conversation, server)
            play(conversation, server.port_of(conversation.protocol), expected_steps(conversation))
        if conversation is last:
            break


@pytest.mark.parametrize("conversation", UNTIMED, ids=lambda conversation: conversation.name)
def test_a_conversation_goes_as_it_was_recorded(
    conversation: Conversation, server: Server, played: list[Conversation]
) -> None:
    play_up_to(conversation, server, played)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("conversation", TIMED, ids=lambda conversation: conversation.name)
def test_a_timed_conversation_goes_as_it_was_recorded(
    conversation: Conversation, backend: str, tmp_path: Path
) -> None:
    server = MemoryServer(config=loads(CONFIG), folder=tmp_path / "queues", make_storage=BACKENDS[backend].make)
    play_in_memory(conversation, server, expected_steps(conversation))


def queues_named_in(conversation: Conversation) -> set[str]:
    """Every word of its requests that may be a queue's name."""
    sent = " ".join(str(step.get("send", ""))[:1000] for step in conversation.steps)
    return set(re.split(r"[\s/]+", sent))


def test_stats_tell_of_each_queue_what_the_original_told(server: Server, played: list[Conversation]) -> None:
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


def test_every_name_in_the_tables_is_that_of_a_recorded_conversation() -> None:
    assert {*DIFFERENCES, *NEEDS} <= set(CONVERSATIONS)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_one(name: str) -> None:
    conversation = CONVERSATIONS[name]
    for index, (reply, closed) in DIFFERENCES[name].answers.items():
        recorded = conversation.steps[index]
        assert (recorded["recv"], recorded["closed"]) != (reply, closed)


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=lambda conversation: conversation.name)
def test_everything_recorded_can_be_compared(conversation: Conversation) -> None:
    for step in conversation.steps:
        _, rest = replies_in(step.get("recv", "").encode("latin-1"), PARSERS[conversation.protocol])
        assert rest == b""
