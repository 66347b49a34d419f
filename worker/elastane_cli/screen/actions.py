"""What an operator may ask of the master in `elastane top`: what it is, and its question. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from elastane_common.worker_limits import parse_worker_limits
from elastane_proto.short_names import short

NAME_CHARACTERS = 24
_DIGITS = frozenset("0123456789:")
_TEXT_CHARACTERS_MAX = 40


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask a worker to leave at the next step boundary."""

    job: str
    worker: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Change the limits of a job's workers. workers_min: 0: unchanged."""

    job: str
    workers_min: int
    workers_max: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save a checkpoint at the next step boundary."""

    job: str


Action = Drain | Scale | Checkpoint


@dataclass(frozen=True, slots=True)
class Question:
    """A question that is on the screen until it is answered or given up.

    about: "filter" changes what is shown; the others ask before they act. text: what was typed. fault: why
    the last answer was not taken.
    """

    about: Literal["filter", "drain", "scale", "checkpoint"]
    job: str = ""
    worker: str = ""
    text: str = ""
    fault: str = ""


def typed(question: Question, key: str) -> Question:
    """Return the question after a key that writes or deletes a character; other keys change nothing."""
    if key == "backspace":
        return replace(question, text=question.text[:-1], fault="")
    character = " " if key == "space" else key
    allowed = question.about == "filter" or character in _DIGITS
    if len(character) != 1 or not allowed or len(question.text) >= _TEXT_CHARACTERS_MAX:
        return question
    return replace(question, text=question.text + character, fault="")


def answer(question: Question, key: str) -> tuple[Question | None, Action | None]:
    """Return the question (None: done with) and what is to be done after a key. Not for a filter.

    Drains and checkpoints are confirmed by "y" alone: every other key gives them up.
    """
    if question.about != "scale":
        if key not in ("y", "Y"):
            return None, None
        drains = question.about == "drain"
        return None, Drain(question.job, question.worker) if drains else Checkpoint(question.job)
    if key == "escape":
        return None, None
    if key != "enter":
        return typed(question, key), None
    if not question.text:
        return None, None
    try:
        low, high = parse_worker_limits(question.text)
    except ValueError as error:
        return replace(question, fault=str(error)), None
    # A number alone is the maximum. The minimum is kept, or a job would stop although fewer workers suffice.
    return None, Scale(question.job, low if ":" in question.text else 0, high)


def question_words(question: Question, workers: str) -> str:
    """Return the question as the screen shows it, with what was typed. workers: limits of the job now."""
    job = short(question.job, NAME_CHARACTERS)
    if question.about == "filter":
        return f"/{question.text}_"
    if question.about == "drain":
        return f"drain {short(question.worker, NAME_CHARACTERS)} at the next step boundary?"
    if question.about == "checkpoint":
        return f"save a checkpoint of {job} now?"
    now = f", now {workers}," if workers else ""
    return f"scale {job}{now} to [MIN:]MAX workers: {question.text}_"


def asked_words(action: Action) -> str:
    """Return what the screen says until the master has answered."""
    if isinstance(action, Drain):
        return f"drain {action.worker}: asking the master ..."
    if isinstance(action, Scale):
        return f"scale {action.job}: asking the master ..."
    return f"checkpoint of {action.job}: waiting until it is complete ..."
