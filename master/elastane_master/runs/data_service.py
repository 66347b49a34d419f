"""Datasets that a data management service prepares (`data_management.proto`), as a source of `Datasets`.

READY -> ready, at the URL of the version's root     RUNNING -> preparing     FAILED, NOT_FOUND -> missing
"""

from __future__ import annotations

from typing import Any

import grpc

from elastane_master.decisions.runs.events import DataVerdict
from elastane_master.decisions.runs.spec import DatasetRef
from elastane_proto.training import data_management_pb2 as wire
from elastane_proto.training import data_management_pb2_grpc

CALL_SECONDS = 10.0
FILE_URL = "s3://{bucket}/{path}"

_REFUSALS = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT})


class DataService:
    """Client of one data service. Used from one event loop.

    address: host and port; the connection is not encrypted. file_url: URL of a file or folder there, with
    {bucket} and {path}; its fsspec protocol finds the credentials.
    """

    def __init__(self, address: str, file_url: str = FILE_URL) -> None:
        self._address = address
        self._file_url = file_url
        self._channel: grpc.aio.Channel | None = None

    async def resolve(self, reference: DatasetRef) -> tuple[DataVerdict, str, str]:
        """Return whether the dataset is ready, its URL, and the reason in words.

        A service that does not answer counts as one that still prepares the dataset: it is asked again.
        """
        name = f"version {reference.version_hash!r} of dataset {reference.id!r}"
        if reference.verify_files:
            return "missing", "", f"{name} cannot be verified: the data service has no digests of its files"
        query = wire.VersionQuery(dataset_id=reference.id, version_hash=reference.version_hash)
        try:
            found = await self._stub().FetchTrainingDataset(query, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            said = f"{error.code().name}: {error.details()}"
            if error.code() in _REFUSALS:
                return "missing", "", f"the data service has no {name} ({said})"
            return "preparing", "", f"the data service at {self._address} does not answer ({said})"
        if found.version_hash != reference.version_hash:
            return "missing", "", f"the data service gave version {found.version_hash!r} for {name}"
        if found.state == wire.FAILED:
            return "missing", "", f"the data service failed to prepare {name}"
        if found.state != wire.READY:
            return "preparing", "", f"the data service prepares {name}"
        if not found.root.path:
            return "missing", "", f"the data service does not say where {name} is"
        url = self._file_url.format(bucket=found.root.bucket, path=found.root.path.strip("/"))
        return "ready", url, f"{name} is ready"

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address)
        return data_management_pb2_grpc.DataManagementServiceStub(self._channel)  # type: ignore[no-untyped-call]
