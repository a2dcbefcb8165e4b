"""URIs of server sets."""

from __future__ import annotations

import pytest

from kestrel.address import Address
from kestrel.cluster.uri import ServerSetUri, is_server_set, parse_server_set
from kestrel.tls import TlsOptions


def test_one_zookeeper_and_a_path() -> None:
    assert parse_server_set("zk://zk1/services/kestrel") == ServerSetUri(
        (Address("zk1", 2181),), "/services/kestrel", None, None
    )


def test_several_hosts_with_ports_and_a_user() -> None:
    uri = parse_server_set("zk://us%40er:p:w%2F@zk1:2182,[::1]:3,zk3/k/")
    assert uri == ServerSetUri(
        (Address("zk1", 2182), Address("::1", 3), Address("zk3", 2181)), "/k", "us@er:p:w/", None
    )


def test_password_may_have_a_bracket() -> None:
    assert parse_server_set("zk://me:[secret@zk1/k").credentials == "me:[secret"


def test_uri_with_tls() -> None:
    assert parse_server_set("zks://zk1/k").tls == TlsOptions()
    assert parse_server_set("zks://zk1/k?ca=/a%20b.pem&cert=c&key=k&server-name=zoo").tls == TlsOptions(
        "/a b.pem", "c", "k", "zoo"
    )


def test_text_omits_the_password() -> None:
    uri = parse_server_set("zks://me:secret@zk1,zk2:7/k?ca=x")
    assert str(uri) == "zks://zk1:2181,zk2:7/k"
    assert "secret" not in repr(uri)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zk://zk1", "has no path of the server sets"),
        ("zk://zk1/", "has no path of the server sets"),
        ("zk://zk1//k", "has no path of the server sets"),
        ("zk://zk1/k#x", "has no path of the server sets"),
        ("zk://zk1,/k", "is no address"),
        ("zk:///k", "is no address"),
        ("zk://zk1:0/k", "is no port"),
        ("zk://secret@zk1/k", "write USER:PASSWORD before the @"),
        ("zk://:secret@zk1/k", "write USER:PASSWORD before the @"),
        ("zk://me:secret@zk1/k?ca=x", "need TLS; write zks://"),
        ("zks://me:secret@zk1/k?cafile=x", "after the [?] write ca=..."),
        ("zks://me:secret@zk1/k?ca", "cannot be parsed"),
        ("zks://me:secret@zk1/k?ca=", "after the [?] write ca=..."),
        ("zk://me:sec/ret-secret@zk1/k", "write %2F for /"),
        ("zk://me:12/secret@zk1/k", "write %2F for /"),
        ("zk://me:secret?x@zk1/k", "%3F for [?]"),
        ("zk://me:secret#x@zk1/k", "%23 for #"),
        ("zoo://me:secret@zk1/k", "is not a URI of server sets; write zk://host:2181/path"),
    ],
)
def test_error_omits_the_password(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_server_set(text)
    assert "secret" not in str(caught.value)


def test_server_is_no_server_set() -> None:
    assert [is_server_set(text) for text in ("zk://a/b", "zks://a/b", "zk", "zk:2181", "")] == [
        *(True, True),
        *(False, False, False),
    ]
