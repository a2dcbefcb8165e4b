"""A server that serves the dashboard, and answers it with the data of a test.

Its time is simulated: each request for `/api/overview` is two seconds after the one before.
"""

from __future__ import annotations

import base64
import json
import math
import mimetypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote_to_bytes, urlsplit

import kestrel
from kestrel.escaping import show_name
from tests.server.running import own_port

PAGES: Final = Path(kestrel.__file__).parent / "admin" / "pages"
BETWEEN_LOOKS_MS: Final = 2_000
STEP_MS: Final = 10_000
NOW_MS: Final = 1_790_000_000_000
COLUMNS: Final = (
    *("name", "items", "bytes", "mem_items", "mem_bytes", "age_msec", "oldest_age_msec", "waiters"),
    *("open_transactions", "journal_bytes", "put_items", "put_bytes", "get_items_hit", "get_items_miss"),
    *("expired_items", "discarded"),
)
CONNECTION_COLUMNS: Final = (
    *("address", "protocol", "client", "requests", "open_reads", "waits_for"),
    *("bytes_in", "bytes_out", "unsent_bytes", "silent_msec"),
)
LATENCIES: Final = (
    *("set_latency_usec", "get_hit_latency_usec", "get_miss_latency_usec", "get_timeout_msec"),
    *("delivery_latency_msec", "request_size", "fill_readbehind_usec", "journal_rewrite_usec"),
    *("journal_rotation_usec", "fsync_delay_usec"),
)


@dataclass
class FakeQueue:
    """The data of a queue. Rates are for each request. Its history is a list of items, the newest last."""

    name: bytes
    items: int = 0
    bytes: int = 0
    mem_items: int = 0
    mem_bytes: int = 0
    age_msec: int = 0
    oldest_age_msec: int | None = 0
    waiters: int = 0
    open_transactions: int = 0
    journal_bytes: int = 0
    expired_items: int = 0
    discarded: int = 0
    puts_a_look: int = 0
    gets_a_look: int = 0
    history: list[int | None] = field(default_factory=list)
    children: tuple[bytes, ...] = ()
    failure: str | None = None
    contents: tuple[bytes, ...] = ()
    """The items in memory."""
    move: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """Return the name as it is in JSON."""
        return show_name(self.name)

    def figures(self, looks: int) -> dict[str, Any]:
        """Return the row of the queue after that many requests."""
        return {
            **{key: getattr(self, key) for key in COLUMNS if hasattr(self, key) and key != "name"},
            "name": self.text,
            "put_items": 1000 + self.puts_a_look * looks,
            "put_bytes": 150 * (1000 + self.puts_a_look * looks),
            "get_items_hit": 900 + self.gets_a_look * looks,
            "get_items_miss": 3,
        }


def wave(middle: float, swing: float) -> list[int | None]:
    """Return a history of 360 samples that rises and falls every 90."""
    return [max(0, round(middle + swing * math.sin(at * 2 * math.pi / 90))) for at in range(360)]


