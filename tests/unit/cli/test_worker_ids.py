"""Ids of workers at a master that several agents share."""

from __future__ import annotations

import os
import socket

import pytest

from elastane_cli.commands.run import worker_prefix


def test_agents_in_containers_on_one_hosts_network_have_workers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "node")
    first, second = worker_prefix(), worker_prefix()
    assert first != second
    assert first.startswith("node-")
