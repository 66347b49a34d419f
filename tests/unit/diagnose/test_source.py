"""What the source of a script shows: each rule on a snippet that breaks it, and on one that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastane.diagnose.findings import Finding, Severity, is_fault
from elastane.diagnose.source import examine_script, examine_source, with_source

ROOT = Path(__file__).parents[3]

#: Around every loop body of the cases; %s: the body, indented by eight.
SCRIPT = """\
import torch, random, copy, numpy as np
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
import elastane
job = elastane.init(seed=1)
net = build(); ema = copy.deepcopy(net); best, bad = 0.0, 0; it = 0; mean = 1.0; total = 0.0; queue = []
opt = torch.optim.SGD(net.parameters(), lr=0.1)
train = DataLoader(data, 4, shuffle=True)
{before}
model, opt, loader{more} = job.prepare(net, opt, train{more})
{after}
for epoch in job.epochs(3):
    {first}
    for i, (x, y) in enumerate(loader):
        {turn}
        loss = criterion(model(x), y)
        {then}
        opt.zero_grad()
        loss.backward()
        {step}
        {end}
    {last}
"""


def script(**parts: str) -> str:
    """The script with `parts` in their places; where a part has several lines they are indented alike."""
    text = SCRIPT
    for name in ("before", "after", "first", "turn", "then", "step", "end", "last", "more"):
        part = parts.get(name, {"step": "opt.step()", "more": ""}.get(name, "pass"))
        found = re.search(rf"^( *)\{{{name}\}}$", text, re.M)
        indent = found[1] if found else ""
        text = text.replace(f"{{{name}}}", part.replace("\n", f"\n{indent}"))
    return text


def found_in(text: str) -> list[Finding]:
    return examine_source(text, "train.py")


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


EMA = "for a, b in zip(ema.parameters(), net.parameters()):\n    a.mul_(0.9).add_(b, alpha=0.1)"
#: (parts, what the line of the finding contains, kind, severity, the finding's words).
BROKEN = [
    pytest.param(
        {"turn": "for g in opt.param_groups: g['lr'] = 0.1 / (1 + it)", "end": "it += 1"},
        "g['lr']",
        "loop variable",
        "refused",
        "lr is set from a counter, it",
        id="lr from a counter",
    ),
    pytest.param(
        {"turn": "rate = 0.1 * (1 - i / len(loader))\nfor g in opt.param_groups:\n    g['lr'] = rate"},
        "g['lr'] = rate",
        "loop variable",
        "refused",
        "lr is set from enumerate, i",
        id="lr from enumerate",
    ),
    pytest.param(
        {
            "before": "def adjust(optimizer, n):\n    for g in optimizer.param_groups: g['lr'] = 1 / n",
            "turn": "adjust(opt, epoch * len(loader) + i)",
        },
        "adjust(opt, ",
        "loop variable",
        "refused",
        "lr is set from enumerate",
        id="lr by a function",
    ),
    pytest.param(
        {"then": "mean = 0.9 * mean + 0.1 * loss.item(); loss = loss / mean"},
        "loss.backward()",
        "loop variable",
        "refused",
        "mean decides the loss",
        id="running mean in the loss",
    ),
    pytest.param(
        {"turn": "if it > 100: x = x.flip(1)", "end": "it += 1"},
        "loss.backward()",
        "loop variable",
        "refused",
        "it decides the loss",
        id="a counter decides a branch",
    ),
    pytest.param(
        {"then": "loss = loss + contrast(x, queue)", "end": "queue.append(x)"},
        "loss.backward()",
        "loop variable",
        "refused",
        "queue decides the loss",
        id="a queue",
    ),
    pytest.param(
        {"end": "if i > 10: break"},
        "break",
        "break",
        "refused",
        "a break in the loader loop",
        id="break",
    ),
    pytest.param(
        {"end": "with torch.no_grad():\n    for p in net.parameters(): p.clamp_(-1, 1)"},
        "p.clamp_",
        "after the step",
        "refused",
        "weights of net are written in every turn",
        id="clamp",
    ),
    pytest.param(
        {"end": "for name, p in model.named_parameters(): p.data *= 0.99"},
        "p.data *=",
        "after the step",
        "refused",
        "weights of model",
        id="decay by hand",
    ),
    pytest.param(
        {"end": EMA},
        "a.mul_",
        "after the step",
        "refused",
        "ema is a copy of weights that was not passed",
        id="average not prepared",
    ),
    pytest.param(
        {"end": EMA, "more": ", ema"},
        "a.mul_",
        "after the step",
        "refused",
        "ema is changed in every turn",
        id="average in every turn",
    ),
    pytest.param(
        {
            "before": "def follow(teacher, student):\n    for a, b in zip(teacher.parameters(), "
            "student.parameters()):"
            "\n        a.data.lerp_(b, 0.1)",
            "end": "follow(ema, net)",
        },
        "follow(ema",
        "after the step",
        "refused",
        "ema is a copy",
        id="average by a function",
    ),
    pytest.param(
        {"before": "model_ema = ModelEma(net)", "end": "model_ema.update(net)"},
        "model_ema.update",
        "after the step",
        "refused",
        "model_ema averages the weights",
        id="average's object",
    ),
    pytest.param(
        {"then": "(0.5 * loss).backward()"},
        "        loss.backward()",
        "loop body",
        "refused",
        "a second backward() in a turn",
        id="backward twice",
    ),
    pytest.param(
        {"step": "if (i + 1) % 4 == 0: opt.step()"},
        "opt.step()",
        "loop body",
        "refused",
        "opt.step() only every k-th turn, counted by i",
        id="step every k-th turn",
    ),
    pytest.param(
        {"step": "sync = (i + 1) % 4 == 0\nif sync:\n    opt.step()"},
        "    opt.step()",
        "loop body",
        "refused",
        "only every k-th turn",
        id="step every k-th turn, by a name",
    ),
    pytest.param(
        {"before": "norm = nn.BatchNorm1d(3)", "then": "loss = loss + model(x.flip(1)).sum()"},
        "model(x.flip",
        "loop body",
        "refused",
        "a second forward of model",
        id="second forward",
    ),
    pytest.param(
        {
            "last": "score = evaluate(net)\nif score > best:\n    best = score\nelse:\n"
            "    for g in opt.param_groups: g['lr'] /= 4"
        },
        "g['lr'] /= 4",
        "epoch variable",
        "differs",
        "best lives across epochs and sets lr",
        id="best -> lr",
    ),
    pytest.param(
        {
            "last": "score = evaluate(net)\nbest, bad = (score, 0) if score > best else (best, bad + 1)\n"
            "if bad > 2: break"
        },
        "bad > 2",
        "epoch variable",
        "differs",
        "decides when to stop",
        id="patience",
    ),
    pytest.param(
        {"first": "temperature = it * 0.9", "then": "loss = loss * temperature", "last": "it = it + 1"},
        "loss.backward()",
        "epoch variable",
        "differs",
        "it lives across epochs and decides the loss",
        id="temperature",
    ),
    pytest.param(
        {"last": "score = evaluate(net)\nif score > best:\n    best = score\n    torch.save(net, 'best.pt')"},
        "torch.save",
        "saved weights",
        "differs",
        "best lives across epochs and decides which weights are saved",
        id="the best one is saved",
    ),
    pytest.param(
        {"first": "teacher = copy.deepcopy(net)", "then": "loss = loss + teacher(x).mean()"},
        "loss.backward()",
        "epoch variable",
        "differs",
        "teacher is computed from the model between epochs and decides the loss",
        id="a teacher",
    ),
    pytest.param(
        {"last": "for m in net.modules(): m.p = m.p + 0.1"},
        "for m in net.modules()",
        "epoch variable",
        "differs",
        "net.*.p lives across epochs and decides what the model does",
        id="an attribute of the model's parts",
    ),
    pytest.param(
        {"first": "mean = 0", "end": "mean = mean + loss.item()", "last": "if mean < 0.1: break"},
        "break",
        "epoch variable",
        "differs",
        "mean is computed from a worker's mini-batches and decides when to stop",
        id="a mean of the epoch",
    ),
    pytest.param(
        {"last": "if evaluate(net) < 0.1: break"},
        "break",
        "break",
        "note",
        "a break out of job.epochs",
        id="break out of epochs",
    ),
    pytest.param(
        {"last": "order = np.random.permutation(10)"},
        "permutation",
        "between epochs",
        "refused",
        "np.random.permutation draws between epochs",
        id="draws between epochs",
    ),
    pytest.param(
        {"after": "main = job.is_leader", "last": "if main: sample(net)"},
        "main = job",
        "between epochs",
        "refused",
        "job.is_leader is read before job.epochs",
        id="leader kept",
    ),
    pytest.param(
        {"last": "if job.is_leader: print(job.gather(seen))"},
        "job.gather",
        "between epochs",
        "refused",
        "every rank has to call it",
        id="gathered by the leader alone",
    ),
    pytest.param(
        {"turn": "with model.no_sync(): pass"},
        "no_sync",
        "distributed",
        "refused",
        "not a DDP wrapper",
        id="no_sync",
    ),
    pytest.param(
        {"last": "dist.barrier()"},
        "dist.barrier",
        "distributed",
        "refused",
        "torch.distributed.barrier",
        id="barrier",
    ),
    pytest.param(
        {"before": "world = dist.get_world_size() if dist.is_initialized() else 1"},
        "is_initialized",
        "distributed",
        "refused",
        "torch.distributed.is_initialized",
        id="guarded by is_initialized",
    ),
    pytest.param(
        {"before": "from torch.distributed.fsdp import fully_shard\nfully_shard(net)"},
        "fully_shard(net)",
        "distributed",
        "refused",
        "fully_shard",
        id="sharded",
    ),
    pytest.param(
        {"before": "mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (2,))"},
        "mesh =",
        "distributed",
        "refused",
        "init_device_mesh",
        id="mesh",
    ),
    pytest.param(
        {"after": "opt.add_param_group({'params': []})"},
        "add_param_group",
        "setup",
        "refused",
        "opt.add_param_group after prepare",
        id="add_param_group",
    ),
    pytest.param(
        {"before": "scaler = torch.amp.GradScaler()", "step": "scaler.step(opt)"},
        "GradScaler()",
        "setup",
        "refused",
        "scaler, a GradScaler, is not passed to prepare",
        id="scaler",
    ),
    pytest.param(
        {"before": "sched = torch.optim.lr_scheduler.StepLR(opt, 3)", "end": "sched.step()"},
        "StepLR",
        "setup",
        "refused",
        "sched, a scheduler, is not passed",
        id="scheduler",
    ),
    pytest.param(
        {
            "before": "steps = 3 * len(train)\nsched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, "
            "steps)",
            "more": ", sched",
        },
        "CosineAnnealingLR",
        "setup",
        "note",
        "sched counts len(loader) before prepare",
        id="schedule's length",
    ),
    pytest.param(
        {"before": "torch.manual_seed(5 + job.rank)"},
        "manual_seed",
        "seeds",
        "note",
        "has no effect",
        id="seed plus rank",
    ),
    pytest.param(
        {"last": "torch.manual_seed(5 + job.rank)"},
        "manual_seed",
        "seeds",
        "refused",
        "one process runs several ranks",
        id="seed plus rank between epochs",
    ),
    pytest.param(
        {"before": "np.random.seed(5000000000)"},
        "np.random.seed",
        "seeds",
        "refused",
        "beyond 2^32",
        id="great seed of NumPy",
    ),
    pytest.param(
        {"first": "sampler.set_epoch(epoch + 1)"},
        "set_epoch",
        "loop body",
        "refused",
        "sampler.set_epoch(epoch + 1) is not the number of the epoch",
        id="set_epoch with an offset",
    ),
    pytest.param(
        {"before": "rank = int(os.environ.get('RANK', 0))\nimport os"},
        "rank = int",
        "distributed",
        "refused",
        "the variable RANK",
        id="RANK",
    ),
    pytest.param(
        {"after": "sampler.set_epoch(3)"},
        "set_epoch",
        "loop body",
        "refused",
        "sampler.set_epoch(3) is not the number of the epoch",
        id="set_epoch",
    ),
    pytest.param(
        {"after": "x, y = next(iter(loader))"},
        "iter(loader)",
        "loop body",
        "refused",
        "iter(loader) outside of a for loop",
        id="next(iter(loader))",
    ),
    pytest.param(
        {
            "before": "class Net(nn.Module):\n    def forward(self, x):\n        self.t += 1\n        "
            "return x / self.t"
        },
        "self.t += 1",
        "module state",
        "refused",
        "Net.forward keeps self.t",
        id="a counter in forward",
    ),
    pytest.param(
        {
            "before": "class Slow(torch.optim.SGD):\n    def step(self):\n        self.k += 1\n"
            "        if self.k % 3 == 0: super().step()"
        },
        "self.k += 1",
        "module state",
        "refused",
        "Slow.step keeps self.k",
        id="a counter in an optimizer",
    ),
    pytest.param(
        {"then": "clip_grad_norm_(net.parameters(), mean)", "end": "mean = 0.9 * mean + loss.item()"},
        "clip_grad_norm_",
        "loop variable",
        "refused",
        "mean decides how gradients are clipped",
        id="clipping by a running mean",
    ),
    pytest.param(
        {"step": "if loss < mean: opt.step()", "end": "mean = 0.9 * mean + loss.item()"},
        "opt.step()",
        "loop body",
        "refused",
        "opt.step() only in some turns, decided by mean",
        id="step now and then",
    ),
    pytest.param(
        {"last": "if evaluate(net) > best:\n    best = 1\n    net.load_state_dict(kept)"},
        "net.load_state_dict",
        "epoch variable",
        "differs",
        "best lives across epochs and decides the weights",
        id="weights that are put back",
    ),
]


@pytest.mark.parametrize(("parts", "line", "kind", "severity", "words"), BROKEN)
def test_each_rule_names_the_line(
    parts: dict[str, str], line: str, kind: str, severity: str, words: str
) -> None:
    text = script(**parts)
    found = [f for f in found_in(text) if f.kind == kind and words in f.what]
    assert found, found_in(text)
    assert found[0].severity == severity
    assert found[0].line == line_of(text, line)
    assert (
        found[0].where == f"train.py:{found[0].line}" and found[0].todo and found[0].code.startswith("ELA5")
    )
    others = [f for f in found_in(text) if f not in found and f.severity is not Severity.NOTE]
    assert not others, "one fault, one finding"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({}, id="the plain loop"),
        pytest.param({"last": "save(model.module.state_dict())"}, id="behind DDP's wrapper"),
        pytest.param(
            {
                "before": "class Net(nn.Module):\n    def forward(self, x):\n        self.calls += 1\n"
                "        print(self.calls)\n        return x"
            },
            id="a counter that forward prints",
        ),
        pytest.param(
            {
                "before": "class Own(torch.optim.SGD):\n    def state_dict(self): return {'k': self.k}\n"
                "    def step(self):\n        self.k += 1\n        return super().step(self.k % 2)"
            },
            id="an optimizer with a state_dict of its own",
        ),
        pytest.param(
            {
                "end": "total += loss.item(); it += 1\nif i % 10 == 0: print(epoch, i, total / (i + 1), "
                "flush=True)"
            },
            id="counters that are only logged",
        ),
        pytest.param(
            {"first": "total = 0.0", "end": "total += loss.item()", "last": "print(total)"}, id="a sum"
        ),
        pytest.param(
            {"first": "for g in opt.param_groups: g['lr'] = 0.1 * 0.5 ** epoch"}, id="lr from the epoch"
        ),
        pytest.param(
            {"turn": "for g in opt.param_groups: g['lr'] = 1 / (1 + job.step)"}, id="lr from job.step"
        ),
        pytest.param(
            {"end": f"if job.stepped:\n    {EMA}".replace("\n    a", "\n        a"), "more": ", ema"},
            id="average",
        ),
        pytest.param({"end": "if job.stepped:\n    for p in net.parameters(): p.clamp_(-1, 1)"}, id="clamp"),
        pytest.param({"then": "for p in net.parameters(): p.grad = None"}, id="zeroed by hand"),
        pytest.param(
            {"step": "for p in net.parameters(): p.grad.clamp_(-1, 1)\nopt.step()"}, id="clipped by hand"
        ),
        pytest.param(
            {"last": "score = evaluate(net)\nif score > best:\n    best = score\n    print(score)"},
            id="the best one is only shown",
        ),
        pytest.param(
            {
                "first": "net.tau = 0.9 ** epoch\nif epoch >= 2:\n    for p in net.parameters(): "
                "p.requires_grad = True"
            },
            id="attributes set in every epoch",
        ),
        pytest.param(
            {
                "after": "state = job.carry(best=0.0)",
                "last": "if evaluate(net) > state.best:\n    for g in opt.param_groups: g['lr'] /= 4",
            },
            id="carried by the job",
        ),
        pytest.param({"last": "with job.isolated_rng():\n    random.shuffle(queue)"}, id="isolated"),
        pytest.param({"last": "if job.is_leader:\n    random.shuffle(queue)"}, id="the leader's draws"),
        pytest.param(
            {"last": "total = job.reduce(seen)\nif job.is_leader: print(total)"}, id="reduced by all"
        ),
        pytest.param({"end": "for part in parts:\n    if part: break"}, id="a break of another loop"),
        pytest.param(
            {"before": "scaler = torch.amp.GradScaler()", "more": ", scaler", "step": "scaler.step(opt)"},
            id="scaler prepared",
        ),
        pytest.param(
            {
                "before": "smooth = Smooth()\njob.register('smooth', smooth)",
                "then": "loss = loss * smooth.update(loss.item())",
            },
            id="registered",
        ),
        pytest.param({"before": "g = torch.Generator().manual_seed(5000000000)"}, id="a generator's seed"),
        pytest.param({"before": "torch.manual_seed(5000000000)"}, id="a great seed"),
        pytest.param({"last": "torch.manual_seed(epoch)"}, id="a seed for all, between epochs"),
        pytest.param(
            {"last": "for rank in job.each_rank():\n    torch.manual_seed(job.rank); random.shuffle(queue)"},
            id="each rank's own",
        ),
        pytest.param({"turn": "torch.manual_seed(job.rank)"}, id="a rank's seed in its turn"),
        pytest.param({"first": "sampler.set_epoch(epoch)"}, id="set_epoch"),
        pytest.param({"last": "x = random.choices(queue)"}, id="an even draw"),
        pytest.param(
            {"before": "import os\nos.environ['RANK'] = '0'\nrank = os.environ['RANK']"}, id="RANK of its own"
        ),
        pytest.param(
            {
                "before": "norm = nn.BatchNorm1d(3)",
                "turn": "with torch.no_grad(): guess = model(x)",
            },
            id="a first forward without gradients",
        ),
        pytest.param({"then": "loss = loss + model(x.flip(1)).sum()"}, id="a second forward without buffers"),
        pytest.param(
            {
                "before": "class Net(nn.Module):\n    def forward(self, x):\n        self.seen = x.mean()\n"
                "        return x - self.seen"
            },
            id="written before it is read",
        ),
        pytest.param(
            {
                "before": "class Net(nn.Module):\n    def __init__(self):\n        "
                "self.register_buffer('t', zero)\n"
                "    def forward(self, x):\n        self.t += 1\n        return x / self.t"
            },
            id="a buffer",
        ),
    ],
)
def test_what_is_right_is_passed_over(parts: dict[str, str]) -> None:
    assert found_in(script(**parts)) == []


def test_a_loop_in_a_function_of_its_own_and_in_a_module_beside(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(
        "def train_one_epoch(model, loader, optimizer, n):\n"
        "    for step, (x, y) in enumerate(log(loader)):\n"
        "        for g in optimizer.param_groups:\n"
        "            g['lr'] = n / (step + 1)\n"
        "        loss = model(x, y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(
        "import elastane\nfrom engine import train_one_epoch\n\n\ndef main():\n    job = elastane.init()\n"
        "    model, optimizer, loader = job.prepare(net, optimizer, loader)\n"
        "    for epoch in job.epochs(3):\n        train_one_epoch(model, loader, optimizer, 3)\n"
    )
    (found,) = examine_script([str(tmp_path / "train.py"), "--lr", "1"])
    assert (found.where, found.variable, found.kind) == ("engine.py:4", "step", "loop variable")


def test_what_is_no_script_of_ours_or_no_python_says_nothing(tmp_path: Path) -> None:
    assert examine_source("import torch\nfor x in loader:\n    loss.backward()\n    break\n") == []
    assert examine_source("def broken(:\n") == []
    assert (
        examine_script([])
        == examine_script([str(tmp_path / "none.py")])
        == examine_script(["-m", "no.such"])
        == []
    )


#: Of the gallery: options of these choose a fault, which the source shows whatever is chosen.
FAULTY = ("refused.py", "turns.py")
SOUND = [
    *(p for p in sorted((ROOT / "examples").glob("**/*.py")) if not p.stem.endswith("_ddp")),
    *(p for p in sorted((ROOT / "tests/integration/gallery").glob("*.py")) if p.name not in FAULTY),
]


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.name)
def test_nothing_is_wrong_in_scripts_that_are_exact(path: Path) -> None:
    assert not is_fault(examine_script([str(path)]))


def test_nothing_is_said_of_the_example_of_the_docs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/running.md").read_text(), re.S)
    assert examine_source("import elastane\n" + example) == []


def test_a_step_that_differed_has_its_reason_from_the_source() -> None:
    replay = Finding(
        severity=Severity.DIFFERS, kind="replay", what="differs", where="the loop body", todo="look"
    )
    loader = Finding(
        severity=Severity.DIFFERS, kind="replay", what="differs", where="the DataLoader", todo="look"
    )
    source = found_in(script(end="if i > 10: break"))
    named, kept, added = with_source([replay, loader], source)
    assert named.where == added.where and named.todo == "see these lines" and kept == loader
    assert with_source([replay], []) == [replay]
