"""A gallery of training scripts, each under stock DDP and under random churn with a kill, compared.

The scripts in gallery/ are what users write: nothing in them knows of the test. What each item shows is
in docs/exactness.md. ELASTANE_GALLERY_SEED draws other churn.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.verify.run import REPEAT_CHECK_VARIABLE, Verdict, VerifyResult, run_verify
from elastane_common.errors import reason_of
from elastane_proto.v1 import job_pb2
from integration.forkserver import ForkServers
from slow import further, slow, slow_except

GALLERY = Path(__file__).parent / "gallery"
EXAMPLES = Path(__file__).parents[2] / "examples"
SEED = os.environ.get("ELASTANE_GALLERY_SEED", "1")
ESTS, RUNS = 3, 1

#: Name of the item -> script and arguments. Items of one command share its run.
EXACT = {
    "convolution": "conv.py --data-workers 2",
    "convolution, data workers": "conv.py --data-workers 2",
    "buckets": "buckets.py --cap 0.05",
    "gradient_as_bucket_view": "buckets.py --view --in-place",
    "bucket_cap_mb": "buckets.py --cap 0.05",
    "find_unused_parameters": "unused.py --clip --freeze",
    "frozen and unfrozen": "unused.py --clip --freeze",
    "tied weights": "language.py --checkpointing reentrant --static-graph",
    "fp16 autocast, GradScaler": "language.py --precision fp16-scaler",
    "bf16 autocast, checkpointing": "language.py --precision bf16-autocast --checkpointing plain",
    "bf16 parameters": "language.py --precision bf16-parameters",
    "static_graph, reentrant checkpointing": "language.py --checkpointing reentrant --static-graph",
    "accumulation": "accumulation.py",
    "accumulation, bucket view, data workers": "accumulation.py --clip --view --data-workers 2",
    "moving averages": "averages.py",
    "torch.compile": "compiled.py",
    "early stopping, carried values": "early.py --patience 2",
    "max_steps, carried values": "early.py",
    "zeroed in place, then to None": "bodies.py --mixed-zeroing --forces",
    "a loss of gradients": "bodies.py --mixed-zeroing --forces",
    "drawn in backward": "bodies.py --model-zeroes --backward-draws",
    "model.zero_grad with accumulation": "bodies.py --model-zeroes --backward-draws",
    "registered": "registered.py",
    "registered, data workers": "registered.py --data-workers 2",
    "shuffle with a generator, drop_last": "loaders.py --generator --drop-last",
    "sequential, pinned": "loaders.py --sampler sequential --pin-memory --data-workers 1",
    "DistributedSampler, init function": "loaders.py --sampler distributed --init-fn --data-workers 2",
    "weighted, persistent": "loaders.py --sampler weighted --data-workers 2 --persistent --prefetch 4",
    "replacement, drop_last": "loaders.py --sampler replacement --drop-last",
    "RandomSampler with a generator": "loaders.py --sampler random --data-workers 2 --generator",
    "batch_sampler": "loaders.py --sampler lengths",
    "batch_sampler with set_epoch": "loaders.py --sampler epochs --data-workers 2 --persistent",
    "stream, iterator's state": "streams.py --state iterator --data-workers 2",
    "stream, iterator's state, no data worker": "streams.py --state iterator",
    "stream, dataset's state": "streams.py --state position",
    "stream, dataset's state, data workers": "streams.py --state resume --data-workers 2",
    "validation": "validation.py --each-rank",
    "validation, each rank": "validation.py --each-rank",
    "seeded in each epoch": "validation.py --seeds",
    "stream without state": "streams.py --data-workers 2",
    "once a step": "turns.py",
    "values of all ranks": "gathering.py",
}
#: Those that `make test` shows: one of each kind.
QUICK = (
    "fp16 autocast, GradScaler",
    "accumulation, bucket view, data workers",
    "stream, iterator's state",
)
#: Those whose parts other items, cases of parity/test_parity_sample.py or unit tests show.
FURTHER = (
    "bf16 parameters",  # parity: 52
    "accumulation",  # "accumulation, bucket view, data workers"
    "moving averages",  # parity: 7, 52
    "registered",  # "registered, data workers"
    "shuffle with a generator, drop_last",  # unit/data/test_data_samplers.py, test_data_parity.py
    "sequential, pinned",  # unit/data/test_data_options.py
    "DistributedSampler, init function",  # parity: 6167
    "replacement, drop_last",  # unit/data/test_data_samplers.py, which has each sampler
    "RandomSampler with a generator",  # the same
    "batch_sampler",  # unit/data/test_data_samplers.py
    "batch_sampler with set_epoch",  # the same, and test_data_parity.py
    "weighted, persistent",  # the same
    "stream, iterator's state, no data worker",  # "stream, iterator's state"; unit/data/test_data_iterable.py
    "stream, dataset's state",  # "stream, dataset's state, data workers"
    "seeded in each epoch",  # unit/runtime: test_the_same_seed_for_all_is_the_same_state_for_all
)
#: Refused scripts that `make test` shows: of torch, data, loop, the end of an epoch, torch.distributed.
QUICK_REFUSED = (
    "sparse",
    "dataset-generator",
    "unused",
    "scheduler",
    "late-draw",
    "train-mode",
    "closure",
    "collective",
    "launcher's variable",
    "counter",
    "hook",
    "second-forward",
)
#: Case of refused.py -> words that say what is wrong and what to do.
REFUSED = {
    "sparse": ("sparse gradient", "sparse=False"),
    "compiled": ("the model is compiled", "optimize_ddp = False before prepare"),
    "static-accumulation": ("stock DDP fails with both", "omit static_graph"),
    "two-backwards": ("second gradient in one turn", "call backward() once"),
    "unused": ("gave no gradient to never", "find_unused_parameters=True"),
    "dataset-generator": ("dataset.rng", 'job.register("rng", dataset.rng)'),
    "stream": ("IterableDataset without states", "num_workers=1 or more"),
    "unfrozen": ("did not require a gradient at prepare", "find_unused_parameters=True"),
    "clipped, not zeroed": ("added to those of the step before", "optimizer.zero_grad()"),
    "scheduler": ("a scheduler of the SGD was not prepared", "pass every scheduler"),
    "late-draw": ("random numbers were drawn after backward()", "isolated_rng"),
    "late-buffer": ("was written to after backward()", "model.eval()"),
    "uneven-draw": ("depends on the generator's state in refused.py", "job.each_rank()"),
    "train-mode": ("buffer 2.running_mean was written to between two epochs", "model.eval()"),
    "seed-and-rank": ("a seed is computed from job.rank", "elastane.init(seed=S)"),
    "closure": ("came before backward()", "forward, backward, optimizer.step()"),
    "collective": ("torch.distributed itself", "refused.py:", "calls all_reduce", "use job.log"),
    "asked": ("torch.distributed itself", "refused.py:", "calls is_initialized", "job.is_leader"),
    "no_sync": ("model.no_sync() is a method of DistributedDataParallel", "accumulation_steps=K"),
    "late group": ("add_param_group() was called after prepare", "create all groups before prepare"),
    "hidden scaler": ("a GradScaler that was not prepared", "job.prepare(..., scaler)"),
    "read ahead": (
        "refused.py:",
        "requests the next mini-batch from the loader before backward()",
        "prefetch_factor",
    ),
    "summed gradients": ("mini-batch 1 of 2 that are summed", "register_step_pre_hook"),
    "launcher's variable": ("refused.py:", "reads the variable RANK", "use job.rank"),
    "early leader": ("job.is_leader was read in refused.py:", "in the loop over job.epochs"),
    "looked at": ("was left at refused.py", "next(iter(DataLoader(dataset, ...)))"),
}
#: Slip of turns.py -> such words. With two ESTs in one worker.
REFUSED_TURNS = {
    "counter": ("turns is carried from turn to turn", 'decides param_group["lr"] in line', "use job.step"),
    "clamp": ("parameter head.weight was written to in step 0", "`if job.stepped:`"),
    "data-clamp": ("parameter head.weight was written to in step 0", "`if job.stepped:`"),
    "average": ("average holds a copy of the weights", "job.prepare(net, ..., average)"),
    "module-counter": ("model.calls (turns.py, line", "self.register_buffer"),
    "running-mean": ("mean is carried from turn to turn, and decides the loss", "job.register("),
    "optimizer-counter": ("Lookahead.k (turns.py, line", "param_group, which state_dict holds"),
    "every-second-turn": ("whether optimizer.step() is called", "prepare(..., accumulation_steps=k)"),
    "criterion-counter": ("criterion.seen is carried from turn to turn", "job.register("),
    "hook": ("was run twice from the same state, and its gradients differ", "compute it from job.step"),
    "second-forward": ("a second forward after the first has changed buffer count", "torch.cat([a, b])"),
}


def test_the_page_names_items_and_tests_that_exist() -> None:
    page = (EXAMPLES.parent / "docs" / "exactness.md").read_text()
    rows = [line.split("|")[-2] for line in page.splitlines() if line.startswith("| ")]
    named = [part.strip() for row in rows for part in row.split(";") if part.strip()]
    tests = "".join(path.read_text() for path in EXAMPLES.parent.glob("tests/**/test_*.py"))
    shown = {name.removeprefix("gallery: ") for name in named if name.startswith("gallery: ")}
    refused = {name.removeprefix("refused: ") for name in named if name.startswith("refused: ")}
    assert shown == set(EXACT)
    assert refused == set(REFUSED) | set(REFUSED_TURNS)
    assert [name for name in named if name.startswith("`") and f"def {name.strip('`')}(" not in tests] == []


def verify(
    servers: ForkServers,
    folder: Path,
    command: str,
    *,
    runs: int = RUNS,
    steps: int | None = None,
    repeat_check: bool = True,
) -> VerifyResult:
    script, *arguments = shlex.split(command)
    path = Path(script) if Path(script).is_absolute() else GALLERY / script
    return run_verify(
        folder,
        [str(path), *arguments],
        ests=ESTS,
        runs=runs,
        kills=1,
        steps=steps,
        seed=SEED,
        environment={REPEAT_CHECK_VARIABLE: str(int(repeat_check))},
        launch=servers.launch,
    )


@pytest.fixture(scope="module")
def verified(servers: ForkServers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], VerifyResult]:
    """Return the function that verifies a command of the gallery, once for all items that it shows."""

    @functools.cache
    def once(command: str) -> VerifyResult:
        return verify(servers, tmp_path_factory.mktemp("gallery"), command)

    return once


@pytest.mark.parametrize("item", slow_except(EXACT, *QUICK, further=FURTHER))
def test_gallery_item_has_the_bits_of_stock_ddp(verified: Callable[[str], VerifyResult], item: str) -> None:
    result = verified(EXACT[item])
    assert result.verdict is Verdict.EQUAL, result.as_json()
    assert len(result.runs) == RUNS
    assert all(run.plan.deaths for run in result.runs)
    assert result.values > 0


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"{EXAMPLES}/digits_cnn.py --epochs 1", id="digits_cnn", marks=further),
        pytest.param(f"{EXAMPLES}/char_gpt.py", id="char_gpt", marks=slow),
    ],
)
def test_example_has_the_bits_of_stock_ddp(servers: ForkServers, tmp_path: Path, command: str) -> None:
    result = verify(servers, tmp_path, command, steps=12)
    assert result.verdict is Verdict.EQUAL, result.as_json()
    assert result.steps == 12


@slow
def test_unregistered_generator_is_found_and_named(servers: ForkServers, tmp_path: Path) -> None:
    result = verify(servers, tmp_path, "registered.py --unregistered noise", runs=2, repeat_check=False)
    assert (result.verdict, result.exit_code) == (Verdict.DIFFERS, 1)
    assert result.cause is not None
    assert result.cause.kind == "unregistered generator"
    assert "registered.py: noise" in result.cause.text
    assert 'job.register("noise", noise)' in result.cause.hint
    assert not result.cause.ours


@pytest.mark.parametrize("case", slow_except([*REFUSED, *REFUSED_TURNS], *QUICK_REFUSED))
def test_what_cannot_be_exact_is_refused_in_words(servers: ForkServers, tmp_path: Path, case: str) -> None:
    turns = case in REFUSED_TURNS
    settings = job_pb2.JobSettings(ests=2 if turns else 1, workers_min=1, workers_max=1)
    script = [str(GALLERY / ("turns.py" if turns else "refused.py")), case]
    with local_cluster(tmp_path, settings, script, launch=servers.launch) as cluster:
        name = cluster.add_worker()
        status = cluster.workers[name].wait(60)
        said = reason_of((tmp_path / f"{name}.log").read_text())
    assert status is not None
    assert status.returncode == 82, said
    for words in (REFUSED | REFUSED_TURNS)[case]:
        assert words in said
