"""The few calls of the Kubernetes API that the pod engine makes: pods, their logs, services.

The official client reads kubeconfigs and service accounts and renews tokens; its models are not used, as they
know the fields of one release. All functions block; the engine calls them in threads. Whatever goes wrong is
an EngineError, of a class that says whether it may pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient, Configuration

from elastane_common.run_record import RankImage
from elastane_runner.engine import AttemptPlan, EngineError, EngineUnreachableError, ImageMissingError
from elastane_runner.pod_plan import (
    FINALIZER,
    RANK_CONTAINER,
    Object,
    PodOptions,
    check_options,
    check_runner,
    check_secrets,
    options_of,
    pod,
    service,
    service_name,
)
from elastane_runner.pod_status import image_digest, start_of, state_of
from elastane_runner.rank_client import ContainerMissingError, ContainerState, Found
from elastane_runner.rank_labels import ATTEMPT, RUN, RUNNER
from kubernetes import config

CALL_SECONDS_MAX: Final = 30.0
CONNECT_SECONDS_MAX: Final = 5.0
START_SECONDS_DEFAULT: Final = 100.0
#: How long a pod that has a node may take until its image is there and its code is fetched.
PULL_SECONDS_DEFAULT: Final = 1800.0
#: How long an image cannot be pulled, until it counts as missing.
IMAGE_SECONDS_DEFAULT: Final = 60.0
#: How long pods that are killed may take to go, until they are removed without an answer of their node.
REMOVE_SECONDS_MAX: Final = 10.0

_POLL_SECONDS: Final = 0.25
_CONFLICTS_MAX: Final = 5
_MERGE_PATCH: Final = "application/merge-patch+json"
_BROKEN: Final = (urllib3.exceptions.HTTPError, OSError, ValueError)


class PodClient:
    """The pods of one runner. Thread-safe; implements `RankClient`. A container is a pod, by its name.

    options: of the runner; resources are those of one slot. kubeconfig: file; "": KUBECONFIG, the service
    account of the pod that this runs in, or ~/.kube/config. start_seconds: until a launch runs, or is taken
    back; pull_seconds: the same while its node pulls the image or fetches the code. image_seconds: how long
    an image cannot be pulled, until it counts as missing. Raises EngineError for options that no pod takes.
    """

    def __init__(
        self,
        runner: str,
        options: PodOptions,
        *,
        kubeconfig: str = "",
        start_seconds: float = START_SECONDS_DEFAULT,
        pull_seconds: float = PULL_SECONDS_DEFAULT,
        image_seconds: float = IMAGE_SECONDS_DEFAULT,
    ) -> None:
        check_runner(runner)
        check_options(options)
        self.runner = runner
        self.start_seconds = start_seconds
        self.pull_seconds = pull_seconds
        self.image_seconds = image_seconds
        self._options = options
        self._kubeconfig = kubeconfig
        self._path = f"/api/v1/namespaces/{options.namespace}"
        self._lock = threading.Lock()
        self._connected: ApiClient | None = None

    def require_credentials(self) -> None:
        """Raise EngineError if there are none; does not call the API, which may be unavailable."""
        _configuration(self._kubeconfig)

    def prepare(self, plan: AttemptPlan) -> PodLaunch:
        """Return the calls of a launch. Raises EngineError."""
        options = options_of(plan, self._options)
        check_options(options)
        check_secrets(plan, options)
        self.find({RUN: plan.run})  # an API that is away refuses a launch before anything is created
        return PodLaunch(self, plan, options)

    def create(self, kind: str, item: Object) -> Object:
        """Create an object of a kind in plural. Raises EngineError."""
        return self._call("POST", f"{self._path}/{kind}", item)

    def pod(self, name: str) -> Object:
        """Return a pod. Raises ContainerMissingError, EngineError."""
        return self._call("GET", f"{self._path}/pods/{name}")

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the pods that bear these labels. Raises EngineError."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        query = urlencode({"labelSelector": selector})
        return list(self._call("GET", f"{self._path}/pods?{query}").get("items") or ())

    def find(self, labels: Mapping[str, str]) -> list[Found]:
        """Return the pods that bear all these labels, ended ones too, with annotations as labels."""
        metadata = [one["metadata"] for one in self.pods(labels)]
        return [Found(one["name"], {**one.get("annotations", {}), **one["labels"]}) for one in metadata]

    def running(self) -> set[str]:
        """Return the pods of the runner whose rank has not ended. Raises EngineError."""
        now = time.time()
        found = self.pods({RUNNER: self.runner})
        return {one["metadata"]["name"] for one in found if state_of(one, now).is_running}

    def state(self, container: str) -> ContainerState:
        """Return the state of a pod's rank. Raises ContainerMissingError."""
        return state_of(self.pod(container), time.time())

    @contextlib.contextmanager
    def log(self, container: str, *, follows: bool) -> Iterator[_LogStream]:
        """Open the log of a pod's rank from its beginning. Raises ContainerMissingError."""
        query = urlencode({"container": RANK_CONTAINER, **({"follow": "true"} if follows else {})})
        read_seconds = None if follows else CALL_SECONDS_MAX
        response = self._open("GET", f"{self._path}/pods/{container}/log?{query}", read_seconds=read_seconds)
        stream = _LogStream(response)
        try:
            with _reaching():
                yield stream
        finally:
            response.close()

    def kill(self, container: str, signal: str, grace_seconds: float) -> None:
        """Delete a pod; its finalizer keeps it until its end is recorded."""
        seconds = max(1, round(grace_seconds)) if signal == "SIGTERM" else 1
        with contextlib.suppress(ContainerMissingError):
            self._delete(container, seconds)

    def release(self, container: str) -> None:
        """Remove the finalizer from a pod."""
        with contextlib.suppress(ContainerMissingError):
            for _ in range(_CONFLICTS_MAX):
                metadata = self.pod(container)["metadata"]
                if FINALIZER not in (kept := list(metadata.get("finalizers") or ())):
                    return
                kept.remove(FINALIZER)
                patch = {"metadata": {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}}
                with contextlib.suppress(_Conflict):
                    self._exchange(
                        "PATCH", f"{self._path}/pods/{container}", patch, content_type=_MERGE_PATCH
                    )
                    return

    def remove(self, run: str, attempt: int) -> None:
        """Kill and delete the pods of an attempt and their Service. Raises EngineError."""
        labels = {RUNNER: self.runner, RUN: run, ATTEMPT: str(attempt)}
        deadline = time.monotonic() + REMOVE_SECONDS_MAX
        while found := self.pods(labels):
            if time.monotonic() > deadline + REMOVE_SECONDS_MAX:
                raise EngineError(
                    f"the pod {found[0]['metadata']['name']} was deleted but does not terminate"
                )
            # Those without a node first: one that waited must not start on what an ended one frees.
            for one in sorted(found, key=lambda item: bool(item["spec"].get("nodeName"))):
                is_over = not state_of(one, time.time()).is_running or not one["spec"].get("nodeName")
                seconds = 0 if is_over or time.monotonic() > deadline else 1
                with contextlib.suppress(ContainerMissingError):
                    self._delete(one["metadata"]["name"], seconds)
                self.release(one["metadata"]["name"])
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ContainerMissingError):
            self._call("DELETE", f"{self._path}/services/{service_name(self.runner, run, attempt)}")

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._connected is not None:
                self._connected.rest_client.pool_manager.clear()
            self._connected = None

    def _delete(self, name: str, grace_seconds: int) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_seconds}
        self._call("DELETE", f"{self._path}/pods/{name}", options)

    # ------------------------------------------------------------------ requests

    def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Send a request; return the object of the answer. Raises ContainerMissingError, EngineError."""
        try:
            return self._exchange(method, path, body)
        except _Conflict as error:
            raise EngineError(str(error)) from error

    def _exchange(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "application/json"
    ) -> Object:
        with _reaching():
            response = self._open(
                method, path, body, content_type=content_type, read_seconds=CALL_SECONDS_MAX
            )
            found = json.loads(response.read() or b"{}")
            response.release_conn()
        return dict(found)

    def _open(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        read_seconds: float | None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; return the answer, of which only the headers have been read. Raises EngineError."""
        with _reaching():
            response = self._send(method, path, body, content_type, read_seconds)
            if response.status == 401:  # the token may have been renewed
                response.close()
                self.close()
                response = self._send(method, path, body, content_type, read_seconds)
            if 200 <= response.status < 300:
                return response
            said = _said(response.read())
            response.close()
        if response.status == 404:
            raise ContainerMissingError(said)
        if response.status == 409:
            raise _Conflict(f"the API server refuses to {method} {path}: {said}")
        is_log = path.partition("?")[0].endswith("/log")  # whose node may be gone for good
        if response.status in (401, 429) or (response.status >= 500 and not is_log):
            raise EngineUnreachableError(f"the API server cannot answer now: {response.status} {said}")
        raise EngineError(
            f"the API server refuses to {method} {path.partition('?')[0]}: {said}",
            hint="docs/howto/training-service.md has the rights of a runner"
            if response.status == 403
            else "",
        )

    def _send(
        self, method: str, path: str, body: Object | None, content_type: str, read_seconds: float | None
    ) -> urllib3.BaseHTTPResponse:
        client = self._client()
        headers = {"Accept": "*/*" if path.partition("?")[0].endswith("/log") else "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        _, url, headers, _, _ = client.param_serialize(
            method=method, resource_path=path, header_params=headers, auth_settings=["BearerToken"]
        )
        pool: urllib3.PoolManager = client.rest_client.pool_manager
        return pool.request(
            method,
            url,
            body=None if body is None else json.dumps(body),
            headers=headers,
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=read_seconds),
        )

    def _client(self) -> ApiClient:
        with self._lock:
            if self._connected is None:
                self._connected = ApiClient(_configuration(self._kubeconfig))
            return self._connected


