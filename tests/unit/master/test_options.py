"""The options of `elastane master` are settings, and every setting that is passed on by name is one."""

from __future__ import annotations

import inspect

from elastane_master.cli import main
from elastane_master.security.settings import SecuritySettings
from elastane_master.settings import MasterSettings

NOT_A_SETTING = {"version"}
"""Options that are answered at once."""


def test_every_option_is_the_setting_of_its_name() -> None:
    options = set(inspect.signature(main).parameters) - NOT_A_SETTING
    master, security = set(MasterSettings.model_fields) - {"security"}, set(SecuritySettings.model_fields)
    assert not options - master - security, "such an option would be dropped without a word"
    assert not options & master & security
