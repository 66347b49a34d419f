"""Settings of a master, from the command line, then from ELASTANE_* variables, then the defaults here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane_master.security.settings import SecuritySettings
from elastane_master.security.store_access import StoreAccess
from elastane_master.store.connection import StoreOptions
from elastane_master.store.log import LogOptions


class MasterSettings(BaseSettings):
    """How one master process serves.

    listen: HOST:PORT; port 0 takes a free one, an empty host all interfaces. store: URL of a Redis or Valkey;
    empty: a private one in state_dir. store_fsync: of the private one. port_file: gets the address served,
    once it is. stop_grace_seconds: what calls in flight have to end when the master is stopped. security:
    tokens, certificates, what is allowed without them.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_", extra="ignore", frozen=True)

    listen: str = "127.0.0.1:50051"
    store: str = ""
    state_dir: Path = Path(".elastane")
    store_fsync: Literal["everysec", "always", "no"] = "everysec"
    store_timeout_seconds: float = Field(default=15.0, gt=0)
    port_file: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    snapshot_seconds: float = Field(default=1.0, ge=0)
    history_entries_max: int = Field(default=2_000_000, ge=1)
    events_max: int = Field(default=10_000, ge=1)
    message_bytes_max: int = Field(default=64 * 2**20, ge=2**16)
    stop_grace_seconds: float = Field(default=2.0, ge=0)
    security: SecuritySettings = Field(default_factory=SecuritySettings)

    @field_validator("listen")
    @classmethod
    def _has_port(cls, listen: str) -> str:
        port = listen.rpartition(":")[2]
        if ":" not in listen or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be HOST:PORT with a port from 0 to 65535")
        return listen

    @property
    def listen_host(self) -> str:
        """The host of `listen`; all interfaces if it names none."""
        return self.listen.rpartition(":")[0] or "[::]"

    @property
    def listen_port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def store_options(self) -> StoreOptions:
        return StoreOptions(
            url=self.store,
            state_dir=self.state_dir,
            fsync=self.store_fsync,
            start_timeout_seconds=self.store_timeout_seconds,
            access=StoreAccess(
                ca=self.security.store_ca,
                cert=self.security.store_cert,
                key=self.security.store_key,
                password_file=self.security.store_password_file,
            ),
        )

    def log_options(self) -> LogOptions:
        return LogOptions(
            snapshot_seconds=self.snapshot_seconds,
            history_entries_max=self.history_entries_max,
            events_max=self.events_max,
        )
