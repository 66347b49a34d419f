"""A torchrun-style script that knows nothing of Elastane: sums ranks until a file appears.

    black_box.py FOLDER

Writes "<round> <rank> <world size> <sum> <host>" to FOLDER/log after the first sum of each life.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    first = True
    while True:
        total = torch.tensor([float(rank), float((folder / "stop").exists())])
        dist.all_reduce(total)
        if first:
            life, host = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ.get("FAKE_HOST", "here")
            with (folder / "log").open("a") as log:
                log.write(f"{life} {rank} {size} {total[0]:g} {host}\n")
            first = False
        if total[1] > 0:
            break
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
