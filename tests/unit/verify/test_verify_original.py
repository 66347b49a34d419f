"""The user's own script beside the converted one: what belongs together, the first difference, causes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from elastane.diagnose.findings import Finding, Severity
from elastane.reference_hook import elastane_reference as hook
from elastane_cli.rehearse.results import NOTHING, Row, Taken, shown
from elastane_cli.verify.causes import conversion_cause, event_in_words, held_cause, likely_cause, refusal_in
from elastane_cli.verify.compare import Difference
from elastane_cli.verify.original import compare_taken, first_event_difference, read_events, unlike
from elastane_cli.verify.reference import (
    HOOK,
    OriginalEmptyError,
    OriginalError,
    OriginalLateError,
    judge,
    parse_reference,
    reference_environment,
)
from elastane_cli.verify.workplace import COPIED_FILES_MAX, absolute_command, workplace
from elastane_common.determinism import Level
from elastane_common.processes.child import ExitStatus


def trained(*models: nn.Module, seed: int = 1) -> list[torch.optim.Optimizer]:
    """One Adam for each, after a step."""
    torch.manual_seed(seed)
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        sum(p.sum() for p in model.parameters()).backward()
        optimizer.step()
    return optimizers


def state(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], *, steps: int = 1) -> Taken:
    return Taken.of(json.loads(json.dumps({**hook.taken(models, optimizers), "steps": steps})))


def network(width: int = 4) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


class Pair(nn.Module):
    """What a converted GAN gives to prepare: one module that holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.maker = network(5), network(4)


# ---------------------------------------------------------------------- the ends


def test_equal_ends_are_equal_and_one_bit_is_named() -> None:
    model, other = network(), network()
    optimizers = trained(other)
    one, two = state([model], trained(model)), state([other], optimizers)
    assert unlike(one, two) == ""
    assert all(row.equal for row in compare_taken(one, two))
    with torch.no_grad():
        other[0].bias[0] = torch.nextafter(other[0].bias[0], torch.tensor(9.0))
        other[1].running_var += 1
    rows = {row.name: row for row in compare_taken(one, state([other], optimizers))}
    assert [name for name, row in rows.items() if not row.equal] == ["weights", "buffers"]
    assert rows["weights"].reference.startswith("0.bias ") and rows["buffers"].found.startswith(
        "1.running_var "
    )


def test_several_models_are_found_in_one_and_optimizers_in_any_order() -> None:
    pair, apart = Pair(), [network(4), network(5)]
    ours = trained(pair.critic, pair.maker)
    theirs = trained(*apart)
    found, reference = state([pair], ours), state(apart, theirs)
    assert unlike(reference, found) == ""
    assert all(row.equal for row in compare_taken(reference, found))
    ours[0].param_groups[0]["lr"] = 0.5
    (wrong,) = [row for row in compare_taken(reference, state([pair], ours)) if not row.equal]
    assert (wrong.name, "group 0: lr" in wrong.found) == ("optimizer", True)


def test_another_architecture_is_said_by_its_first_difference() -> None:
    def alone(model: nn.Module) -> Taken:
        return state([model], trained(model))

    one = alone(network(4))
    assert unlike(one, alone(network(5))) == (
        "0.weight is float32 4x3 in the reference and float32 5x3 in the converted script"
    )
    assert "has no such parameter" in unlike(one, alone(nn.Linear(3, 4)))
    assert "the reference has no such parameter" in unlike(
        one, alone(nn.Sequential(*network(), nn.Linear(4, 1)))
    )
    model = network()
    assert "optimizers that stepped" in unlike(one, state([model], trained(model) * 2))


def test_modules_that_both_scripts_hold_are_compared_and_others_are_not() -> None:
    model, average = network(), network()
    frozen = {name: hook.described(t) for name, t in average.state_dict().items()}
    moved = {**frozen, "0.bias": ["other", *frozen["0.bias"][1:]]}
    one = state([model], trained(model))
    theirs = Taken(1, one.models, one.optimizers, {"ema": frozen, "mine": frozen, "kind": frozen})
    ours = Taken(1, one.models, one.optimizers, {"ema": moved, "kind": {"0.bias": frozen["0.bias"]}})
    assert [row.name for row in compare_taken(theirs, ours) if not row.equal] == ["ema"]
    assert hook.held([model], [], [{"a": model, "b": nn.ReLU(), "ema": average}]).keys() == {"ema"}


