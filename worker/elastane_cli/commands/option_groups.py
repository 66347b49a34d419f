"""Groups of command options, each passed as one argument to the command's function."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class OptionGroup:
    """Options that are combined into one argument.

    parameters: as typer reads them. gather: builds the argument from their values, by name.
    """

    parameters: list[inspect.Parameter]
    gather: Callable[[Mapping[str, Any]], Any]


def group_of(options: type) -> OptionGroup:
    """Return the option group for a dataclass whose fields are annotated with typer's options."""
    hints = typing.get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)
    ]
    return OptionGroup(parameters, lambda values: options(**values))


def with_options(function: Callable[..., None], **groups: OptionGroup) -> Callable[..., None]:
    """Return a command that takes the options of all groups, and calls `function` with one argument for each.

    groups: by the name of the argument.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name not in groups]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        gathered = {
            name: group.gather({each.name: values.pop(each.name) for each in group.parameters})
            for name, group in groups.items()
        }
        function(**values, **gathered)

    flat = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    flat += [each for group in groups.values() for each in group.parameters]
    command.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in flat}
    return command
