"""Every error of the sources has a code of its own, every code its text, and users are shown them."""

from __future__ import annotations

import ast
import functools
import json
import re
import traceback
from collections import Counter
from pathlib import Path

import pytest
from docs_site import errors_page
from typer.testing import CliRunner

from elastane.diagnose.findings import CODES
from elastane_cli.commands.main import build_app
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import StepError, UnsupportedError, reason_of
from elastane_master.cli import app as master_app
from elastane_proto.error_codes import entries, find, wire_code
from elastane_proto.v1 import errors_pb2

ROOT = Path(__file__).parents[2]
SOURCES = [path for top in ("common", "worker", "master", "deploy") for path in (ROOT / top).rglob("*.py")]
#: Whoever derives from these is an error that a user can meet.
BASES = {"ElastaneError", "StoreError", "CannotListen", "TooFewDescriptors", "BadSecurityFile"}
ENTRIES = entries()
REASONS = [
    value.removeprefix("ERROR_REASON_").lower() for value in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
]


def classes() -> dict[str, tuple[set[str], str]]:
    """Every class of the sources: its bases, and the code in its own body."""
    found: dict[str, tuple[set[str], str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                found.setdefault(node.name, (bases, code_in(node)))
    return found


def code_in(node: ast.ClassDef) -> str:
    for part in node.body:
        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
        value = getattr(part, "value", None)
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant):
            return str(value.value)
    return ""


@functools.cache
def error_classes() -> dict[str, str]:
    """Codes by class. That of a refused request is its reason's."""
    known, errors = classes(), set(BASES)
    while more := {name for name, (bases, _) in known.items() if bases & errors} - errors:
        errors |= more
    return {name: known[name][1] for name in errors - {"RequestRefusedError"}}


def test_every_error_class_has_a_code_that_no_other_has() -> None:
    found = error_classes()
    assert len(found) > 40
    assert [name for name, code in found.items() if not re.fullmatch(r"ELA[2-5]\d\d", code)] == []
    assert [code for code, count in Counter(found.values()).items() if count > 1] == []


def test_every_error_class_reason_and_finding_is_named_by_its_code() -> None:
    named = dict(error_classes())
    named |= {reason: wire_code(reason) for reason in REASONS if reason != "unspecified"}
    named |= CODES
    assert [name for name, code in named.items() if name not in ENTRIES[code].names] == []


def test_every_code_of_the_sources_has_its_text_and_every_text_its_code() -> None:
    in_sources = set(re.findall(r'"(ELA\d{3})"', "".join(path.read_text() for path in SOURCES)))
    on_the_wire = {wire_code(reason) for reason in REASONS}
    assert in_sources | on_the_wire == set(ENTRIES)
    for entry in ENTRIES.values():
        assert entry.names
        assert min(map(len, (entry.title, entry.cause, entry.todo))) > 8, entry


def test_the_page_is_what_the_texts_say() -> None:
    assert errors_page.PAGE.read_text() == errors_page.render(), "run: make docs-pages"
    assert re.findall(r"^### (.*)$", errors_page.render(), re.M) == sorted(ENTRIES)


def test_codes_on_the_wire_are_the_reasons_numbers() -> None:
    assert wire_code("mismatch") == "ELA105"
    assert wire_code("rate_limited") == "ELA127"
    assert wire_code("unimplemented") == "ELA100"
    refused = RequestRefusedError("no such job", reason="not_found")
    assert (refused.code, RequestRefusedError("x", reason="busy").code) == ("ELA102", "ELA123")


def test_a_traceback_and_a_line_have_the_code_and_the_text_has_not() -> None:
    error = StepError("no optimizer.step()", hint="call it")
    assert str(error) == "no optimizer.step() (call it)"
    assert error.line() == "no optimizer.step() (call it) [ELA302]"
    shown = "".join(traceback.format_exception(error))
    reason, pointer = shown.splitlines()[-2:]
    assert reason_of(shown) == reason == f"elastane_common.errors.StepError: {error}"
    assert pointer == "  [ELA302] elastane errors ELA302: what causes it, and what to do"


def test_the_reason_of_a_text_is_its_last_line_that_is_no_pointer() -> None:
    """As of a data worker, whose traceback is the text of the error that stands around it."""
    inner = "".join(traceback.format_exception(UnsupportedError("a", hint="b"))).rstrip()
    outer = "".join(traceback.format_exception(UnsupportedError(f"Caught it in worker 0.\n{inner}")))
    assert outer.count("elastane errors ELA301") == 2
    assert reason_of(outer) == "elastane_common.errors.UnsupportedError: a (b)"
    assert (
        reason_of("ValueError: [ELA302] is no pointer here\n\n") == "ValueError: [ELA302] is no pointer here"
    )
    assert reason_of("") == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ela302", "ELA302"),
        ("StepError", "ELA302"),
        ("NOT_FOUND", "ELA102"),
        ("no master answered", "ELA401"),
    ],
)
def test_the_command_finds_by_code_name_and_words(words: str, code: str) -> None:
    done = CliRunner().invoke(build_app(), ["errors", words, "--json"])
    (entry,) = json.loads(done.stdout)
    assert entry["code"] == code
    shown = CliRunner().invoke(build_app(), ["errors", words]).stdout
    assert ENTRIES[code].todo in shown
    assert ENTRIES[code].cause in shown


def test_the_command_lists_all_and_refuses_the_unknown() -> None:
    shown = CliRunner().invoke(build_app(), ["errors"]).stdout
    assert [line.split()[0] for line in shown.splitlines()] == list(ENTRIES)
    assert CliRunner().invoke(build_app(), ["errors", "ELA999"]).exit_code == 2
    assert len(find("store")) >= 1


def test_commands_say_the_code_in_text_and_in_json() -> None:
    arguments = ["status", "--master", "127.0.0.1:1", "--timeout", "0.1"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.stderr.startswith("error ELA401: ")
    done = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert json.loads(done.stderr)["code"] == "ELA401"


def test_a_master_says_the_code(tmp_path: Path) -> None:
    bad = CliRunner().invoke(master_app, ["--listen", "nonsense"])
    assert (bad.exit_code, bad.stderr.rstrip().endswith("[ELA200]")) == (2, True)
    # CliRunner has no loop of its own to disturb: the master makes one.
    missing = [
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        str(tmp_path),
        "--token-file",
        str(tmp_path / "none"),
    ]
    told = CliRunner().invoke(master_app, missing)
    assert told.exit_code == 2
    assert "[ELA203]" in told.stderr
