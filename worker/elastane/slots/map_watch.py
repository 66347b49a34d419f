"""Follows the newest slot map of the master, for a worker."""

from __future__ import annotations

import threading
import time

from elastane.slots.map_message import ToldMap, map_from_proto
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError
from elastane_common.errors import ElastaneError
from elastane_proto.v1 import ps_pb2, ps_pb2_grpc


class MapWatch:
    """Follows the map in its own thread. Thread-safe; `close` ends it.

    client: of the master; owned by the watch. first: the map received at registration.
    """

    def __init__(self, client: MasterClient, job: str, worker_id: str, first: ps_pb2.SlotMap) -> None:
        self._client, self._job, self._worker_id = client, job, worker_id
        self._changed = threading.Condition()
        self._told = map_from_proto(first)
        self._error: ElastaneError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="elastane-slot-map", daemon=True)
        self._thread.start()

    @property
    def newest(self) -> ToldMap:
        """The newest map. Raises the error that ended the watch, if any."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._told

    def beyond(self, generation: int, seconds: float) -> ToldMap:
        """Wait up to `seconds` for a map newer than `generation`; return the newest. Raises as `newest`."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._told.map.generation <= generation and self._error is None:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self.newest

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._closed = True
        self._client.close()

    def _run(self) -> None:
        def request() -> ps_pb2.WatchMapRequest:
            with self._changed:
                generation = self._told.map.generation
            return ps_pb2.WatchMapRequest(job=self._job, worker_id=self._worker_id, generation=generation)

        try:
            for response in self._client.subscribe(ps_pb2_grpc.SlotServiceStub, "WatchMap", request):
                told = map_from_proto(response.map)
                with self._changed:
                    # Generations never decrease; an older map comes from a master that has been replaced.
                    if told.map.generation > self._told.map.generation:
                        self._told = told
                        self._changed.notify_all()
        except ClientClosedError:
            pass
        except ElastaneError as error:
            if not self._closed:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
