"""Checkpoints by unit: any plan, or no pipeline, loads any; damaged and foreign ones are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastane.runtime.saving import CheckpointSaver, verify_for
from elastane.state.checkpoint import (
    CheckpointDamagedError,
    CheckpointTooNewError,
    ShardInfo,
    checkpoint_name,
    list_checkpoints,
    load_newest,
    take_snapshot,
    verify_newest,
    write_manifest,
    write_shard,
)
from elastane.state.manifest import Manifest
from elastane.state.optimizer_state import StateError
from elastane.state.unit_checkpoint import load_units, take_unit_snapshot
from elastane.state.unit_transfers import saved_by
from elastane_common.storage import CheckpointError
from elastane_proto.v1 import ring_pb2
from unit.state.checkpoints import CONTEXTS, ESTS
from unit.state.pipelines import (
    COUNT,
    CUTS,
    OPTIMIZERS,
    Stock,
    Worker,
    a_plan,
    assert_like_stock,
    begun,
    constructors,
    held_values,
    same_as_stock,
    stages,
    stepped,
    train,
)


@pytest.fixture(params=["path", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "path" else f"memory://{tmp_path}"


def homes(shard: int, shards: int) -> dict[int, Any]:
    return {rank: CONTEXTS[rank] for rank in range(shard * ESTS // shards, (shard + 1) * ESTS // shards)}


def save(url: str, workers: Sequence[Worker], step: int, *, cut: Sequence[int], keep: int = 3) -> str:
    """A checkpoint as these workers write it, a stage each; those beyond the stages have contexts alone."""
    name, entries = checkpoint_name(step, 1), []
    plan = a_plan(cut, [[member] for member in range(len(cut))])
    for shard, worker in enumerate(workers):
        snapshot = take_unit_snapshot(
            worker.state,
            saved_by(plan, shard),
            shard,
            len(workers),
            step=step,
            contexts=homes(shard, len(workers)),
            ready_order=(2, 0, 1),
        )
        entries.append(write_shard(url, name, shard, len(workers), snapshot))
    write_manifest(url, name, step, ESTS, entries[::-1], keep)
    return name


def save_ordinary(url: str, stock: Stock, step: int, shards: int = 3) -> str:
    name, exported = checkpoint_name(step, 1), stock.state.export()
    entries = [
        write_shard(
            url,
            name,
            shard,
            shards,
            take_snapshot(
                exported, shard, shards, step=step, contexts=homes(shard, shards), ready_order=(2, 0, 1)
            ),
        )
        for shard in range(shards)
    ]
    write_manifest(url, name, step, ESTS, entries, 3)
    return name


def restored(url: str, cut: Sequence[int], optimizer: Any, build: Any = Worker) -> list[Worker]:
    """New workers with a stage each, which read the newest checkpoint."""
    found = verify_newest(url, num_ests=ESTS)
    assert found is not None and found.contexts == CONTEXTS and found.ready_order == (2, 0, 1)
    workers = []
    for stage in stages(cut):
        worker = build(optimizer, seed=9)
        worker.state.adopt(stage, load_units(url, found.name, stage, worker.state))
        worker.units.started()
        workers.append(worker)
    return workers


# ------------------------------------------------------------------ any plan loads any


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_plan_goes_on_from_any_plan(url: str, name: str) -> None:
    stock, workers = Stock(OPTIMIZERS[name]), begun(CUTS[0], OPTIMIZERS[name])
    for index, (cut, other) in enumerate(zip(CUTS, [*CUTS[1:], [7]], strict=True)):
        steps = range(index * 2, index * 2 + 2)
        stock.train(steps)
        train(workers, steps)
        save(url, workers, steps.stop, cut=cut)
        workers = restored(url, other, OPTIMIZERS[name])
        assert_like_stock(workers, stock)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_without_a_pipeline_goes_on_from_a_checkpoint_by_unit(url: str, name: str) -> None:
    stock, workers = Stock(OPTIMIZERS[name]), begun([3, 7], OPTIMIZERS[name])
    stock.train(range(3))
    train(workers, range(3))
    save(url, workers, 3, cut=[3, 7])
    loaded = load_newest(url, num_ests=ESTS)
    assert loaded is not None and loaded.contexts == CONTEXTS and loaded.ready_order == (2, 0, 1)
    other = Stock(OPTIMIZERS[name], seed=9)
    other.state.load(loaded.exported)
    assert same_as_stock(other.state, stock)
    assert other.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert other.model[6].seen == stock.model[6].seen > 0
    stock.train(range(3, 5))
    other.train(range(3, 5))
    assert same_as_stock(other.state, stock)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_pipeline_goes_on_from_an_ordinary_checkpoint(url: str, name: str, shards: int) -> None:
    stock = Stock(OPTIMIZERS[name])
    stock.train(range(3))
    save_ordinary(url, stock, 3, shards)
    workers = restored(url, [1, 6, 7], OPTIMIZERS[name])
    assert_like_stock(workers, stock)
    stock.train(range(3, 5))
    train(workers, range(3, 5))
    assert_like_stock(workers, stock)


def test_extras_and_flags_are_in_the_common_part_of_either(url: str) -> None:
    stock = Stock()
    stock.state.extras["tracker"].best = 0.25
    stock.model[1].eval()
    stock.model[0].bias.requires_grad_(False)
    save_ordinary(url, stock, 3)
    (worker,) = restored(url, [7], OPTIMIZERS["adamw"])
    assert worker.tracker.best == 0.25 and not worker.units.module(1).training
    save(url, [worker], 4, cut=[7])
    loaded, other = load_newest(url), Stock()
    assert loaded is not None
    other.state.load(loaded.exported)
    assert other.state.extras["tracker"].best == 0.25 and not other.model[1].training
    assert not other.model[0].bias.requires_grad and other.model[0].weight.requires_grad


def test_workers_without_a_stage_write_their_contexts(url: str) -> None:
    workers = [*begun([3, 7]), Worker(), Worker()]
    save(url, workers, 4, cut=[3, 7])
    assert verify_newest(url).contexts == CONTEXTS


def test_the_workers_saver_writes_units_and_the_leader_finds_them(tmp_path: Path) -> None:
    """What a pipeline's worker does on the master's messages."""
    told: list[ring_pb2.Saved] = []
    saver, workers, name = CheckpointSaver(told.append), begun([3, 7]), checkpoint_name(4, 1)
    plan = a_plan([3, 7], [[0], [1]])
    message = ring_pb2.Checkpoint(url=str(tmp_path), checkpoint=name, step=4, shards=2, keep=3)
    for shard, worker in enumerate(workers):
        units, contexts = saved_by(plan, shard), homes(shard, 2)
        snapshot = take_unit_snapshot(worker.state, units, shard, 2, step=4, contexts=contexts)
        message.shard = shard
        saver.write_snapshot(ring_pb2.Checkpoint.FromString(message.SerializeToString()), snapshot)
    saver.close()
    assert [saved.error for saved in told] == ["", ""]
    for saved in told:
        message.manifest.add(shard=saved.shard, file=saved.file, sha256=saved.sha256, bytes=saved.bytes)
    leader = CheckpointSaver(told.append)
    leader.write_manifest(message, num_ests=ESTS)
    leader.close()
    assert told[-1].complete
    load = ring_pb2.Load(checkpoint_url=str(tmp_path))
    found = verify_for(load, num_ests=ESTS)
    assert found is not None and found.name == name and found.contexts == CONTEXTS
    assert verify_for(ring_pb2.Load(), num_ests=ESTS) is None
    load.step_max = 3
    with pytest.raises(CheckpointError, match="history goes only up to step 3"):
        verify_for(load, num_ests=ESTS)


def test_a_snapshot_does_not_change_with_the_training(url: str) -> None:
    workers = begun([7])
    expected = held_values(workers[0])
    snapshot = take_unit_snapshot(workers[0].state, range(COUNT), 0, 1, step=4, contexts=homes(0, 1))
    train(workers, range(2))
    name = checkpoint_name(4, 1)
    write_manifest(url, name, 4, ESTS, [write_shard(url, name, 0, 1, snapshot)], 3)
    other = Worker(seed=9)
    other.state.adopt(range(COUNT), load_units(url, name, range(COUNT), other.state))
    assert held_values(other) == expected


def test_a_member_reads_its_own_units_alone(tmp_path: Path) -> None:
    workers = begun([3, 7])
    name = save(str(tmp_path), workers, 4, cut=[3, 7])
    (tmp_path / name / "shard-00001-of-00002.bin").unlink()
    other = Worker(seed=9)
    staged = load_units(str(tmp_path), name, [1, 2], other.state)
    assert sorted(staged.units) == [1, 2] and staged.common is not None
    with pytest.raises(CheckpointError, match=r"shard-00001-of-00002.bin"):
        load_units(str(tmp_path), name, [6], other.state)


def test_no_checkpoint_is_none(url: str) -> None:
    assert verify_newest(url) is None


# ------------------------------------------------------------------ damaged, incomplete, foreign


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["header", "structure", "stream"])
def test_a_damaged_shard_is_passed_over_for_an_older_one(tmp_path: Path, where: str) -> None:
    workers = begun([3, 7])
    older = save(str(tmp_path), workers, 4, cut=[3, 7])
    train(workers, range(2))
    newer = save(str(tmp_path), workers, 6, cut=[3, 7])
    shard = tmp_path / newer / "shard-00001-of-00002.bin"
    data = shard.read_bytes()
    # Unit 3's section begins with its structure; the file ends with unit 6's stream.
    damage(
        shard, {"header": 30, "structure": data.index(b'{"version"') + 40, "stream": len(data) - 70}[where]
    )
    found = verify_newest(str(tmp_path))
    assert found is not None and found.name == older and newer in found.rejected[0]
    loaded = load_newest(str(tmp_path))
    assert loaded is not None and loaded.name == older
    unit = 6 if where == "stream" else 3
    if where != "header":
        with pytest.raises(CheckpointDamagedError, match=rf"shard-00001-of-00002.bin .* unit {unit} differs"):
            load_units(str(tmp_path), newer, [unit], Worker().state)


def test_a_missing_shard_and_a_short_one_are_named(tmp_path: Path) -> None:
    workers = begun([3, 7])
    name = save(str(tmp_path), workers, 4, cut=[3, 7])
    shard = tmp_path / name / "shard-00001-of-00002.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-64])
    with pytest.raises(CheckpointError, match=r"shard-00001-of-00002.bin is \d+ bytes long, should be"):
        verify_newest(str(tmp_path))
    with pytest.raises(CheckpointDamagedError, match=r"shard-00001-of-00002.bin ends 64 bytes early"):
        load_units(str(tmp_path), name, [6], Worker().state)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"shard-00001-of-00002.bin is missing"):
        verify_newest(str(tmp_path))


def test_a_checkpoint_without_all_units_never_comes_to_be(url: str) -> None:
    workers, name = begun([3, 7]), checkpoint_name(4, 1)

    def written(units: Sequence[range]) -> list[ShardInfo]:
        return [
            write_shard(
                url,
                name,
                shard,
                2,
                take_unit_snapshot(worker.state, units[shard], shard, 2, step=4, contexts=homes(shard, 2)),
            )
            for shard, worker in enumerate(workers)
        ]

    with pytest.raises(CheckpointDamagedError, match=r"units \[-1, 0, 1, 3, 4, 5, 6\] of 7"):
        write_manifest(url, name, 4, ESTS, written([range(2), range(3, 7)]), 3)
    assert not list_checkpoints(url)[0].complete
    stock = take_snapshot(Stock().state.export(), 1, 2, step=4, contexts=homes(1, 2))
    entries = [written([range(3), range(3, 7)])[0], write_shard(url, name, 1, 2, stock)]
    with pytest.raises(CheckpointDamagedError, match=r"shard-00001-of-00002.bin does not begin with"):
        write_manifest(url, name, 4, ESTS, entries, 3)


def test_retention_counts_both_forms(url: str) -> None:
    workers = begun([7])
    save_ordinary(url, Stock(), 2)
    for step in (4, 6, 8):
        save(url, workers, step, cut=[7], keep=2)
    assert [checkpoint.step for checkpoint in list_checkpoints(url)] == [6, 8]


def test_a_checkpoint_of_another_model_is_refused_by_name(url: str) -> None:
    def other(unit: int, build: Callable[[], nn.Module]) -> Worker:
        units: list[Any] = list(constructors())
        units[unit] = build
        return Worker(given=units)

    conv = lambda: nn.Conv2d(3, 4, 5)  # noqa: E731
    for name in (save(url, begun([7]), 4, cut=[7]), save_ordinary(url, Stock(), 6)):
        with pytest.raises(StateError, match=r"0.weight.*float32\[4, 3, 3, 3\].*float32\[4, 3, 5, 5\]"):
            load_units(url, name, [6], other(0, conv).state)
        with pytest.raises(
            StateError, match=r"parameter groups of \[8\] parameters, the script built \[3, 5\]"
        ):
            load_units(url, name, [6], Worker(OPTIMIZERS["groups"]).state)
    with pytest.raises(
        StateError, match=r"parameters differ.*\['1.bias', '1.weight'\] that the script lacks"
    ):
        load_units(url, name, [6], other(1, lambda: nn.BatchNorm2d(4, affine=False)).state)
    with pytest.raises(StateError, match=r"buffers differ.*'1.running_mean'"):
        load_units(url, name, [6], other(1, lambda: nn.GroupNorm(2, 4)).state)


def test_an_ordinary_checkpoint_with_two_optimizers_is_refused(url: str) -> None:
    stock = Stock()
    stock.state.optimizers.append(torch.optim.SGD(stock.model.parameters()))
    name = save_ordinary(url, stock, 4)
    with pytest.raises(StateError, match="the state has 2 optimizers, a pipeline has one"):
        load_units(url, name, [0], Worker().state)


def test_a_job_without_a_pipeline_refuses_another_model_by_name(url: str) -> None:
    save(url, begun([7]), 4, cut=[7])
    loaded = load_newest(url)
    assert loaded is not None
    with pytest.raises(StateError, match="parameters differ"):
        other = nn.Sequential(nn.Linear(2, 2))
        stock = Stock()
        stock.state.model = other
        stock.state.load(loaded.exported)


def test_an_older_release_refuses_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reading of a manifest, which has been the same since the first release."""
    name = save(str(tmp_path), begun([7]), 4, cut=[7])
    manifest = json.loads((tmp_path / name / "manifest.json").read_text())
    assert manifest["version"] == 2 and [s["unit"] for s in manifest["sections"]] == [-1, *range(7)]
    ordinary = save_ordinary(str(tmp_path), Stock(), 2)
    assert json.loads((tmp_path / ordinary / "manifest.json").read_text())["version"] == 1
    assert list(json.loads((tmp_path / ordinary / "manifest.json").read_text())) == list(
        Manifest.__struct_fields__
    )
    monkeypatch.setattr("elastane.state.manifest.UNIT_VERSION", 1)
    with pytest.raises(CheckpointTooNewError, match="its manifest has version 2, this one reads up to 1"):
        load_newest(str(tmp_path))


def test_what_was_read_of_the_optimizer_is_exact(url: str) -> None:
    """Adam's step counters and moments, of tied parameters too, pass through both forms."""
    workers, stock = begun([7]), Stock()
    train(workers, range(2))
    stock.train(range(2))
    save(url, workers, 2, cut=[7])
    (by_unit,) = restored(url, [7], OPTIMIZERS["adamw"])
    save_ordinary(url, stock, 4)
    (ordinary,) = restored(url, [7], OPTIMIZERS["adamw"])
    assert stepped(by_unit) == stepped(ordinary) == stepped(workers[0])
    assert set(stepped(by_unit)["3.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
