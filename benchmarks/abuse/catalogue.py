"""All abuses, with the settings of the server and the limit of its memory growth in MiB."""

from __future__ import annotations

from typing import Final

from benchmarks.abuse import administration, connections, disk, invalid_bytes, names, requests, thrift, unread_replies
from benchmarks.abuse.abuse_process import Abuse

_REPAIRS: Final = Abuse(
    "clients without an end",
    connections.without_an_end,
    16,
    config='keepAlive = "1s"\n',
    prepare=connections.put_what_vanishing_clients_take,
    check=connections.all_are_back,
)

ABUSES: Final = (
    Abuse("slow senders", connections.slow_senders, 16, config='requestTimeout = "500ms"\n'),
    Abuse("readers that do not read", connections.readers_that_do_not_read, 80, prepare=connections.put_a_big_item),
    Abuse("readers that hardly read", connections.readers_that_hardly_read, 80, prepare=connections.put_a_big_item),
    Abuse(
        "clients that vanish",
        connections.vanishing,
        16,
        config='keepAlive = "1s"\n',
        prepare=connections.put_what_vanishing_clients_take,
        check=connections.all_are_back,
    ),
    _REPAIRS,
    Abuse(
        "connections over the limit",
        connections.over_the_limit,
        32,
        config=f"maxConnections = {connections.MOST_CONNECTIONS}\n",
    ),
    Abuse("comings and goings", connections.comings_and_goings, 32),
    Abuse(
        "thousands of queues",
        requests.many_queues,
        32,
        config=f"maxQueues = {requests.MOST_QUEUES}\n",
        check=requests.no_more_queues_than_allowed,
    ),
    Abuse("nasty names", names.nasty_names, 32, check=names.nothing_touched, files=names.FILES),
    Abuse("half requests", connections.half_requests, 96, config='maxTotalRequestSize = "32MiB"\n'),
    Abuse("pipelines of 100,000", requests.pipelines, 64),
    Abuse("items of 8 to 16 MiB", requests.large_items, 128),
    Abuse("garbage", invalid_bytes.garbage, 32),
    Abuse("half TLS handshakes", invalid_bytes.half_handshakes, 96, arguments=invalid_bytes.tls_for_text),
    Abuse("plain bytes to TLS", invalid_bytes.plain_to_tls, 48, arguments=invalid_bytes.tls_for_text),
    Abuse(
        "a disk that hangs",
        disk.hanging_disk,
        # In addition to 16 MiB of uncommitted and queued data, each connection may send more after its put.
        192,
        config=disk.CONFIG,
        check=disk.nothing_lost,
        files=disk.FILES,
    ),
    Abuse(
        "gets of nothing",
        requests.gets_of_nothing,
        32,
        config=f"maxQueues = {requests.MOST_QUEUES}\n",
        check=requests.no_more_queues_than_allowed,
    ),
    Abuse("waiting gets", requests.waiting_gets, 64),
    Abuse("monitors", requests.monitors, 64),
    Abuse("unread lists", unread_replies.lists, 100, config=unread_replies.CONFIG, prepare=unread_replies.make_queues),
    Abuse(
        "unread admin answers",
        unread_replies.answers,
        100,
        config=unread_replies.CONFIG,
        prepare=unread_replies.make_queues,
    ),
    Abuse("monstrous thrift frames", thrift.monstrous_frames, 64),
    Abuse(
        "refused orders",
        administration.orders,
        32,
        config="administrators = []\n",
        prepare=administration.prepare,
        check=administration.nothing_done,
    ),
)

NEED_ROOT: Final = (_REPAIRS,)
