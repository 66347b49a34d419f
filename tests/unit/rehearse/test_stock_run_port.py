"""The reference's port is chosen before torch opens it: when another process was faster, another one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_cli.rehearse.stock_run import PORT_ATTEMPTS, StockRunError, run_stock_ddp

SCRIPT = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
(folder / os.environ["MASTER_PORT"]).touch()
if len(list(folder.iterdir())) <= int(sys.argv[2]):
    print("DistNetworkError: code: -98, name: EADDRINUSE", file=sys.stderr)
    sys.exit(1)
"""


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    ports.mkdir()
    run_stock_ddp(tmp_path, ["-c", SCRIPT, str(ports), "1"], processes=1)
    assert len(list(ports.iterdir())) == 2


def test_a_port_that_is_always_taken_is_an_error(tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    ports.mkdir()
    with pytest.raises(StockRunError, match="EADDRINUSE"):
        run_stock_ddp(tmp_path, ["-c", SCRIPT, str(ports), "100"], processes=1)
    assert len(list(ports.iterdir())) == PORT_ATTEMPTS
