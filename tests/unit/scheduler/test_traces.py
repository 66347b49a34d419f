"""Readers of traces: what they read, and what they refuse, with the line."""

from __future__ import annotations

import json
import math

import pytest

from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.pool import Pool, parse_pool
from elastane_scheduler.simulation.formats import ReadOptions, add_times, read_trace
from elastane_scheduler.simulation.generated import generate
from elastane_scheduler.simulation.offers import read_reclaims
from elastane_scheduler.simulation.times import StepTimes
from elastane_scheduler.simulation.traces import Workload

POOL = parse_pool("v100=4,p100=2")
OWN = "name,arrival_seconds,ests,steps,est_seconds,mixes,preferred,workers_min,queue,weight,known"
EASY = (
    "name,time,application,max_parallelism,batch_size,epochs,enable_heterogeneous_deterministic,"
    "preferred_gpu,"
)
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
SIA = "name,time,application,num_replicas,batch_size"
TIMES = """model,bs,gpu,ddp_nondeterminism,ddp_determinism,ddp_hetero
Bert,8,v100,0.4,0.4,0.5
Bert,8,p100,0.6,0.6,0.7
ResNet50,64,v100,0.25,0.25,0.5
ResNet50,128,v100,0.25,0.45,0.9
"""


def times() -> StepTimes:
    found = StepTimes()
    add_times(found, TIMES.splitlines(keepends=True), "overhead.csv")
    return found


def read(text: str, pool: Pool = POOL, **options: object) -> Workload:
    return read_trace(text.splitlines(keepends=True), pool, times(), ReadOptions(**options))  # type: ignore[arg-type]


def test_our_own_format() -> None:
    found = read(f"{OWN}\na,1.5,4,100,v100=0.2;p100=0.4,1,p100,2,blue,3,0\nb,2,1,7,v100=0.1,,,,,,\n").jobs
    assert [job.name for job in found] == ["a", "b"]
    assert found[0].shape.est_seconds == (0.2, 0.4) and found[0].shape.mixes
    assert (found[0].shape.workers_min, found[0].queue, found[0].weight, found[0].known) == (
        2,
        "blue",
        3,
        False,
    )
    assert found[0].request == (0, 2)
    assert found[1].shape.est_seconds == (0.1, math.inf) and not found[1].shape.mixes
    assert (found[1].queue, found[1].known, found[1].request) == ("default", True, (1, 0))


def test_easyscale_jobs_take_the_times_of_their_level() -> None:
    text = f"{EASY}\na,10,bert,4,16,2,1,v100,0.4\nb,11,resnet50,2,96,1,0,v100\n"
    first, second = read(text).jobs
    assert first.shape.est_seconds == (1.0, pytest.approx(1.4))
    assert first.steps == pytest.approx(2 * 886.41 / 64)
    assert second.shape.est_seconds == (pytest.approx(0.35), math.inf)


def test_a_flag_that_is_neither_0_nor_1_counts_as_1_with_a_notice() -> None:
    found = read(f"{EASY}\na,10,bert,4,16,2,40,v100,0.4\n")
    assert found.jobs[0].shape.est_seconds[1] < math.inf
    assert found.notices == ["line 2: enable_heterogeneous_deterministic is '40', taken as 1"]


def test_repeated_names_are_told_apart_and_merged_only_as_the_artifact_does() -> None:
    text = f"{EASY}\na,10,bert,4,16,2,1,v100\nb,12,bert,4,16,2,1,v100\na,14,bert,2,16,2,1,v100\n"
    found = read(text)
    assert [job.name for job in found.jobs] == ["a@2", "b", "a@4"]
    assert len(found.notices) == 1 and "a" in found.notices[0]
    merged = read(text, merge=True).jobs
    assert [(job.name, job.arrival_seconds, job.shape.ests) for job in merged] == [("a", 14, 2), ("b", 12, 4)]


def test_philly_takes_the_first_jobs_and_their_durations() -> None:
    text = (
        f"{PHILLY}\n2017-10-09 07:01:55,66.0,1,66.0,x\n2017-10-09 07:00:55,20.0,2,40.0,x\n"
        "2017-10-10 00:00:00,1.0,1,1.0,x\n"
    )
    found = read(text, jobs_max=2, ests_per_device=4).jobs
    assert [(job.name, job.arrival_seconds, job.shape.ests) for job in found] == [
        ("job-3", 0, 8),
        ("job-2", 60, 4),
    ]
    assert found[0].steps * found[0].shape.step_seconds((2, 0)) == pytest.approx(20)


def test_tiresias() -> None:
    (job,) = read(f"{TIRESIAS}\n7,2,30,100,vgg11,147,23\n").jobs
    assert (job.name, job.arrival_seconds, job.request) == ("job-7", 30, (2, 0))
    assert job.steps * job.shape.step_seconds(job.request) == pytest.approx(147)


