"""A page of another site in a real browser, which sends requests to every port of a server."""

from urllib.parse import quote_from_bytes

import pytest

from tests.dashboard.browser import Browser
from tests.promises.test_other_protocols import BODIES
from tests.server.running import Processes

pytestmark = pytest.mark.needs("chromium", "chromedriver")

FETCH = """
const [url, body, done] = arguments;
fetch(url, {method: "POST", mode: "no-cors", body}).then(() => done("answered"), () => done("failed"));
"""
PAGE = """<!doctype html><form method="post" enctype="text/plain"><textarea name="x"></textarea></form>"""
SUBMIT = """
const [url, body] = arguments, form = document.forms[0];
form.action = url, form.elements.x.value = "\\n" + body;
form.submit();
"""


def test_page_of_another_site_commands_no_port(driver: Browser, processes: Processes) -> None:
    page = processes.write("page.html", PAGE)
    server = processes.serve()
    with server.connect() as client:
        client.put(b"work", b"x")

        def refused() -> int:
            return int(client.stats()["foreign_requests"])

        driver.get(page.as_uri())
        for protocol, body in BODIES.items():
            url = f"http://127.0.0.1:{server.port_of(protocol)}/"
            padded = (body + b"\n" * 4096).decode("latin-1")
            assert driver.execute_async_script(FETCH, url, padded) == "failed"
        for path in ("shutdown", "api/queue/work/flush", "api/queue/work/delete", quote_from_bytes(BODIES["text"])):
            url = f"http://127.0.0.1:{server.port_of('admin')}/{path}"
            assert driver.execute_async_script(FETCH, url, "") == "answered"
        assert refused() >= 2  # a browser may try again
        before = refused()
        driver.execute_script(SUBMIT, f"http://127.0.0.1:{server.port_of('text')}/", BODIES["text"].decode())
        driver.wait_until(lambda: refused() > before, "the form has arrived")
        assert client.stats()["queue_work_items"] == "1"
        assert client.get(b"work") == b"x"
    assert server.process.poll() is None
