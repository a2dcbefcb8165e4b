"""The paths of the admin port and their methods."""

from __future__ import annotations

import pytest

from kestrel.testing.server import MemoryServer
from tests.admin.browsing import Admin
from tests.memcache_text import set_

CALLS = (
    *("/health", "/ready", "/metrics", "/threads", "/api/overview", "/api/server", "/api/history", "/api/queue/work"),
    *("/api/connections", "/api/overview?server", "/api/overview?queue=work"),
    *("/ping", "/ping.json", "/ping.txt", "/server_info.json", "/server_info.txt"),
    *("/stats", "/stats.json", "/stats.txt"),
)
CHANGES = (
    *("/gc.json", "/quiesce.json", "/reload.json", "/shutdown.json", "/gc", "/api/reload", "/api/shutdown"),
    *("/api/queue/work/put",),
    *("/api/status/ReadOnly", "/api/queue/work/flush", "/api/queue/work/delete", "/api/queue/work/flush_expired"),
)
PAGES = ("/", "/pages/app.js", "/graph/", "/graph/work")
NOTHING = (
    *("//", "/nothing", "/nothing.json", "/api", "/api/", "/api/queue", "/api/queue/work/nothing", "/ping/", "/.."),
    *("/api/queue/work/items/more", "/api/status", "/api/status/Up/more", "/stats.xml", "/metrics/", "/api/overview/"),
    *("/%2e%2e/%2e%2e/etc/passwd", "/pages/../site.py", "/pages/%2e%2e%2fsite.py", "/pages/%2e%2e/site.py", "/pages"),
    *("/pages//etc/passwd", "/pages/%2fetc%2fpasswd", "/%00", "/ping%00", "/pages/app.js%00.html", "/%", "/%zz", "/%f"),
    *("http://localhost/ping", "http://[::1", "*", "/api/queue/", "/api/queue//", "/pages/..%5csite.py", "/ping;a=b"),
)

pytestmark = pytest.mark.usefixtures("pages")


@pytest.fixture
def admin() -> Admin:
    admin = Admin()
    admin.send(set_(b"work", b"1"))
    return admin


@pytest.mark.parametrize("path", CALLS)
def test_every_get_is_answered_and_head_has_its_headers(admin: Admin, path: str) -> None:
    whole, head = admin.get(path), admin.ask("HEAD", path)
    assert (whole.status, head.status, head.body) == (200, 200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]


@pytest.mark.parametrize("path", [*CALLS, *PAGES])
def test_post_to_a_read_only_path_is_refused(admin: Admin, path: str) -> None:
    reply = admin.post(path)
    assert (reply.status, reply.headers.get("allow")) == (405, "GET, HEAD")
    assert "GET" in reply.error


@pytest.mark.parametrize("path", CHANGES)
def test_get_of_a_changing_path_is_refused(path: str) -> None:
    admin = Admin()
    admin.send(set_(b"work", b"1"))
    reply = admin.get(path)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert "POST" in reply.error
    assert admin.ask("HEAD", path).status == 405
    assert admin.server.manager.queue(b"work").store.items == 1
    assert not admin.server.control.is_shut_down


@pytest.mark.parametrize("path", CHANGES)
def test_every_change_is_confirmed(admin: Admin, path: str) -> None:
    reply = admin.post(path)
    assert reply.status == 200
    assert list(reply.json) == ["done"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND"])
def test_other_methods_are_refused(admin: Admin, method: str) -> None:
    reply = admin.ask(method, "/ping")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, POST")
    assert method in reply.error


@pytest.mark.parametrize("path", NOTHING)
def test_unknown_paths_are_not_found(admin: Admin, path: str) -> None:
    reply = admin.get(path)
    assert reply.status == 404
    assert reply.error


def test_old_graph_paths_redirect_to_the_dashboard(admin: Admin) -> None:
    reply = admin.get("/graph/?g=gauge:items")
    assert (reply.status, reply.headers["location"]) == (302, "/")


def test_a_name_that_no_queue_can_have_is_not_found(admin: Admin) -> None:
    for name in ("%2f", "a%2fb", "..", "%00", "a" * 300, "+"):
        assert admin.get(f"/api/queue/{name}").status == 404
        assert admin.post(f"/api/queue/{name}/delete").status == 404


def test_requests_create_no_queue(admin: Admin) -> None:
    before = admin.server.manager.all_queues()
    for path in ("/api/queue/other", "/api/queue/other/items", "/api/history?queue=other"):
        admin.get(path)
    admin.post("/api/queue/other/flush")
    assert admin.server.manager.all_queues() == before


def test_every_get_is_answered_without_queues() -> None:
    admin = Admin(server=MemoryServer())
    for path in CALLS:
        assert admin.get(path).status == (404 if "/queue/" in path else 200)