def test_sia_with_its_tables() -> None:
    found = StepTimes()
    header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    table = f"{header}\n1,1,32,0.2,0.05\n1,1,64,0.35,0.05\n2,2,32,9,0\n"
    add_times(found, table.splitlines(keepends=True), "scalability-cifar10-v100.csv")
    lines = f"{SIA}\ncifar10-0,107.5,cifar10,4,192\n".splitlines(keepends=True)
    (job,) = read_trace(lines, POOL, found, ReadOptions()).jobs
    assert job.shape.est_seconds == (pytest.approx(0.225), math.inf)
    assert job.steps * 4 * 0.225 == pytest.approx(0.5 * 3600)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("", 1, "known"),
        ("a,b\n1,2\n", 1, "known"),
        (f"{OWN}\na,1,4,100\n", 2, "est_seconds"),
        (f"{OWN}\na,1,4,100,v100=0.2\nb,-1,4,100,v100=0.2\n", 3, "arrival_seconds"),
        (f"{OWN}\na,,4,100,v100=0.2\n", 2, "arrival_seconds"),
        (f"{OWN}\na,nan,4,100,v100=0.2\n", 2, "arrival_seconds"),
        (f"{OWN}\na,1,0,100,v100=0.2\n", 2, "ests"),
        (f"{OWN}\na,1,1.5,100,v100=0.2\n", 2, "ests"),
        (f"{OWN}\na,1,{2**63},100,v100=0.2\n", 2, "ests"),
        (f"{OWN}\na,1,4,0,v100=0.2\n", 2, "steps"),
        (f"{OWN}\na,1,4,x,v100=0.2\n", 2, "steps"),
        (f"{OWN}\na,1,4,100,h100=0.2\n", 2, "h100"),
        (f"{OWN}\na,1,4,100,v100=0\n", 2, "est_seconds"),
        (f"{OWN}\na,1,4,100,v100\n", 2, "est_seconds"),
        (f"{OWN}\na,1,4,100,v100=0.2,1,k80\n", 2, "k80"),
        (f"{OWN}\na,1,4,100,v100=0.2,1,v100,9\n", 2, "workers"),
        (f"{OWN}\na,1,4,100,v100=0.2,1,v100,1,q,nan\n", 2, "weight"),
        (f"{OWN}\na,1,4,100,v100=0.2,1,v100,1,q,-1\n", 2, "weight"),
        (f"{OWN}\n\na,1,4,100,v100=0.2,1,v100,1,q,0\n", 3, "weight"),
        (f"{EASY}\na,10,gpt9,4,16,2,1,v100\n", 2, "gpt9"),
        (f"{EASY}\na,10,bert,0,16,2,1,v100\n", 2, "max_parallelism"),
        (f"{EASY}\na,10,bert,4,16,2,1,k80\n", 2, "k80"),
        (f"{EASY}\na,10,vgg19,4,16,2,1,v100\n", 2, "vgg19"),
        (f"{PHILLY}\nyesterday,66.0,1,66.0,x\n", 2, "timestamp"),
        (f"{PHILLY}\n2017-10-09 07:01:55,-1,1,66.0,x\n", 2, "duration"),
        (f"{PHILLY}\n2017-10-09 07:01:55,0,1,66.0,x\n", 2, "duration"),
        (f"{PHILLY}\n2017-10-09 07:01:55,5,0,66.0,x\n", 2, "num_gpus"),
        (f"{TIRESIAS}\n7,2,-30,100,vgg11,147,23\n", 2, "submit_time"),
        (f"{SIA}\nx,107.5,cifar10,4,192\n", 2, "cifar10"),
        ('name,arrival_seconds,ests,steps,est_seconds\n"a', 2, ""),
    ],
)
def test_bad_lines_are_refused_with_their_number(text: str, line: int, word: str) -> None:
    with pytest.raises(InvalidTrace) as refused:
        read(text)
    assert refused.value.line == line
    assert str(refused.value).startswith(f"line {line}: ")
    assert word in f"{refused.value} {refused.value.hint}"


def test_only_easyscale_has_a_published_reading() -> None:
    with pytest.raises(InvalidSettings):
        read(f"{OWN}\na,1,4,100,v100=0.2\n", merge=True)


def test_reclaims() -> None:
    text = json.dumps({"metadata": {"gap_seconds": 300}, "data": [2, 2, 0, 1]})
    assert read_reclaims(text, POOL, "v100").changes == ((0, (4, 2)), (600, (2, 2)), (900, (3, 2)))
    offset = read_reclaims(text, POOL, "p100", tick_seconds=60, offset=2)
    assert offset.changes == ((0, (4, 0)), (60, (4, 1)))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"metadata": {}, "data": [1]}', '{"metadata": {"gap_seconds": 0}, "data": [1]}',
        '{"metadata": {"gap_seconds": 300}, "data": [-1]}', '{"metadata": {"gap_seconds": 300}, "data": []}',
        '{"metadata": {"gap_seconds": 300}, "data": ["x"]}',
        '{"metadata": {"gap_seconds": NaN}, "data": [1]}',
    ],
)  # fmt: skip
def test_reclaims_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidTrace):
        read_reclaims(text, POOL, "v100")


@pytest.mark.parametrize(
    "text", ["", "v100", "v100=x", "v100=-1", "v100=1,v100=2", "v100=9999999999999999999"]
)
def test_pools_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        parse_pool(text)


@pytest.mark.parametrize("prices", ["k80=1", "v100=nan", "v100=-1", "v100=inf", f"v100={2.0**63}"])
def test_prices_that_are_refused(prices: str) -> None:
    with pytest.raises(InvalidSettings):
        parse_pool("v100=4,p100=2", prices)


def test_a_generated_trace_is_its_seed() -> None:
    def plain(seed: int) -> list[tuple[object, ...]]:
        return [
            (job.name, job.arrival_seconds, job.steps, job.shape.est_seconds, job.request)
            for job in generate(POOL, 30, seed).jobs
        ]

    assert plain(1) == plain(1) != plain(2)
