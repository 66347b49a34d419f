"""The connection of commands to the training service of a master."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elastane_cli.commands.common import connect

if TYPE_CHECKING:
    from elastane_common.training_client import TrainingClient

#: gRPC's status for a service that the master does not have.
UNKNOWN_SERVICE = "unimplemented"


@contextlib.contextmanager
def connect_training(master: str, timeout_seconds: float) -> Iterator[TrainingClient]:
    """Yield a connection to the training service.

    Raises BadParameter for an invalid address, RequestRefusedError for a master without the service.
    """
    from elastane_common.client_errors import RequestRefusedError
    from elastane_common.training_client import TrainingClient

    with connect(master, timeout_seconds) as client:
        try:
            yield TrainingClient(client)
        except RequestRefusedError as error:
            if error.reason != UNKNOWN_SERVICE:
                raise
            raise RequestRefusedError(
                "this master has no training service",
                reason=error.reason,
                hint="it is of an older release: upgrade it, or name another with --master",
            ) from None