class PodLaunch:
    """One launch. Implements `LaunchCalls`."""

    def __init__(self, client: PodClient, plan: AttemptPlan, options: PodOptions) -> None:
        self._client = client
        self._plan = plan
        self._options = options
        self._cancelled = threading.Event()
        self._begun = 0.0
        self._digests: set[str] = set()

    @property
    def image(self) -> RankImage:
        """The image as it was named, with its digest once all nodes that have started it say the same one."""
        return RankImage(self._options.image, next(iter(self._digests)) if len(self._digests) == 1 else "")

    def create(self) -> dict[int, str]:
        """Create the Service and all pods; return their names by rank."""
        self._begun = time.monotonic()
        runner, namespace = self._client.runner, self._options.namespace
        owner = self._client.create("services", service(self._plan, runner=runner, namespace=namespace))
        made = {}
        for rank in self._plan.ranks:
            given = pod(self._plan, rank, self._options, runner=runner, owner=owner)
            made[rank.rank] = str(self._client.create("pods", given)["metadata"]["name"])
        return made

    def start(self, container: str) -> None:
        """Wait until a pod's rank runs. Raises EngineError with the reason if it does not."""
        image_since: float | None = None
        while True:
            found = self._client.pod(container)
            start = start_of(found)
            if start.has_started:
                self._digests.add(image_digest(found))
                return
            if start.refusal is not None:
                raise start.refusal
            now = time.monotonic()
            image_since = (image_since or now) if start.has_image_trouble else None
            if image_since is not None and now >= image_since + self._client.image_seconds:
                raise ImageMissingError(start.waits_for)
            seconds = self._client.pull_seconds if start.is_pulling else self._client.start_seconds
            if now >= self._begun + seconds:
                raise EngineError(
                    f"the pod {container} does not run after {seconds:.0f} s: {start.waits_for}"
                )
            self._plan.tell(f"waits for the pod {container}: {start.waits_for}")
            if self._cancelled.wait(_POLL_SECONDS):
                raise EngineError("it was stopped before it had started")

    def cancel(self) -> None:
        """Make `start` stop waiting."""
        self._cancelled.set()


class _Conflict(Exception):  # noqa: N818 - an answer
    """An object of this name exists already, or has changed since it was read."""


class _LogStream:
    """Bytes of a log as they arrive."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        while data := self._read():
            yield data

    def close(self) -> None:
        """End another thread's wait for more."""
        with contextlib.suppress(*_BROKEN):
            self._response.shutdown()

    def _read(self) -> bytes:
        read: Callable[[int], bytes] = self._response.read1
        return read(1 << 16)


def _configuration(kubeconfig: str) -> Configuration:
    configuration = Configuration()
    configuration.connection_pool_maxsize = 64
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    try:
        if not chosen and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(config_file=chosen or None, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise EngineUnreachableError(
            f"there are no credentials for an API server: {error}",
            hint="name a kubeconfig, or run in a pod with a service account",
        ) from error
    return configuration


def _said(text: bytes) -> str:
    with contextlib.suppress(ValueError):
        found: Any = json.loads(text)
        if isinstance(found, dict) and found.get("message"):
            return str(found["message"])
    return text.decode(errors="replace").strip()[:300]


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except _BROKEN as error:
        raise EngineUnreachableError(f"the API server does not answer: {error}") from error
