"""What `prepare_pipeline` takes and refuses, in one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastane.pipeline.units import Units
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.frozen import FrozenParameters
from elastane.runtime.pipelines.errors import EvaluationError, PipelineBodyError, PipelineOptionError
from elastane.runtime.pipelines.partial_state import refuse_partial_state
from elastane.runtime.stock import PlainJob
from elastane.state.unit_optimizer import UnitOptimizer
from elastane_common.errors import StepError, UnsupportedError
from elastane_planner.profile import Profile, UnitProfile

UNITS = [lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Dropout(0.5), lambda: nn.Linear(4, 2)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def loader(size: int = 12) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(size, 3), torch.zeros(size, dtype=torch.long)), 2)


def job() -> PlainJob:
    return PlainJob(WorkerEnvironment(mode="plain", progress=False), 1)


def prepared(**options: Any) -> Any:
    found = job()
    return found, *found.prepare_pipeline(
        UNITS, sgd, loader(), **{"loss_fn": nn.functional.cross_entropy, **options}
    )


def test_a_turn_of_the_loop_is_a_step_of_several_mini_batches() -> None:
    found, pipe, optimizer, batches, scheduler = prepared(
        accumulation_steps=4, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1)
    )
    assert len(batches) == 2
    seen = []
    for _ in found.epochs(2):
        for batch in batches:
            before = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
            loss = pipe(batch)
            assert not loss.requires_grad and pipe.losses == [loss]
            optimizer.step()
            scheduler.step()
            after = optimizer.param_groups[0]["params"]
            seen.append(any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
    assert seen == [True] * 4 and found.step == 4


def test_units_give_what_the_undivided_model_gives() -> None:
    found, pipe, optimizer, batches = prepared()
    for _ in found.epochs(1):
        for batch in batches:
            pipe(batch)
            pipe.clip_grad_norm_(0.1)
            optimizer.step()
    other = job()
    model = nn.Sequential(*(build() for build in UNITS))
    stock = sgd(model.parameters())
    model, stock, data = other.prepare(model, stock, loader())
    for _ in other.epochs(1):
        for given, target in data:
            stock.zero_grad()
            nn.functional.cross_entropy(model(given), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            stock.step()
    state = pipe.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert pipe.held == {0, 1, 2, 3}


def test_evaluation_is_in_eval_mode_and_leaves_generators_alone() -> None:
    found_job, pipe, _, _ = prepared()
    data = loader(8)
    next(epochs := found_job.epochs(1))

    def looked(output: torch.Tensor, batch: Any) -> tuple[bool, float, int]:
        return output.requires_grad, torch.rand(()).item(), len(batch)

    torch.manual_seed(4)
    found = pipe.evaluate(data, looked)
    after = torch.get_rng_state()
    assert [(grad, length) for grad, _, length in found] == [(False, 2)] * 4
    assert len({drawn for _, drawn, _ in found}) == 1, "what fn draws is undone"
    torch.manual_seed(4)
    for _ in data:
        pass
    assert torch.equal(torch.get_rng_state(), after), "iterating draws, as in stock"
    assert pipe._module.training
    epochs.close()


@pytest.mark.parametrize("name", ["find_unused_parameters", "static_graph", "gradient_as_bucket_view"])
def test_options_of_ddp_that_pipelines_lack(name: str) -> None:
    with pytest.raises(PipelineOptionError, match=f"a pipeline has no {name}"):
        prepared(**{name: True})
    prepared(**{name: False})


def test_objects_that_need_the_whole_model() -> None:
    loss = nn.functional.cross_entropy
    model = nn.Linear(2, 2)
    for extra, words in (
        (torch.optim.swa_utils.AveragedModel(model), "AveragedModel was prepared beside the units"),
        (sgd(model.parameters()), "second optimizer"),
        (torch.optim.lr_scheduler.StepLR(sgd(model.parameters()), 1), "StepLR was given as an object"),
    ):
        with pytest.raises(PipelineOptionError, match=words):
            job().prepare_pipeline(UNITS, sgd, loader(), extra, loss_fn=loss)
    two = [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")]
    with pytest.raises(PipelineOptionError, match="2 GradScalers"):
        job().prepare_pipeline(UNITS, sgd, loader(), *two, loss_fn=loss)
    with pytest.raises(PipelineOptionError, match="loader of a pipeline was given as a list"):
        job().prepare_pipeline(UNITS, sgd, [1, 2], loss_fn=loss)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"loss_fn": 3}, "loss_fn is a int"),
        ({"loss_fn": None}, "no loss_fn"),
        ({"scheduler": 3}, "scheduler is a int"),
        ({"split": "x"}, "split is a str"),
        ({"memory": "much"}, "memory is 'much'"),
        ({"memory": -1}, "memory is -1"),
        ({"memory": "0GiB"}, "memory is '0GiB'"),
        ({"profile": "nowhere.json"}, r"nowhere.json cannot be read"),
    ],
)
def test_arguments_that_are_none(option: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineOptionError, match=words):
        prepared(**option)


def test_a_profile_is_of_the_same_units(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    for names, words in (
        (("0", "1"), "2 units, the model has 4"),
        (("0", "1", "x", "3"), "unit 2 named 'x'"),
    ):
        file.write_bytes(Profile(tuple(UnitProfile(name) for name in names)).to_json())
        with pytest.raises(PipelineOptionError, match=words):
            prepared(profile=file)
    file.write_bytes(Profile(tuple(UnitProfile(str(index)) for index in range(4))).to_json())
    prepared(profile=file)


@pytest.mark.parametrize(
    ("given", "size"), [("2GiB", 2 << 30), ("3kB", 3072), (17, 17), ("64KiB", 65536), (None, 0)]
)
def test_memory_that_a_stage_may_use(given: str | int | None, size: int) -> None:
    assert prepared(memory=given)[1]._options.memory_bytes == size


def test_a_script_is_prepared_once() -> None:
    found = prepared()[0]
    with pytest.raises(StepError, match="has been prepared already"):
        found.prepare_pipeline(UNITS, sgd, loader(), loss_fn=nn.functional.cross_entropy)
    model = nn.Linear(3, 2)
    with pytest.raises(StepError, match="a second phase of training is a job of its own"):
        found.prepare(model, sgd(model.parameters()), loader())
    found = job()
    found.prepare(model, sgd(model.parameters()), loader())
    with pytest.raises(StepError, match="has been prepared already"):
        found.prepare(model, sgd(model.parameters()), loader())


def test_bodies_that_do_not_fit() -> None:
    found, pipe, _, batches = prepared()
    epochs = found.epochs(1)
    next(epochs)
    steps = iter(batches)
    batch = next(steps)
    for read in (iter, len, lambda one: one[0]):
        with pytest.raises(PipelineBodyError, match="reads a pipeline's batch"):
            read(batch)
    pipe(batch)
    with pytest.raises(PipelineBodyError, match="called twice with the batch of step 0"):
        pipe(batch)
    next(steps)
    with pytest.raises(PipelineBodyError, match=r"step 1 did not call pipe\(batch\)"):
        next(steps)
    with pytest.raises(PipelineBodyError, match="pipe was called with a Tensor"):
        pipe(torch.ones(1))


def test_a_mini_batch_is_divided_by_the_script() -> None:
    data = DataLoader([{"x": torch.ones(3), "y": torch.tensor(1)}] * 4, 2)
    loss = nn.functional.cross_entropy

    def run(**options: Any) -> None:
        found = job()
        pipe, optimizer, batches = found.prepare_pipeline(UNITS, sgd, data, loss_fn=loss, **options)
        for _ in found.epochs(1):
            for batch in batches:
                pipe(batch)
                optimizer.step()

    run(split=lambda batch: (batch["x"], batch["y"]))
    with pytest.raises(PipelineBodyError, match="is a dict, not"):
        run()


def test_torchs_clipping_is_refused_and_other_models_keep_it() -> None:
    """In a worker it would take the norm of the units that are there."""
    found, pipe, optimizer, batches = prepared()
    for _ in found.epochs(1):
        for batch in batches:
            pipe(batch)
            pipe.clip_grad_norm_(0.1)
            parameters = optimizer.param_groups[0]["params"]
            with pytest.raises(PipelineBodyError, match=r"pipe\.clip_grad_norm_\(max_norm\)"):
                nn.utils.clip_grad_norm_(iter(parameters), 0.1)
            optimizer.step()
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    assert nn.utils.get_total_norm([p.grad for p in other.parameters()]) <= 0.11


def test_weights_that_are_elsewhere_are_not_saved_as_nan() -> None:
    """A copy of the module refuses it, too; units that are here can be saved."""
    model = nn.Sequential(*(build() for build in UNITS))
    units = Units.build(model, release=True)
    divided = UnitOptimizer.build(units, sgd)
    refuse_partial_state(units, divided.optimizer)
    units.hold([0])
    assert list(model[0].state_dict()) == ["weight", "bias"]
    for whole in (model, copy.deepcopy(model), nn.ModuleDict({"layers": model})):
        with pytest.raises(EvaluationError, match=r"unit 3 .*pipe\.state_dict\(\)"):
            whole.state_dict()
    with pytest.raises(EvaluationError, match="--checkpoint"):
        divided.optimizer.state_dict()
    units.hold(range(units.count))
    assert len(model.state_dict()) == 4


def test_who_unfreezes_a_units_parameter_is_told_what_a_pipeline_can_do() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    frozen = FrozenParameters(model, pipeline=True)
    frozen.check()
    model.bias.requires_grad_(True)
    with pytest.raises(UnsupportedError, match=r"bias .*lr=0") as refused:
        frozen.check()
    assert "find_unused_parameters" not in str(refused.value)


def test_what_a_ring_cannot_answer_is_refused_in_one_process_too() -> None:
    """Else a script that was tried alone would lose its training at its last line."""
    found, pipe, optimizer, batches = prepared()

    def evaluate() -> list[Any]:
        return list(pipe.evaluate(loader(4), lambda output, batch: 1))

    with pytest.raises(EvaluationError, match=r"before job\.epochs"):
        evaluate()
    for _ in found.epochs(1):
        evaluate()
        for batch in batches:
            pipe(batch)
            with pytest.raises(EvaluationError, match="in the loader loop, in step"):
                pipe.state_dict()
            optimizer.step()
        assert evaluate() == [1, 1] and len(pipe.state_dict()) == 4
    with pytest.raises(EvaluationError, match="after the last epoch"):
        evaluate()
    assert len(pipe.state_dict()) == 4, "the leader has them still"
