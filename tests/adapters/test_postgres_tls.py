"""``sslmode`` in a store's URL: libpq's own TLS over Trio, against a server that proves who it is or does not.

The server that tests bring along is built without TLS, so what answers PostgreSQL's request for it stands before it.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_ports.conformance.journal import lead, read_all, rows_after
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended
from tests.adapters.postgres_proxy import Way
from tests.adapters.test_http_tls import self_signed
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

SSL_REQUEST = (8).to_bytes(4, "big") + (80_877_103).to_bytes(4, "big")


async def serve_tls(target: int, context: ssl.SSLContext, client: trio.SocketStream) -> None:
    async with client:
        asked = b""
        while len(asked) < len(SSL_REQUEST):
            asked += await client.receive_some(len(SSL_REQUEST) - len(asked))
        assert asked == SSL_REQUEST
        await client.send_all(b"S")
        plain = trio.SSLStream(client, context, server_side=True)
        try:
            await plain.do_handshake()
        except trio.BrokenResourceError:
            return
        async with await trio.open_tcp_stream("127.0.0.1", target) as server, trio.open_nursery() as nursery:
            nursery.start_soon(Way().copy, plain, server, nursery.cancel_scope)
            nursery.start_soon(Way().copy, server, plain, nursery.cancel_scope)


@asynccontextmanager
async def tls_before(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, partial(serve_tls, port, context), [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_server_that_proves_itself(postgres: PostgresServer, tmp_path: Path, mode: str) -> None:
    context = self_signed(tmp_path)
    async with tls_before(postgres.port, context) as port:
        url = postgres.url(postgres.new_schema(), port=port, sslmode=mode, sslrootcert=tmp_path / "cert.pem")
        async with open_postgres_journal(parse_address(url)) as journal:
            head = await lead(journal)
            # More than one record of TLS, both ways.
            rows = rows_after(head, head.epoch, 600, text="x" * 200)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            assert await read_all(journal) == rows


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_that_can_not_prove_itself(postgres: PostgresServer, tmp_path: Path, host: str) -> None:
    """Another authority, and another name."""
    (tmp_path / "other").mkdir()
    self_signed(tmp_path / "other")
    context = self_signed(tmp_path)
    authority = tmp_path / "cert.pem" if host == "localhost" else tmp_path / "other" / "cert.pem"
    async with tls_before(postgres.port, context) as port:
        url = postgres.url(postgres.new_schema(), port=port, sslmode="verify-full", sslrootcert=authority)
        async with open_postgres_journal(parse_address(url.replace("127.0.0.1", host))) as journal:
            with pytest.raises(PortUnavailable, match="certificate"):
                await journal.head()


async def test_a_server_without_tls_is_refused_where_it_is_asked_for(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_schema(), sslmode="require")
    async with open_postgres_journal(parse_address(url)) as journal:
        with pytest.raises(PortUnavailable, match="SSL"):
            await journal.head()
