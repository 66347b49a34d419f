"""Log format of masters, workers and operator: fields, forms, redaction and rate limit.

A line is an event (a short text, equal for all lines of its kind) and facts. Lines about a job have `job`,
and lines of or about a worker `worker`; both have `generation` and `step` as of that moment.

  console   2026-05-04T10:11:12.123456Z [info     ] worker_lost  generation=3 job=train step=41 worker=w1
  json      {"job": "train", "worker": "w1", "generation": 3, "step": 41, "event": "worker_lost", ...}

Secrets are redacted in every line: values under a secret's name, passwords in URLs and bearer tokens become
stars. Lines of one kind are rate-limited, so that a fault hitting a thousand workers at once, or a client
that calls in a loop, does not fill a disk.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal, TextIO, cast

import structlog

Form = Literal["console", "json"]
Line = MutableMapping[str, Any]
Processor = Callable[[Any, str, Line], Any]

#: Fields at the front of a JSON line, in this order.
FIRST: Final = ("timestamp", "level", "event", "job", "worker", "generation", "step")

KINDS_MAX: Final = 1000

STARS: Final = "***"
_HANDLER: Final = "elastane"
_SECRET_NAMES: Final = re.compile(r"(?i)token|secret|passw|authorization|credential|api_?key|private_?key")
#: Fields that count or name tokens and contain none: the fencing token of a log, the name of a caller's
#: token.
_NO_SECRETS: Final = frozenset({"tokens", "token_name", "token_file", "fencing_token"})
_IN_TEXT: Final = (
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/]+@", re.IGNORECASE), rf"\1:{STARS}@"),
    (re.compile(r"(?i)\b(bearer)\s+[a-z0-9._~+/=-]{8,}"), rf"\1 {STARS}"),
    (
        # Also matches variables: ELASTANE_TOKEN=, AWS_SECRET_ACCESS_KEY=, access_token=.
        re.compile(
            r"(?i)\b(?!fencing_)((?:\w*_)?(?:password|passwd|token|secret|secret_access_key|api_?key))=[^\s&,;'\"]+"
        ),
        rf"\1={STARS}",
    ),
)


class LogLimit:
    """A structlog processor that passes at most `lines_per_second` lines per kind (event) and second.

    The first line after a second has passed carries `left_out`: the number of dropped lines by kind. Errors
    always pass.
    """

    def __init__(self, lines_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines_max = lines_per_second
        self._clock = clock
        self._second = clock()
        self._lines: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, logger: Any, method: str, event: Line) -> Line:
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self._lines.clear()
            if self._left_out:
                event["left_out"], self._left_out = self._left_out, {}
        kind = str(event.get("event"))
        if kind not in self._lines and len(self._lines) >= KINDS_MAX:
            kind = "(other kinds)"  # texts that are always different do not count as kinds
        self._lines[kind] = self._lines.get(kind, 0) + 1
        if self._lines[kind] > self._lines_max and method not in ("error", "critical", "exception"):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            raise structlog.DropEvent
        return event


def star_out(logger: Any, method: str, event: Line) -> Line:
    """A structlog processor that redacts secrets in names, values and texts."""
    for name, value in event.items():
        event[name] = _without_secrets(name, value)
    return event


def without_secrets(text: str) -> str:
    """Return the text with recognisable passwords and tokens replaced by stars."""
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def _without_secrets(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(name, item) for item in value]
    if isinstance(value, bool | int | float) or value is None:
        return value
    if name not in _NO_SECRETS and _SECRET_NAMES.search(name) and value:
        return STARS
    return without_secrets(value) if isinstance(value, str) else value


def facts_of(source: Callable[[], Mapping[str, Any]]) -> Processor:
    """Return a processor that adds the current facts from `source`; a line's own fields take precedence."""

    def add(logger: Any, method: str, event: Line) -> Line:
        for name, value in source().items():
            event.setdefault(name, value)
        return event

    return add


def _in_order(logger: Any, method: str, event: Line) -> Line:
    first = {name: event.pop(name) for name in FIRST if name in event}
    return {**first, **event}


class CurrentStderr:
    """A stream that writes to the `sys.stderr` of the moment, not to the one at the time of configuration.

    Code that replaces `sys.stderr` for a while (a capturing test, `redirect_stderr`) receives the lines
    meanwhile and may close its stream afterwards. In a process without stderr, lines are dropped.
    """

    def write(self, text: str) -> int:
        stream = sys.stderr
        return len(text) if stream is None else stream.write(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr is not None and sys.stderr.isatty()


def configure(
    level: str,
    form: Form,
    *,
    lines_per_second: int,
    facts: Callable[[], Mapping[str, Any]] = dict,
    stream: TextIO | None = None,
    whole_process: bool = False,
) -> None:
    """Send lines of `level` and above to `stream` (default: the current stderr, line by line).

    facts: returns fields added to each line. whole_process: also format records of the `logging` module, from
    warnings on, in the same way; not for processes that run a user's script, whose logging is its own.
    """
    stream = stream or cast(TextIO, CurrentStderr())
    number = logging.getLevelNamesMapping()[level.upper()]
    common: Sequence[Processor] = (
        facts_of(facts),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        star_out,
    )
    last: Sequence[Processor] = (
        (_in_order, structlog.processors.JSONRenderer(default=str))
        if form == "json"
        else (structlog.dev.ConsoleRenderer(colors=stream.isatty()),)
    )
    structlog.configure(
        # The limit comes first, so that dropped lines cost no formatting.
        processors=[LogLimit(lines_per_second), *common, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,  # a cached logger would keep the configuration of its first use
    )
    if not whole_process:
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    handler.addFilter(_limited(LogLimit(lines_per_second)))
    root = logging.getLogger()
    handler.set_name(_HANDLER)
    for old in [one for one in root.handlers if one.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))


def _limited(limit: LogLimit) -> Callable[[logging.LogRecord], bool]:
    """Apply a limit to records of `logging`. A kind is the message template before formatting."""

    def passes(record: logging.LogRecord) -> bool:
        try:
            limit(None, record.levelname.lower(), {"event": str(record.msg)})
        except structlog.DropEvent:
            return False
        return True

    return passes