@dataclass
class FakeServer:
    """The data of the server, which a test sets, and the requests it got."""

    queues: list[FakeQueue] = field(default_factory=list)
    status: str = "Up"
    in_force: str | None = None
    storage: str = "journal:/var/spool/kestrel"
    may_administer: bool = True
    peek: bool = False
    token: str | None = None
    """The administrators' token. With one, `may_administer` is whether the last request had it."""
    connections: list[list[Any]] = field(default_factory=list)
    max_total_memory: int | None = 2**30
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Paths that are answered with that status and error."""
    looks: int = 0
    requests: list[str] = field(default_factory=list)
    """The target of each request, as the browser sent it."""
    posts: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The body of each POST."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._port = own_port()
        self.port = self._port.__enter__()
        self.url = f"http://127.0.0.1:{self.port}"
        self.come_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_away()
        self._port.__exit__(kind, error, trace)

    def come_back(self) -> None:
        """Start to listen."""
        self._listening = Listening(("127.0.0.1", self.port), handler_of(self))
        self._thread = threading.Thread(target=self._listening.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def go_away(self) -> None:
        """Refuse connections."""
        if self._thread.is_alive():
            self._listening.shutdown()
            self._listening.server_close()
            self._thread.join()

    def queue(self, name: bytes) -> FakeQueue | None:
        return next((queue for queue in self.queues if queue.name == name), None)

    def get(self, path: str, query: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a response."""
        words = path.strip("/").split("/")
        if words[1:] == ["overview"]:
            self.looks += 1
            return 200, {**self.overview(), **self.details(query)}
        if words[1:] == ["history"]:
            return 200, self.history([unquote_to_bytes(each.partition("=")[2]) for each in query.split("&") if each])
        given = dict(each.split("=") for each in query.split("&"))
        if words[1:] == ["connections"]:
            queue_name = given.get("queue")
            shown = None if queue_name is None else show_name(unquote_to_bytes(queue_name))
            return 200, self.connections_from(int(given["first"]), shown)
        queue = self.queue(unquote_to_bytes(words[2]))
        assert queue is not None
        return 200, self.items_of(queue, int(given["first"]))

    def details(self, query: str) -> dict[str, Any]:
        """Return the details of a queue or of the server that an overview has with this query."""
        if query == "server":
            figures = {"uptime": 2 * self.looks, **self.server_figures()}
            settings = {"maxTotalMemory": "1 GiB", "storage": self.storage}
            return {"details": {"figures": figures, "settings": settings, "latencies": latencies()}}
        if not query:
            return {}
        name = unquote_to_bytes(query.removeprefix("queue="))
        queue = self.queue(name)
        return {"queue": {"error": f"There is no queue {show_name(name)}."} if queue is None else self.told_of(queue)}

    def connections_from(self, first: int, queue: str | None) -> dict[str, Any]:
        """Return two connections from number `first` on."""
        waits_for = CONNECTION_COLUMNS.index("waits_for")
        listed = [each for each in self.connections if queue in (None, each[waits_for])]
        return {
            "connected": len(self.connections),
            "columns": CONNECTION_COLUMNS,
            "connections": listed[first : first + 2],
            "next": first + 2 if first + 2 < len(listed) else None,
        }

    def overview(self) -> dict[str, Any]:
        figures = [queue.figures(self.looks) for queue in sorted(self.queues, key=lambda queue: queue.name)]
        return {
            "server": {
                "name": "kestrel.example.org",
                "version": "1.0.0",
                "build": "compiled",
                "storage": self.storage,
                "status": self.status,
                "in_force": self.in_force or self.status,
                "uptime_ms": 93_784_000 + BETWEEN_LOOKS_MS * self.looks,
                "time_ms": NOW_MS + BETWEEN_LOOKS_MS * self.looks,
                "may_administer": self.may_administer,
                "peek": self.peek,
                "has_tokens": self.token is not None,
                "figures": self.server_figures(),
                "max_total_memory": self.max_total_memory,
            },
            "columns": COLUMNS,
            "queues": [[each[column] for column in COLUMNS] for each in figures],
        }

    def server_figures(self) -> dict[str, int]:
        def total(key: str) -> int:
            return sum(getattr(queue, key) for queue in self.queues)

        puts, gets = total("puts_a_look") * self.looks, total("gets_a_look") * self.looks
        return {
            "curr_items": total("items"),
            "bytes": total("bytes"),
            "total_items": puts,
            "curr_connections": 12,
            "total_connections": 3456,
            "rejected_connections": 0,
            "foreign_requests": 0,
            "cmd_get": gets + 40,
            "cmd_set": puts,
            "cmd_peek": 0,
            "get_hits": gets,
            "get_misses": 40,
            "bytes_read": 150 * puts,
            "bytes_written": 150 * gets,
            "queue_creates": len(self.queues),
            "queue_deletes": 0,
            "queue_expires": 0,
            "mem_bytes": total("mem_bytes"),
            "waiters": total("waiters"),
            "open_transactions": total("open_transactions"),
            "journal_bytes": total("journal_bytes"),
        }

    def history(self, names: list[bytes]) -> dict[str, Any]:
        series = {}
        for name in names or [b""]:
            queue = self.queue(name)
            items = wave(4000, 2500) if not name else queue.history if queue else []
            if items:
                wavy = (round(40 + 25 * math.sin(at / 17), 1) for at in range(len(items)))
                rates = [None if each is None else rate for each, rate in zip(items, wavy, strict=True)]
                series[show_name(name)] = {
                    "items": items,
                    "bytes": [None if each is None else each * 150 for each in items],
                    "puts": rates,
                    "gets": [None if each is None else round(each * 0.8, 1) for each in rates],
                }
        return {"step_ms": STEP_MS, "end_ms": NOW_MS + BETWEEN_LOOKS_MS * self.looks, "series": series}

    def told_of(self, queue: FakeQueue) -> dict[str, Any]:
        figures = queue.figures(self.looks)
        del figures["name"]
        return {
            "name": queue.text,
            "exists": True,
            "figures": {"total_items": 1000, "create_time": NOW_MS - 86_400_000, "children": "x", **figures},
            "settings": {"maxItems": "none", "maxMemorySize": "128 MiB", "keepJournal": "true"},
            "children": [show_name(child) for child in queue.children],
            "failure": queue.failure,
            "latencies": latencies(),
            "move": queue.move,
        }

    def items_of(self, queue: FakeQueue, first: int) -> dict[str, Any]:
        shown = [
            {
                "bytes": len(data),
                "age_msec": 5,
                "expires_msec": None,
                "errors": 0,
                "data_base64": base64.b64encode(data[:4096]).decode(),
                "is_whole": len(data) <= 4096,
            }
            for data in queue.contents[first : first + 20]
        ]
        return {"first": first, "items": shown, "in_memory": len(queue.contents), "total": queue.items}

    def post(self, path: str) -> tuple[int, dict[str, Any]]:
        """Execute a change, and return the response."""
        self.posts.append(path)
        words = path.strip("/").split("/")[1:]
        if words[0] == "status":
            self.status = words[1]
            return 200, {"done": f"The status is {words[1]}."}
        if words[0] != "queue":
            return 200, {"done": f"Done: {words[0]}."}
        name = unquote_to_bytes(words[1])
        queue = self.queue(name)
        if queue is None:
            return 404, {"error": "There is no such queue."}
        if words[2] == "delete":
            self.queues.remove(queue)
        elif words[2] == "flush":
            queue.items = queue.bytes = 0
        elif words[2].startswith("move?"):
            told = {"to": "work", "items": queue.items, "moved": 0, "is_running": True, "reason": None, "delay": None}
            queue.move = told
        elif words[2] == "stop_move":
            assert queue.move is not None
            queue.move |= {"is_running": False, "reason": "it was stopped"}
        return 200, {"done": f"Done to {queue.text}: {words[2]}."}


