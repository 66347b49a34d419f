"""A tracker's process, started by a worker (`process`): `python -m elastane.tracking '{"to": ..., ...}'`.

It ends with its worker: when the standard input ends, or says {"stop": true}, what was read is written and
the process is over. A line {"finish": N} says that the job has N steps and ends when they are written.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from elastane.errors import ElastaneError
from elastane.tracking.follow import Following, write_steps
from elastane.tracking.tracker import TrackerSpec


def main() -> int:
    """Exit code 0, also when another worker leads by now; 1 with a line on stderr when the tracker failed."""
    asked = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # for the worker, which may drain for a while yet
    spec = TrackerSpec(**asked["to"])
    try:
        if not asked["master"]:
            write_steps(sys.stdin, asked["job"], asked["created"], spec)
            return 0
        return _follow(asked, spec)
    except Exception as error:  # noqa: BLE001 - whatever a tracker's library raises: training goes on without it
        said = str(error) if isinstance(error, ElastaneError) else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"elastane: values do not go to {spec} any more: {said}\n")
        return 1


def _follow(asked: dict[str, str], spec: TrackerSpec) -> int:
    from elastane.client import ClientClosedError, MasterClient, RequestRefusedError

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
