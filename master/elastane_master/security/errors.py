"""Errors in the files and options that protect a master; reported at start, with advice."""

# ruff: noqa: N818 - these say what is wrong

from __future__ import annotations

from elastane_master.errors import CannotListen


class BadSecurityFile(Exception):
    """A file of tokens, certificates or a password cannot be used. Attributes: path, hint."""

    code = "ELA203"
    hint = "correct the file; the message says what is wrong with it, and never contains a secret"

    def __init__(self, path: object, why: str, hint: str = "") -> None:
        super().__init__(f"{path} cannot be used: {why}")
        self.path = str(path)
        self.hint = hint or self.hint


class InsecureListen(CannotListen):
    """Other machines can reach the address, without authentication or without encryption."""

    code = "ELA202"
    hint = (
        "give --tls-cert and --tls-key, and --token-file or --tls-client-ca; listen on 127.0.0.1; "
        "or use --insecure if the network itself admits nobody else"
    )