def test_a_part_with_nothing_in_it_says_so() -> None:
    model = nn.Linear(2, 2)
    one = state([model], trained(model))
    assert Row("buffers", NOTHING, NOTHING) in compare_taken(one, one)
    assert shown("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") == NOTHING == "(none)"
    assert shown("ab") == "ab"


# ---------------------------------------------------------------------- the way there


def events(**changed: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [{"kind": "begin", "weights": {"w": "0"}}]
    for step in range(3):
        last = step == 2
        found += [
            {"kind": "forward", "inputs": f"in{step}", "random": {"torch": f"r{step}"}},
            {"kind": "backward", "loss": [float(step).hex()]},
            {"kind": "step", "optimizer": 0, "settings": {"0: lr": (0.1).hex()}, "weights": {"w": str(step)}},
        ]
        for event in found[-3:] if last else ():
            event |= {name: value for name, value in changed.items() if name in event}
    return found


@pytest.mark.parametrize(
    ("changed", "what", "words"),
    [
        ({"inputs": "other"}, "mini-batch", "step 2, rank 1: the mini-batch"),
        ({"random": {"torch": "x"}}, "random numbers", "the generator of torch as forward begins"),
        ({"loss": [(7.0).hex()]}, "loss", "the loss (2.0 in the reference, 7.0 here)"),
        ({"settings": {"0: lr": (0.2).hex()}}, "settings", "setting 0: lr (0.1 in the reference, 0.2 here)"),
        ({"weights": {"w": "9"}}, "weights", "the weight w after the step"),
        ({"weights": {"w": "2", "v": "9"}}, "weights", "the weight v after the step"),
        ({"settings": {"0: lr": (0.1).hex(), "1: lr": (0.2).hex()}}, "settings", "(absent in the reference"),
        ({"kind": "end"}, "order", "what is done next"),
    ],
)
def test_the_first_event_that_differs_is_named(changed: dict[str, object], what: str, words: str) -> None:
    same = {0: events(), 1: events()}
    assert first_event_difference(same, {0: events(), 1: events()}) is None
    found = first_event_difference(same, {0: events(), 1: events(**changed)})
    assert found is not None
    assert (found.step, found.rank, found.what) == (2, 1, what)
    assert words in event_in_words(found)
    cause = conversion_cause(found)
    assert (cause.kind, cause.ours) == ("the conversion", False) and cause.hint


def test_names_that_have_nothing_in_common_and_generators_of_one_side_are_passed_over() -> None:
    other = events(weights={"maker.w": "9"}, random={"torch": "r2", "NumPy": "n"})
    assert first_event_difference({0: events()}, {0: other}) is None


def test_an_end_that_comes_sooner_and_lines_that_were_cut_off() -> None:
    found = first_event_difference({0: events()}, {0: events()[:4]})
    assert found is not None and (found.what, found.step) == ("end", 1)
    assert read_events(['{"kind": "begin"}', '{"kind": "for']) == [{"kind": "begin"}]


# ---------------------------------------------------------------------- how it ended


REPORT = {"rank": 0, "world": 1, "steps": 3, "models": [], "optimizers": [], "events": []}


@pytest.mark.parametrize(
    ("status", "reports", "seen", "error", "words"),
    [
        (None, {}, True, OriginalLateError, "did not finish within 9 s"),
        (ExitStatus(1), {}, True, OriginalError, r"failed \(exit code 1\)\nlast line"),
        (ExitStatus(0), {}, False, OriginalEmptyError, "never started a Python"),
        (ExitStatus(0), {}, True, OriginalEmptyError, "built no torch.nn.parallel.DistributedDataParallel"),
        (ExitStatus(0), {0: {**REPORT, "world": 2}}, True, OriginalEmptyError, "a result of rank 1"),
        (ExitStatus(0), {0: {**REPORT, "steps": 0}}, True, OriginalEmptyError, "no optimizer"),
        (
            ExitStatus(0),
            {0: {"rank": 0, "world": 1, "steps": 0, "error": "finish: ValueError: odd"}},
            True,
            OriginalError,
            "the result of rank 0 of the reference could not be recorded: finish: ValueError: odd",
        ),
        (
            ExitStatus(0),
            {0: {**REPORT, "world": 2}, 1: {**REPORT, "rank": 1, "world": 2, "steps": 4}},
            True,
            OriginalError,
            "numbers of steps: 3, 4",
        ),
    ],
)
def test_each_bad_end_has_its_own_words(
    status: ExitStatus | None, reports: dict[int, dict[str, object]], seen: bool, error: type, words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        judge(status, ["last line"], reports, seen=seen, seconds=9.0)
    assert type(raised.value) is error and raised.value.hint


def test_a_rank_that_is_aborted_after_its_end_counts() -> None:
    lines = ["traceback : Signal 6 (SIGABRT) received by PID 7"]
    assert judge(ExitStatus(1), lines, {0: REPORT}, seen=True, seconds=1.0).ranks == 1
    with pytest.raises(OriginalError):
        judge(ExitStatus(1), ["Signal 9 (SIGKILL)"], {0: REPORT}, seen=True, seconds=1.0)


def test_a_reference_that_hangs_counts_once_all_its_ranks_have_reported() -> None:
    assert judge(None, [], {0: REPORT}, seen=True, seconds=1.0).ranks == 1
    with pytest.raises(OriginalLateError):
        judge(None, [], {0: {**REPORT, "world": 2}}, seen=True, seconds=1.0)


def test_a_rank_that_trains_on_withdraws_its_report(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    group = SimpleNamespace(get_rank=lambda: 1, get_world_size=lambda: 2)
    recorder = hook.Recorder(str(tmp_path), traced=False, settings={})
    recorder.built(SimpleNamespace(distributed=group), SimpleNamespace(module=net))
    recorder.stepped(optimizer)
    recorder.finish()
    assert json.loads((tmp_path / "rank-1.json").read_text())["steps"] == 1
    recorder.stepped(optimizer)
    assert not list(tmp_path.iterdir())
    recorder.finish()
    assert json.loads((tmp_path / "rank-1.json").read_text())["steps"] == 2


def test_the_command_is_found_beside_this_python(tmp_path: Path) -> None:
    program, *rest = parse_reference("torchrun --nproc-per-node 2 'a b.py'")
    assert Path(program).name == "torchrun" and rest == ["--nproc-per-node", "2", "a b.py"]
    for wrong in ("", "no-such-program x", "unclosed 'quote"):
        with pytest.raises(OriginalError):
            parse_reference(wrong)


def test_the_hook_comes_first_and_nothing_of_ours_besides(tmp_path: Path) -> None:
    inherited = {"PYTHONPATH": "/mine", "PATH": "/bin", "ELASTANE_MASTER": "x", "PET_MASTER_PORT": "5"}
    found = reference_environment(inherited, tmp_path, determinism=Level.D1, threads=2, traced=False)
    assert found["PYTHONPATH"] == f"{HOOK}{os.pathsep}/mine"
    assert (found["OMP_NUM_THREADS"], found["PET_MASTER_PORT"]) == ("2", "5")
    assert {name for name in found if name.startswith("ELASTANE_")} == {
        hook.DIRECTORY,
        hook.SETTINGS,
        hook.TRACE,
    }
    assert json.loads(found[hook.SETTINGS]) == {"threads": 2, "deterministic": True, "precise": False}


# ---------------------------------------------------------------------- causes


def finding(kind: str, **fields: object) -> Finding:
    settings = {
        "severity": Severity.DIFFERS,
        "what": f"a {kind}",
        "where": "t.py:3",
        "todo": "mend it",
        **fields,
    }
    return Finding(kind=kind, **settings)


def test_a_line_of_the_script_goes_before_our_own_fault() -> None:
    wrong_sum = Difference(3, "weights", "fc.weight")
    assert likely_cause(wrong_sum).ours
    found = [finding("break", severity=Severity.NOTE), finding("epoch variable"), finding("after the step")]
    cause = likely_cause(wrong_sum, findings=found)
    assert (cause.text, cause.hint, cause.ours) == ("t.py:3: a after the step", "mend it", False)
    assert likely_cause(wrong_sum, findings=found[:1]).ours, "a break out of epochs changes no weight"
    saved = [finding("saved weights")]
    assert likely_cause(wrong_sum, findings=saved).ours, "which weights are saved changes none of them"
    of_loss = [finding("loop variable"), finding("module state")]
    assert likely_cause(wrong_sum, findings=of_loss).ours, "gradients were equal"
    assert not likely_cause(Difference(3, "gradient"), findings=of_loss).ours
    assert likely_cause(Difference(3, "gradient"), findings=of_loss).text.endswith("a loop variable")
    by_itself = likely_cause(Difference(0, "batch"), by_itself=True, findings=found)
    assert by_itself.kind == "data pipeline"
    assert likely_cause(None, findings=found).kind == "the script"


def test_a_module_that_is_only_held_is_the_cause() -> None:
    assert "pass ema to prepare" in held_cause(["ema"]).hint
    known = finding("after the step", variable="ema")
    assert held_cause(["ema"], [known]).text.startswith("t.py:3")


def test_the_error_that_stopped_a_worker_is_the_cause() -> None:
    text = (
        "worker w0: exit code 1\nelastane_common.errors.StepError: no optimizer.step() (call it)\n"
        "  [ELA302] elastane errors ELA302: what causes it, and what to do\nthe master's last decisions:"
    )
    assert refusal_in(text) == ("ELA302", "no optimizer.step() (call it)")
    assert refusal_in("ValueError: bad\n") is None
    assert refusal_in("x\n  [ELA401] elastane errors ELA401: what causes it, and what to do") is None


# ---------------------------------------------------------------------- folders of their own


def test_a_run_finds_what_was_there_and_leaves_nothing(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    for folder in ("data", "many", ".git"):
        (origin / folder).mkdir(parents=True)
    (origin / "data" / "x.txt").write_text("x")
    (origin / "snapshot.pt").write_text("old")
    for number in range(COPIED_FILES_MAX + 1):
        (origin / "many" / str(number)).touch()
    os.mkfifo(origin / "pipe")
    (origin / "proof").mkdir()
    for run in ("one", "two"):
        with workplace(origin / "proof" / run, origin) as place:
            work = place.directory
            assert (work / "data" / "x.txt").read_text() == "x" and not (work / "proof").exists()
            assert (work / "snapshot.pt").read_text() == "old"
            (work / "snapshot.pt").write_text(run)
            (work / "data" / "new.txt").write_text(run)
            assert {path.name for path in place.linked} == {"many", ".git", "pipe"}
            assert place.written_through() == []
            (work / "many" / "out").write_text(run)
            assert place.written_through() == ["many/out"]
            assert Path(place.environment["TMPDIR"]).is_dir()
        assert not Path(place.environment["TMPDIR"]).exists()
    assert (origin / "snapshot.pt").read_text() == "old" and not (origin / "data" / "new.txt").exists()


def test_a_command_is_written_for_another_folder(tmp_path: Path) -> None:
    origin = tmp_path / "here"
    origin.mkdir()
    (tmp_path / "data").mkdir()
    for name in ("train.py", "other.py"):
        (origin / name).touch()
    command = ["torchrun", "train.py", "--data=../data", "../data/", "../none", "other.py", "x=../data"]
    outside = str(tmp_path / "data")
    changed = [str(origin / "train.py"), f"--data={outside}", outside, "../none", "other.py", "x=../data"]
    assert absolute_command(command, origin) == ["torchrun", *changed]


def test_what_cannot_be_taken_down_is_reported_and_never_seen_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = hook.Recorder(str(tmp_path), traced=True, settings={})
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(hook.atexit, "register", lambda action: None)
    recorder.built(
        torch, SimpleNamespace(module=nn.Linear(1, 1), register_forward_pre_hook=lambda *_, **__: 0)
    )
    monkeypatch.setattr(hook, "taken", lambda *_: 1 / 0)
    recorder.finish()
    report = json.loads((tmp_path / "rank-0.json").read_text())
    assert (report["rank"], report["error"]) == (0, "finish: ZeroDivisionError: division by zero")
    monkeypatch.setattr(hook, "taken", lambda *_: {})
    recorder.stepped(SimpleNamespace(param_groups=None))
    recorder.finish()
    assert "ZeroDivisionError" in json.loads((tmp_path / "rank-0.json").read_text())["error"]
    (tmp_path / "rank-0.json").unlink()
    recorder._directory = tmp_path / "gone"
    recorder.stepped(SimpleNamespace(param_groups=None))
