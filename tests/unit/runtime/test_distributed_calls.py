"""torch.distributed as a script finds it in a worker. In a process of its own: what is installed stays."""

from __future__ import annotations

import json
import textwrap

import pytest

from integration.forked_scripts import run_forked

SCRIPT = """
import json, sys, types
import torch
import torch.distributed as dist
from torch.distributed import get_rank, is_initialized as asked
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from elastane.runtime import distributed_calls

for _ in range(2):
    distributed_calls.install()
x, net = torch.ones(2), torch.nn.Linear(1, 1)
said, library = {}, types.ModuleType("metrics")
source = "import torch.distributed as d\\ndef world(): return d.is_initialized()"
exec(compile(source, "/x/site-packages/metrics.py", "exec"), library.__dict__)


def fully_shard():
    from torch.distributed.fsdp import fully_shard
    fully_shard(net)


CALLS = {
    "guarded": lambda: dist.is_available() and dist.is_initialized(), "taken by name": lambda: asked(),
    "get_rank": lambda: get_rank(), "get_world_size": lambda: dist.get_world_size(),
    "all_reduce": lambda: dist.all_reduce(x), "all_gather": lambda: dist.all_gather([x], x),
    "all_gather_object": lambda: dist.all_gather_object([0], 1), "broadcast": lambda: dist.broadcast(x, 0),
    "barrier": lambda: dist.barrier(), "reduce": lambda: dist.reduce(x, 0), "gather": lambda: dist.gather(x),
    "scatter": lambda: dist.scatter(x), "new_group": lambda: dist.new_group([0]),
    "init_process_group": lambda: dist.init_process_group("gloo"),
    "destroy_process_group": lambda: dist.destroy_process_group(),
    "DistributedDataParallel": lambda: DistributedDataParallel(net),
    "DistributedSampler": lambda: DistributedSampler([1, 2]),
    "init_device_mesh": lambda: dist.init_device_mesh("cpu", (2,)), "fully_shard": fully_shard,
}
for name, call in CALLS.items():
    try:
        said[name] = f"no error: {call()}"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
distributed_calls._refusal = None
DistributedSampler([1, 2], num_replicas=2, rank=0), list(DataLoader([1, 2], 1))
torch.nn.SyncBatchNorm(2)(x.expand(2, 2))
torch.optim.SGD(net.parameters(), lr=.1).step()
distributed_calls.check()
said["library"] = repr((library.world(), library.world()))
try:
    dist.get_rank()
except Exception:
    pass
try:
    distributed_calls.check()
except Exception as error:
    said["caught"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = run_forked(str(script), environment={}, timeout_seconds=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_every_call_is_refused_at_its_line_with_what_to_write(ran: tuple[dict[str, str], str]) -> None:
    said, _ = ran
    words = {"guarded": "calls is_initialized (use job.num_ests", "taken by name": "calls is_initialized"}
    hints = {
        "get_rank": "job.rank",
        "get_world_size": "job.num_ests",
        "DistributedSampler": "num_replicas=job.num_ests, rank=0",
        "DistributedDataParallel": "job.prepare",
        "fully_shard": "pass it to job.prepare unchanged",
        "all_reduce": "use job.log",
    }
    for name, text in said.items():
        if name in ("library", "caught"):
            continue
        assert text.startswith("DistributedCallError: this script calls torch.distributed itself"), text
        assert "train.py:" in text, text
        assert words.get(name, f"calls {name} (") in text, text
        assert hints.get(name, "") in text, text


def test_torch_has_the_true_answer_and_a_package_too_with_a_warning(ran: tuple[dict[str, str], str]) -> None:
    said, output = ran
    assert said["library"] == "(False, False)"
    assert output.count("metrics.py:2 of metrics asks torch.distributed") == 1


def test_a_refusal_that_the_script_catches_is_raised_again(ran: tuple[dict[str, str], str]) -> None:
    assert "calls get_rank" in ran[0]["caught"]
