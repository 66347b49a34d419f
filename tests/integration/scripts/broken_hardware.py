"""Runs a training script; in one worker, from one step on, a bit of its gradients is wrong.

ELASTANE_TEST_FAULTY: "SUFFIX:FIRST:END[:FIRST:END...]": the end of its id, and the steps in which it is so.
"""

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

import elastane


def main() -> None:
    suffix, *bounds = os.environ["ELASTANE_TEST_FAULTY"].split(":")
    if os.environ["ELASTANE_WORKER_ID"].endswith(suffix):
        steps = zip(map(int, bounds[::2]), map(int, bounds[1::2]), strict=True)
        break_gradients({step for first, end in steps for step in range(first, end)})
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def break_gradients(steps: set[int]) -> None:
    """Flips the lowest bit of the last gradient of every backward in these steps."""
    jobs: list[Any] = []
    init, make = elastane.init, torch.optim.Optimizer.__init__

    def remembering(**options: Any) -> Any:
        jobs.append(init(**options))
        return jobs[0]

    def flip(param: torch.Tensor) -> None:
        if jobs[0].step in steps:
            assert param.grad is not None
            param.grad.view(torch.int32)[0] ^= 1

    @functools.wraps(make)
    def making(self: torch.optim.Optimizer, params: Any, *rest: Any, **options: Any) -> None:
        params = list(params)
        params[-1].register_post_accumulate_grad_hook(flip)
        make(self, params, *rest, **options)

    elastane.init = remembering
    torch.optim.Optimizer.__init__ = making  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
