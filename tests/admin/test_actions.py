"""Changes by administrators at the admin port, over journals. Each change is logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.errors import QueueFailed
from kestrel.testing.server import MemoryServer, MemoryStatusFile
from kestrel.testing.storage import SteppedStorage
from tests.admin.browsing import Admin, reply_in, request
from tests.memcache_text import items, set_

SECRET = b"secret"


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    """Return a server with two items in a journal. The first expires in a second."""
    admin = Admin(server=MemoryServer(folder=tmp_path / "queues"))
    admin.send(set_(b"work", SECRET, 1), set_(b"work", SECRET))
    return admin


Held = tuple[Admin, SteppedStorage]


@pytest.fixture
def held() -> Held:
    """Return a server with an item, and its storage, which holds all commits."""
    storage = SteppedStorage()
    admin = Admin(storage=storage)
    admin.send(set_(b"work", SECRET))
    storage.holds_commits = True
    return admin, storage


def restarted(admin: Admin) -> MemoryServer:
    """Restart the server over its committed data."""
    admin.server.restart()
    return admin.server


def said(logged: list[str]) -> list[str]:
    """Return the log lines about changes by the admin port."""
    assert not [line for line in logged if "secret" in line]
    return [line.removeprefix("By the admin port: ") for line in logged if line.startswith("By the admin port: ")]


def test_a_queue_is_deleted(admin: Admin, logged: list[str]) -> None:
    assert admin.post("/api/queue/work/delete").json == {"done": "work was deleted"}
    assert admin.get("/api/queue/work").status == 404
    assert restarted(admin).manager.all_queues() == []
    assert said(logged) == ["work was deleted"]


def test_expired_items_of_a_queue_are_flushed(admin: Admin, logged: list[str]) -> None:
    admin.server.advance(2)
    assert admin.post("/api/queue/work/flush_expired").json == {"done": "1 expired item of work was removed"}
    assert admin.post("/api/queue/work/flush_expired").json == {"done": "0 expired items of work were removed"}
    assert items(restarted(admin).connect(), b"work") == [SECRET]
    assert said(logged)[0] == "1 expired item of work was removed"


@pytest.mark.parametrize("data", [b"", SECRET, b"a=1&b=2", bytes(range(256)) * 256], ids=len)
@pytest.mark.parametrize("kind", ["application/octet-stream", "application/x-www-form-urlencoded"])
def test_an_item_of_any_bytes_is_put(admin: Admin, data: bytes, kind: str, logged: list[str]) -> None:
    reply = admin.ask("POST", "/api/queue/new/put", {"Content-Type": kind}, data)
    assert reply.json == {"done": f"{len(data)} bytes were put to new"}
    assert items(restarted(admin).connect(), b"new") == [data]
    assert said(logged) == [f"{len(data)} bytes were put to new"]


def test_an_item_expires_after_the_given_time(admin: Admin) -> None:
    for expiry_ms in (0, 1500):
        assert admin.ask("POST", f"/api/queue/new/put?expiry_ms={expiry_ms}", body=b"%d" % expiry_ms).status == 200
    admin.server.advance(2)
    assert items(admin.server.connect(), b"new") == [b"0"]


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/api/queue/a%20b/put", 400, "a queue name cannot hold / ~ . white space or control characters"),
        (
            "/api/queue/new/put?expiry_ms=1.5",
            400,
            "the parameter expiry_ms must be a whole number of at most 18 digits",
        ),
        ("/api/queue/small/put", 409, "small does not accept the item, because of a limit in its settings"),
    ],
)
def test_an_item_that_cannot_be_put_is_refused(path: str, status: int, why: str) -> None:
    reply = Admin("[[queues]]\nname = 'small'\nmaxItemSize = 2").ask("POST", path, body=b"123")
    assert (reply.status, reply.error) == (status, why)


def test_items_are_moved_and_the_last_move_is_shown(admin: Admin, logged: list[str]) -> None:
    admin.send(b"get target\r\n")
    assert admin.get("/api/queue/work").json["move"] is None
    done = {"done": "the move of 1 item from work to target has begun"}
    assert admin.post("/api/queue/work/move?to=target&items=1").json == done
    assert admin.get("/api/queue/work").json["move"] == {
        "to": "target",
        "items": 1,
        "moved": 1,
        "is_running": False,
        "reason": None,
        "delay": None,
    }
    assert admin.post("/api/queue/work/move?to=target").json["done"].startswith("the move of 1 item ")
    assert items(restarted(admin).connect(), b"target") == [SECRET, SECRET]
    assert said(logged)[0] == done["done"]


@pytest.mark.parametrize("query", ["", "?to=", "?items=1"])
def test_a_move_without_a_target_is_refused(admin: Admin, query: str, logged: list[str]) -> None:
    reply = admin.post(f"/api/queue/work/move{query}")
    assert (reply.status, reply.error) == (400, "the query needs to=QUEUE, the queue to move the items to")
    assert said(logged) == []


def test_a_move_is_stopped(logged: list[str]) -> None:
    storage = SteppedStorage()
    admin = Admin(storage=storage)
    admin.send(*[set_(b"work", SECRET)] * 100, b"get target\r\n")
    storage.holds_commits = True
    admin.post("/api/queue/work/move?to=target")
    again = admin.post("/api/queue/work/move?to=target")
    assert (again.status, again.error) == (409, "items of work are already moving to target")
    storage.end_commits(b"work")
    admin.server.settle()
    assert admin.post("/api/queue/work/stop_move").json == {"done": "the move from work to target was stopped"}
    storage.holds_commits = False
    while storage.committing:
        storage.end_commits()
        admin.server.settle()
    told = admin.get("/api/queue/work").json["move"]
    assert (told["moved"], told["is_running"], told["reason"]) == (64, False, "it was stopped")
    again = admin.post("/api/queue/work/stop_move")
    assert (again.status, again.error) == (409, "no items of work are moving")
    assert said(logged)[-1] == "the move from work to target was stopped"


@pytest.mark.parametrize("action", ["flush", "delete", "flush_expired", "move?to=work"])
def test_a_change_of_an_unknown_queue_is_refused(admin: Admin, action: str, logged: list[str]) -> None:
    reply = admin.post(f"/api/queue/nothing/{action}")
    assert (reply.status, reply.error) == (404, "there is no queue nothing")
    assert said(logged) == []


@pytest.mark.parametrize("action", ["flush", "delete", "flush_expired", "put", "move?to=other"])
@pytest.mark.parametrize("status", ["ReadOnly", "Quiescent"])
def test_queues_cannot_be_changed_while_the_status_forbids_writes(admin: Admin, action: str, status: str) -> None:
    admin.post(f"/api/status/{status}")
    reply = admin.post(f"/api/queue/work/{action}")
    assert (reply.status, reply.error) == (503, f"the server is {status}")
    admin.post("/api/status/Up")
    assert len(items(admin.server.connect(), b"work")) == 2


def test_the_status_is_changed_and_remembered(admin: Admin, logged: list[str]) -> None:
    assert admin.post("/api/status/ReadOnly").json == {"done": "the status is ReadOnly"}
    assert admin.post("/api/status/writeavoid").json == {"done": "the status is WriteAvoid"}
    assert admin.post("/quiesce.json").json == {"done": "the status is Quiescent"}
    assert said(logged)[-1] == "the status is Quiescent"
    assert restarted(admin).core.status.published.value == "Quiescent"


@pytest.mark.parametrize("name", ["Nothing", "", "Down", "%00", "%ff", "Up%0aDown"])
def test_an_unknown_status_is_refused_with_the_known_ones(admin: Admin, name: str, logged: list[str]) -> None:
    reply = admin.post(f"/api/status/{name}")
    assert reply.status == 409
    assert "Up" in reply.error or "Down" in reply.error
    assert said(logged) == []


def test_a_status_that_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    file = MemoryStatusFile()
    file.error = PermissionError(13, "Permission denied")
    reply = Admin(server=MemoryServer(status_file=file)).post("/api/status/ReadOnly")
    assert (reply.status, reply.error) == (
        503,
        "the status is changed, but a restart will not keep it: Permission denied",
    )


def test_a_stop_disconnects_idle_clients_and_answers_the_others(held: Held) -> None:
    admin, storage = held
    idle, asking = admin.connect(), admin.connect()
    assert asking.ask(request("POST", "/api/queue/work/flush") + request("POST", "/api/status/ReadOnly")) == b""
    admin.port.hang_up()
    admin.server.settle()
    assert (idle.is_closed, asking.is_closed) == (True, False)
    storage.end_commits()
    assert reply_in(asking.take()).status == 200
    assert asking.is_closed
    assert admin.server.core.status.takes_writes, "what was asked for besides is not carried out any more"


@pytest.mark.parametrize("sent_bytes", [1, 40, -1])
def test_an_incomplete_request_is_dropped_by_a_stop(sent_bytes: int) -> None:
    admin = Admin()
    client = admin.connect()
    whole = request("POST", "/api/status/ReadOnly")
    client.send(whole[:sent_bytes])
    admin.server.settle()
    admin.port.hang_up()
    client.send(whole[sent_bytes:])
    admin.server.settle()
    assert client.is_closed
    assert admin.server.core.status.takes_writes


def test_an_abort_disconnects_waiting_clients(held: Held) -> None:
    admin, _ = held
    client = admin.connect()
    client.ask(request("POST", "/api/queue/work/flush"))
    admin.port.hang_up()
    admin.server.settle()
    assert not client.is_closed
    admin.port.abort()
    admin.server.settle()
    assert client.is_closed
    assert admin.site.buildProtocol(client.transport.getPeer()) is None


def test_a_flush_is_answered_after_its_commit(held: Held) -> None:
    admin, storage = held
    client = admin.connect()
    assert client.ask(request("POST", "/api/queue/work/flush")) == b""
    storage.end_commits()
    assert reply_in(client.take()).status == 200


def test_a_flush_whose_commit_fails_is_reported(held: Held, logged: list[str]) -> None:
    admin, storage = held
    client, gone = admin.connect(), admin.connect()
    client.ask(request("POST", "/api/queue/work/flush"))
    gone.ask(request("POST", "/api/queue/work/flush"))
    gone.disconnect()
    storage.end_commits(error=QueueFailed("the disk is broken"))
    reply = reply_in(client.take())
    assert (reply.status, reply.error) == (503, "the disk is broken")
    assert said(logged) == []


def test_gc_runs_the_garbage_collector(admin: Admin) -> None:
    assert admin.post("/gc.json").json["done"].endswith("objects were freed")
