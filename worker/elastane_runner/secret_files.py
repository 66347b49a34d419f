"""Secrets of a run, read from files in a folder of the runner's operator.

Their values are in the environment of the run's ranks and nowhere else: neither in records, logs and errors
nor in arguments.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from elastane_common.errors import ElastaneError

SECRET_BYTES_MAX: Final = 64 * 1024


class SecretError(ElastaneError):
    """A secret cannot be given to a run; the text names the variable, and no value."""

    code = "ELA453"


def read_secret(folder: Path | None, variable: str, name: str) -> str:
    """Return the value of a secret: the content of a file below the folder, without the newline at its end.

    Raises SecretError.
    """
    if folder is None:
        raise SecretError(
            f"the secret {variable} is a file, and this runner has no folder of secrets",
            hint="start it with --secrets DIR, or choose runners that have one by their labels",
        )
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise SecretError(
            f"the file of the secret {variable} is not a path below the folder of secrets",
            hint="give it relative to that folder, without '..'",
        )
    try:
        file = (folder / path).resolve(strict=True)
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            raise SecretError(f"the file of the secret {variable} is not below the folder of secrets")
        data = file.read_bytes()
    except OSError as error:
        raise SecretError(
            f"the file of the secret {variable} cannot be read: {error.strerror}",
            hint="is it in this runner's folder of secrets?",
        ) from None
    if len(data) > SECRET_BYTES_MAX:
        raise SecretError(f"the secret {variable} has more than {SECRET_BYTES_MAX} bytes")
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise SecretError(f"the secret {variable} is not valid UTF-8") from None
    return value.removesuffix("\n")
