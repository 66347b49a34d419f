"""Checks that an installed library is a version that its integration was tested with."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from packaging.specifiers import SpecifierSet

from elastane_common.errors import EXIT_REFUSED, ElastaneError

#: The same ranges as in pyproject.toml. Integrations override methods that are not public API of the library.
TESTED: Final = {
    "accelerate": ">=1.15,<1.16",
    "lightning": ">=2.6,<2.7",
    "transformers": ">=5.24,<5.25",
}


class LibraryVersionError(ElastaneError):
    """An integration was not tested with the installed version of its library."""

    code = "ELA366"
    exit_code = EXIT_REFUSED


def check_version(library: str) -> None:
    """Raise LibraryVersionError for an untested version. Called when an integration is imported."""
    try:
        found = metadata.version(library)
    except metadata.PackageNotFoundError as error:
        raise LibraryVersionError(
            f"{library} is not installed", hint=f"pip install 'elastane[{library}]'", library=library
        ) from error
    if found not in SpecifierSet(TESTED[library]):
        raise LibraryVersionError(
            f"{library} {found} is installed, and elastane.integrations.{library} was tested with"
            f" {TESTED[library]}",
            hint=f"pip install 'elastane[{library}]'",
            library=library,
            version=found,
        )