class Listening(ThreadingHTTPServer):
    """A browser may disconnect before it has its response."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def latencies() -> dict[str, dict[str, float]]:
    """Distributions of everything but syncs, of which there were none."""
    made: dict[str, dict[str, float]] = {
        name: {
            "count": 1000 * number,
            "sum": 120_000.0 * number,
            "average": 120.0 * number,
            "minimum": 4,
            "p50": 95 * number,
            "p90": 240 * number,
            "p95": 400 * number,
            "p99": 1_900 * number,
            "p999": 12_000 * number,
            "p9999": 40_000 * number,
            "maximum": 64_000 * number,
        }
        for number, name in enumerate(LATENCIES, start=1)
    }
    return {**made, "fsync_delay_usec": {"count": 0}}


def handler_of(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    """The handler of the requests of one connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            target = urlsplit(self.path)
            if target.path.startswith("/api/"):
                self.answer_api(target.path, lambda: fake.get(target.path, target.query))
                return
            path = PAGES / (target.path.removeprefix("/pages/") if target.path != "/" else "index.html")
            if path.is_file():
                kind = mimetypes.guess_type(path.name)[0] or "text/plain"
                self.answer(200, kind, path.read_bytes())
            else:
                self.answer(404, "text/plain", b"There is nothing here.")

        def do_POST(self) -> None:
            fake.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self.answer_api(self.path, lambda: fake.post(self.path))

        def answer_api(self, path: str, ask: Callable[[], tuple[int, dict[str, Any]]]) -> None:
            with fake.lock:
                fake.requests.append(self.path)
                if fake.token is not None:
                    given = self.headers["Authorization"]
                    fake.may_administer = given == f"Bearer {fake.token}"
                    if given and not fake.may_administer:
                        self.answer(401, "application/json", b'{"error": "The token is not valid."}')
                        return
                if path in fake.refusals:
                    if self.command == "POST":
                        fake.posts.append(path)
                    code, error = fake.refusals[path]
                    told: dict[str, Any] = {"error": error}
                else:
                    code, told = ask()
            self.answer(code, "application/json", json.dumps(told).encode())

        def answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", "default-src 'self'")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler
