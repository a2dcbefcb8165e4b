"""The dashboard's files are served, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.admin.browsing import Admin


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/", "text/html; charset=utf-8", b"<title>queues</title>"),
        ("/pages/index.html", "text/html; charset=utf-8", b"<title>queues</title>"),
        ("/pages/app.js", "text/javascript; charset=utf-8", b"let a = 1"),
        ("/pages/inner/deep.css", "text/css; charset=utf-8", b"p { color: red }"),
    ],
)
def test_a_file_of_the_dashboard_is_served(pages: Path, path: str, content_type: str, body: bytes) -> None:
    reply = Admin().get(path)
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, content_type, body)
    assert reply.headers["cache-control"] == "no-cache"


def test_a_large_file_is_complete(pages: Path) -> None:
    large = b"0123456789" * 50_000
    (pages / "large.js").write_bytes(large)
    assert Admin().get("/pages/large.js").body == large


@pytest.mark.parametrize(
    "path",
    [
        *("../secret.html", "%2e%2e/secret.html", "..%2fsecret.html", "inner/../index.html", "./index.html"),
        *("inner%2fdeep.css", "inner", "inner/", "", "__init__.py", "/index.html", "index.html/", "INDEX.HTML"),
        *("..\\secret.html", "%2e%2e%5csecret.html", "index.html%00", "app.js%00.html", "/etc/passwd", "%c0%ae"),
    ],
)
def test_other_files_are_not_served(pages: Path, path: str) -> None:
    assert Admin().get(f"/pages/{path}").status == 404
