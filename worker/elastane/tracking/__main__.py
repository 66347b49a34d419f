"""Process of one tracker, started by a worker (`process`): `python -m elastane.tracking '{"to": ..., ...}'`.

It ends with its worker: at the end of standard input, or at the line {"stop": true}, it writes what it has
read and exits. A line {"finish": N} says that the job has N steps and ends when they are written.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from elastane.tracking.follow import Following, write_steps
from elastane.tracking.tracker import TrackerSpec
from elastane_common.errors import ElastaneError


def main() -> int:
    """Return the exit code: 0, also if another worker leads by now, or 1 if the tracker failed.

    A failure is reported in a line on stderr.
    """
    asked = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        # signals are meant for the worker, which may still drain for a while
        signal.signal(number, signal.SIG_IGN)
    spec = TrackerSpec(**asked["to"])
    try:
        if not asked["master"]:
            write_steps(sys.stdin, asked["job"], asked["created"], spec)
            return 0
        return _follow(asked, spec)
    except Exception as error:  # noqa: BLE001 - its library may raise anything; training continues
        said = str(error) if isinstance(error, ElastaneError) else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"elastane: values do not go to {spec} any more: {said}\n")
        return 1


def _follow(asked: dict[str, str], spec: TrackerSpec) -> int:
    from elastane_common.client import MasterClient
    from elastane_common.client_errors import ClientClosedError, RequestRefusedError

    with MasterClient(asked["master"], timeout_seconds=float(asked["timeout_seconds"])) as client:
        try:
            following = Following(client, asked["job"], spec, worker_id=asked["worker_id"])
            threading.Thread(target=_listen, args=(following,), daemon=True).start()
            following.run(follow=True)
        except ClientClosedError:
            pass
        except RequestRefusedError as error:
            if error.reason != "stale":
                raise
    return 0


def _listen(following: Following) -> None:
    for line in sys.stdin:
        if "stop" in (said := json.loads(line)):
            break
        if "finish" in said:
            following.finish_at(int(said["finish"]))
    following.stop()


if __name__ == "__main__":
    sys.exit(main())
