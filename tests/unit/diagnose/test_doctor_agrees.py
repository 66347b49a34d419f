"""What `elastane doctor` says of a line, and what becomes of it in a worker: the same.

The worker runs each script up to its epochs, where it would look for a master, in a fork of one process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import patience
from elastane.diagnose.findings import is_fault
from elastane.diagnose.source import examine_source

SCRIPT = """\
import os, torch, elastane, numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader
{first}
job = elastane.init({init})
{before}
net = torch.nn.Linear(1, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
model, opt, loader = job.prepare(net, opt, DataLoader(torch.ones(4, 1), 1))
{after}
if os.environ.get("REACHED"): raise SystemExit(0)
for epoch in job.epochs(2):
    for x in loader:
        opt.zero_grad(); model(x).sum().backward(); opt.step()
"""
#: Parts of the script -> whether it is refused.
LINES = [
    ({}, False),
    ({"after": "if dist.is_available() and dist.is_initialized(): dist.barrier()"}, True),
    ({"before": "dist.is_initialized()", "init": "distributed_calls=True"}, False),
    ({"before": "world = int(os.environ.get('WORLD_SIZE', 1))"}, True),
    ({"first": "world = os.getenv('WORLD_SIZE')"}, True),
    ({"first": "world = os.getenv('WORLD_SIZE')", "init": "distributed_calls=True"}, False),
    ({"first": "os.environ['RANK'] = '0'; rank = os.environ['RANK']"}, False),
    ({"after": "if job.is_leader: os.makedirs('pictures')"}, True),
    ({"before": "torch.manual_seed(3 + job.rank)"}, True),
    ({"before": "torch.manual_seed(3 + job.rank)", "init": "seed=3"}, False),
    ({"after": "torch.manual_seed(3 + job.rank)", "init": "seed=3"}, True),
    ({"after": "for rank in job.each_rank(): torch.manual_seed(3 + job.rank)"}, False),
    ({"after": "torch.manual_seed(3)"}, False),
    ({"before": "torch.manual_seed(5000000000)"}, False),
    ({"init": "seed=5000000000"}, False),
    ({"before": "np.random.seed(5000000000)"}, True),
    ({"after": "model.no_sync()"}, True),
    ({"after": "opt.add_param_group({'params': []})"}, True),
]
RUNNER = """
import json, os, runpy, sys
import torch, torch.distributed.fsdp, torch._inductor, numpy, elastane.runtime.elastic
from elastane.collective import warming
warming.begin = lambda *_: None  # for a ring, which none of them joins
codes = []
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        except BaseException as error:
            os._exit(getattr(error, "exit_code", 1))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


def test_doctor_and_worker_refuse_the_same_lines(tmp_path: Path) -> None:
    paths, said = [], []
    for number, (parts, _) in enumerate(LINES):
        text = SCRIPT.format(**{"first": "", "init": "", "before": "", "after": "", **parts})
        paths.append(tmp_path / f"train{number}.py")
        paths[-1].write_text(text)
        said.append(is_fault(examine_source(text)))
    worker = {
        "ELASTANE_MODE": "elastic",
        "ELASTANE_WORKER_ID": "w0",
        "ELASTANE_MASTER": "127.0.0.1:1",
        "ELASTANE_ESTS": "2",
        "REACHED": "1",
    }
    ran = patience.run(
        [sys.executable, "-c", RUNNER, *map(str, paths)],
        env=os.environ | worker,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    codes = json.loads(ran.stdout.splitlines()[-1])
    for (parts, refused), doctor, code in zip(LINES, said, codes, strict=True):
        assert (doctor, code != 0) == (refused, refused), (parts, code, ran.stderr)
