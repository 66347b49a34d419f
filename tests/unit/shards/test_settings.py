"""Settings of a dynamic dataset: the API's reference and `Job.tasks` tell the same defaults."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from elastane.runtime.tasks import lease_tasks
from elastane_shards.settings import DEFAULTS

PROTO = Path(__file__).parents[3] / "proto" / "elastane_proto" / "v1" / "shard.proto"


@pytest.mark.parametrize("name", ["epochs", "lease_seconds", "max_attempts"])
def test_a_default_is_the_same_in_the_reference_and_for_scripts(name: str) -> None:
    settings = PROTO.read_text().partition("message DatasetSettings {")[2].partition("\n}\n")[0]
    told = re.search(rf"default (\d+)( s)?\.\n.* {name.removesuffix('_seconds')} = ", settings)
    assert told is not None and float(told[1]) == getattr(DEFAULTS, name)
    assert inspect.signature(lease_tasks).parameters[name].default == getattr(DEFAULTS, name)
