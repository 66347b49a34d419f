"""Log lines of masters and workers: their fields, no secrets, limits, and what a script keeps of its own."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from elastane_proto import log_lines
from elastane_proto.log_lines import STARS, configure, without_secrets


@pytest.fixture
def lines() -> Iterator[Callable[..., Callable[[], list[dict[str, Any]]]]]:
    """Configures JSON lines and gives a function that reads them; everything is as before afterwards."""
    root = logging.getLogger()
    level = root.level

    def configured(**options: Any) -> Callable[[], list[dict[str, Any]]]:
        stream = io.StringIO()
        configure("info", "json", **{"stream": stream, "lines_per_second": 100, **options})
        return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]

    yield configured
    structlog.reset_defaults()
    root.handlers[:] = [handler for handler in root.handlers if handler.get_name() != "elastane"]
    root.setLevel(level)


def test_each_line_says_where_it_was_written_and_what_a_line_says_itself_stands(lines: Any) -> None:
    step = 0
    read = lines(facts=lambda: {"job": "train", "worker": "w1", "generation": 3, "step": step})
    log = structlog.get_logger()
    log.info("leaving", reason="spot")
    step = 7
    log.warning("checkpoint missed", step=6)
    first, second = read()
    assert list(first)[:7] == list(log_lines.FIRST)
    assert (first["job"], first["worker"], first["generation"], first["step"]) == ("train", "w1", 3, 0)
    assert (first["event"], first["level"], first["reason"]) == ("leaving", "info", "spot")
    assert second["step"] == 6 and second["level"] == "warning"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://me:hunter2@host:6379/0 is away", f"redis://me:{STARS}@host:6379/0 is away"),
        ("rediss://:hunter2@host", f"rediss://:{STARS}@host"),
        ("redis://me:hun@ter2@host:6379/0 is away", f"redis://me:{STARS}@host:6379/0 is away"),
        ("redis://:a@h1/0,redis://:b@h2/0", f"redis://:{STARS}@h1/0,redis://:{STARS}@h2/0"),
        ("authorization: Bearer hunter2hunter2", f"authorization: Bearer {STARS}"),
        ("GET /x?token=hunter2&a=1", f"GET /x?token={STARS}&a=1"),
        ("http://host:8080/path and step=5", "http://host:8080/path and step=5"),
        ("ELASTANE_TOKEN=hunter2 is set", f"ELASTANE_TOKEN={STARS} is set"),
        ("AWS_SECRET_ACCESS_KEY=hunter2", f"AWS_SECRET_ACCESS_KEY={STARS}"),
        ("GET /x?access_token=hunter2&a=1", f"GET /x?access_token={STARS}&a=1"),
        ("fencing_token=7, ELASTANE_TOKEN_FILE=/t", "fencing_token=7, ELASTANE_TOKEN_FILE=/t"),
        ("token 'reader' may not call Scale", "token 'reader' may not call Scale"),
    ],
)
def test_secrets_in_texts_are_starred_out(text: str, clean: str) -> None:
    assert without_secrets(text) == clean


def test_no_secret_reaches_a_line_by_name_value_or_traceback(lines: Any) -> None:
    read = lines(whole_process=True)
    log = structlog.get_logger()
    log.info("a", token="hunter2", nested={"store_password": "hunter2", "urls": ["redis://u:hunter2@h/0"]})
    log.info("b", token=17, tokens=True, token_file="/etc/tokens", fencing_token="4")
    try:
        raise ValueError("cannot reach redis://u:hunter2@h")
    except ValueError:
        log.exception("c")
    logging.getLogger("redis").warning("connecting to %s", "redis://u:hunter2@h")
    found = read()
    assert "hunter2" not in json.dumps(found) and len(found) == 4
    assert found[0]["token"] == STARS and found[0]["nested"]["urls"] == [f"redis://u:{STARS}@h/0"]
    assert (found[1]["token"], found[1]["tokens"], found[1]["token_file"]) == (17, True, "/etc/tokens")
    assert "Traceback" in found[2]["exception"]
    assert found[3]["logger"] == "redis" and found[3]["level"] == "warning"


def test_lines_of_one_kind_are_limited_for_libraries_too(lines: Any) -> None:
    read = lines(lines_per_second=2, whole_process=True)
    for number in range(5):
        structlog.get_logger().info("same", number=number)
        logging.getLogger("library").warning("number %s", number)
        logging.getLogger("library").error("bad %s", number)
    kinds = [line["event"].split()[0] for line in read()]
    assert (kinds.count("same"), kinds.count("number"), kinds.count("bad")) == (2, 2, 5)


def test_lines_go_to_what_is_stderr_then(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever captured stderr while logs were set up may close what it captured with."""
    log, library = structlog.get_logger(), logging.getLogger("library")

    def say(text: str) -> None:
        log.info(text)
        library.warning(text)

    captured, later = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", captured)
    lines(stream=None, whole_process=True)
    say("one")
    monkeypatch.setattr(sys, "stderr", later)
    assert [json.loads(line)["event"] for line in captured.getvalue().splitlines()] == ["one", "one"]
    captured.close()
    say("two")
    assert [json.loads(line)["event"] for line in later.getvalue().splitlines()] == ["two", "two"]
    monkeypatch.setattr(sys, "stderr", None)  # as without a console
    say("lost")


def test_a_logger_that_has_written_takes_up_what_is_configured_later(lines: Any) -> None:
    log = structlog.get_logger()
    read_first = lines(whole_process=True)
    log.info("one")
    read_second = lines(whole_process=True)
    log.info("two")
    assert [line["event"] for line in (*read_first(), *read_second())] == ["one", "two"]


def test_in_a_workers_process_the_scripts_logging_stays_its_own() -> None:
    code = """
        import logging, structlog
        from elastane_common.logs import configure_logs, say_where
        configure_logs("info", "json")
        assert not logging.getLogger().handlers
        say_where(lambda: {"job": "j", "worker": "w", "generation": 2, "step": 5})
        structlog.get_logger("elastane.x").info("leaving")
        logging.basicConfig(format="mine %(message)s", level="INFO")
        logging.info("hello")
        structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
        configure_logs("info", "json")
        structlog.get_logger().info("own")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    ours, mine, own = ran.stderr.splitlines()
    assert json.loads(ours)["event"] == "leaving" and json.loads(ours)["generation"] == 2
    assert mine == "mine hello"
    assert own == "event='own'"
