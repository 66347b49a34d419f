"""What is said of a reference run that fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from elastane_cli.rehearse.stock_run import StockRunError, run_stock_ddp
from elastane_common.processes.child import ExitStatus


class Rank:
    """A rank that says some lines and ends as soon as both are started."""

    begun: ClassVar[list["Rank"]]
    said: ClassVar = {"rank0": [f"frame {number}" for number in range(30)], "rank1": ["rank 1 has no data"]}

    def __init__(self, name: str, command: Any, on_line: Callable[..., None], **options: Any) -> None:
        self.name, self._on_line, self._on_exit = name, on_line, options["on_exit"]

    def start(self) -> None:
        self.begun.append(self)
        if len(self.begun) == 2:  # rank 1 dies, and rank 0 of that; its lines are there before anyone looks
            for rank in reversed(self.begun):
                rank._on_exit(rank, ExitStatus(1))
                for line in self.said[rank.name]:
                    rank._on_line(rank.name, "stderr", line)

    def kill_group(self) -> None:
        pass

    def wait(self) -> None:
        pass


def test_the_lines_of_the_rank_that_failed_first_are_shown(tmp_path: Path) -> None:
    Rank.begun = []
    with pytest.raises(StockRunError) as raised:
        run_stock_ddp(tmp_path, ["train.py"], processes=2, launch=Rank)  # type: ignore[arg-type]
    lines = str(raised.value.args[0]).splitlines()
    assert lines[:2] == ["stock DDP: rank1 exit code 1", "rank1: rank 1 has no data"]
    assert lines[2:] == [f"rank0: frame {number}" for number in range(25, 30)]
