"""What a loop carries by way of functions, methods and objects of the script, told from its source."""

from __future__ import annotations

import ast
import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from elastane.script_source import (
    ClassSource,
    Role,
    carried_attributes,
    carried_values,
    loop_at,
    reported_attributes,
)
from elastane.script_source.body import Place
from elastane.script_source.loops import is_generator, loops_in

ROLES: dict[str, Role] = {
    "net": "model", "model": "model", "opt": "optimizer", "sched": "other", "job": "other", "loader": "other",
    "self.model": "model", "self.opt": "optimizer", "self.loader": "other",
}  # fmt: skip
REST = "opt.zero_grad(); loss.backward(); opt.step()"


def found(source: str, names: dict[str, object] | None = None) -> list[tuple[str, str]]:
    """(name, what it decides) of the loop over the loader in a source."""
    tree = ast.parse(textwrap.dedent(source))
    (loop,) = [one for one in loops_in(tree) if "loader" in ast.unparse(one.iter)]
    return [(one.name, one.decides) for one in carried_values(tree, loop, ROLES, names or {})]


STEP = f"""\
def train_step(batch, step):
    x, y = batch
    beta = min(1., step / 10)
    loss = f(model(x), y) + beta * g(x)
    {REST}
    return loss.item()
"""
TRAINER = """\
class Trainer:
    def __init__(self): self.step = 0; self.seen = 0; self.history = []
    def fit(self):
        for x, y in self.loader:
            {body}
            self.opt.zero_grad(); loss.backward(); self.opt.step()
            self.step += 1
    def compute(self, x, y):
        self.seen += len(x)
        loss = f(self.model(x), y)
        {compute}
    def log(self, loss, every=10):
        self.history.append(loss.item())
        if self.step % every == 0: print(self.step, sum(self.history) / self.seen)
    @property
    def beta(self): return 1 / (1 + self.step)
"""
METER = """\
class Meter:
    def __init__(self): self.reset()
    def reset(self): self.sum = self.count = 0
    def update(self, value, n=1): self.sum += value * n; self.count += n; self.avg = self.sum / self.count
meter = Meter()
"""
CRITERION = """\
class Smoothing(nn.Module):
    def __init__(self): self.it = 0
    def forward(self, out, y):
        self.it += 1
        return f(out, y, {used})
criterion = Smoothing()
"""


def trainer(body: str = "loss = self.compute(x, y); self.log(loss)", compute: str = "return loss") -> str:
    return TRAINER.format(body=body, compute=compute)


def body(statements: str, header: str = "for x, y in loader:", before: str = "") -> str:
    return f"{before}\n{header}\n{textwrap.indent(statements, '    ')}\n"


DECIDES = {
    "a function is given the counter": (
        STEP + body("train_step(batch, i)", "for i, batch in enumerate(loader):"),
        [("i", "the loss")],
    ),
    "by its name": (
        STEP + body("train_step(step=i, batch=b)", "for i, b in enumerate(loader):"),
        [("i", "the loss")],
    ),
    "a function gives the loss back": (
        "def weigh(loss, n):\n    return loss / n\nn = 1\n"
        + body(f"n += 1\nloss = weigh(f(model(x), y), n); {REST}"),
        [("n", "the loss")],
    ),
    "one of two values that it gives back": (
        "def both(x, n):\n    return f(x) / n, f(x)\nn = 1\n"
        + body(f"n += 1\nloss, other = both(x, n); {REST}"),
        [("n", "the loss")],
    ),
    "by which of its returns it takes": (
        "def pick(loss, n):\n    if n > 9: return 2 * loss\n    return loss\nn = 1\n"
        + body(f"n += 1\nloss = pick(f(x), n); {REST}"),
        [("n", "the loss")],
    ),
    "a function with a global": (
        "n = 0\ndef count():\n    global n\n    n += 1\n    return n\n"
        + body(f"loss = f(x) / count(); {REST}"),
        [("n", "the loss")],
    ),
    "a function with a container": (
        "T = {'n': 0}\ndef count():\n    T['n'] += 1\n    return T['n']\n"
        + body(f"turn = count(); x = x * turn; loss = f(x); {REST}"),
        [("T", "the loss")],
    ),
    "a function with an argument of its own": (
        "def count(seen=[]):\n    seen.append(1)\n    return len(seen)\n"
        + body(f"loss = f(x) / count(); {REST}"),
        [("count.seen", "the loss")],
    ),
    "a function with an attribute": (
        "def count():\n    count.n += 1\n    return count.n\ncount.n = 0\n"
        + body(f"loss = f(x) * count(); {REST}"),
        [("count.n", "the loss")],
    ),
    "a function in a function": (
        "def outer(x, n):\n    return inner(x, n)\ndef inner(y, m):\n    return f(y) / m\nn = 1\n"
        + body(f"n += 1; loss = outer(x, n); {REST}"),
        [("n", "the loss")],
    ),
    "whether a function steps": (
        "def step(loss, n):\n    loss.backward()\n    if n % 2: return\n    opt.step()\nn = 1\n"
        + body("n += 1\nstep(f(x), n)"),
        [("n", "whether opt.step() is called")],
    ),
    "turns that are passed over": (
        "n = 1\n" + body("n += 1; loss.backward()\nif n % 2: continue\nopt.step()"),
        [("n", "whether opt.step() is called")],
    ),
    "a closure": (
        "def main():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n        return n\n"
        + textwrap.indent(body(f"loss = f(x) / count(); {REST}"), "    "),
        [("n", "the loss")],
    ),
    "a closure that the optimizer calls": (
        "n = 0\n"
        + body(
            "n += 1\ndef closure():\n    loss = f(model(x), y) / n\n    loss.backward()\n"
            "    return loss\nopt.step(closure)"
        ),
        [("n", "the loss")],
    ),
    "a trainer's method": (
        trainer(compute="return loss * min(1, self.step / 20)"),
        [("self.step", "the loss")],
    ),
    "a trainer's property": (trainer(compute="return loss * self.beta"), [("self.step", "the loss")]),
    "a method that keeps what it is given": (
        trainer(compute="self.last = 1 / self.seen; return loss * self.last"),
        [("self.seen", "the loss")],
    ),
    "a trainer's inner step": (
        "class T:\n    def fit(self):\n        for b in self.loader: self.inner(b)\n"
        "    def inner(self, b):\n        self.n += 1\n        loss = f(self.model(b)) / self.n\n"
        "        loss.backward(); self.opt.step()\n",
        [("self.n", "the loss")],
    ),
    "a method of a base class": (
        "class B:\n    def weigh(self, loss):\n        self.n += 1\n        return loss / self.n\n"
        "class T(B):\n    def fit(self):\n        for x in self.loader:\n"
        "            loss = self.weigh(f(x))\n"
        "            loss.backward(); self.opt.step()\n",
        [("self.n", "the loss")],
    ),
    "a criterion": (
        CRITERION.format(used="min(.2, self.it / 50)") + body(f"loss = criterion(model(x), y); {REST}"),
        [("criterion.it", "the loss")],
    ),
    "a criterion that is given to a function": (
        CRITERION.format(used="self.it")
        + f"def step(x, y, lossf):\n    loss = lossf(model(x), y); {REST}\n"
        + body("step(x, y, criterion)"),
        [("criterion.it", "the loss")],
    ),
    "an attribute of a library's criterion": (
        "crit = nn.CrossEntropyLoss()\n"
        + body(
            f"crit.label_smoothing = i / 9; loss = crit(model(x), y); {REST}",
            "for i, (x, y) in enumerate(loader):",
        ),
        [("i", "the loss")],
    ),
    "a meter in the loss": (
        METER + body(f"loss = f(model(x), y) / (1 + meter.avg); {REST}\nmeter.update(loss.item())"),
        [("meter.avg", "the loss")],
    ),
    "a comprehension": (
        STEP + "losses = [train_step(b, i) for i, b in enumerate(loader)]\n",
        [("i", "the loss")],
    ),
    "a dict's, of some turns": (
        STEP + "losses = {i: train_step(b, i) for i, b in enumerate(loader) if b}\n",
        [("i", "the loss")],
    ),
    "a generator expression": (
        STEP + "total = sum(train_step(b, i) for i, b in enumerate(loader))\n",
        [("i", "the loss")],
    ),
    "map": (
        "n = 0\ndef step(b):\n    global n\n    n += 1\n    (f(model(b)) / n).backward(); opt.step()\n"
        "losses = list(map(step, loader))\n",
        [("n", "the loss")],
    ),
    "a list that a comprehension reads": (
        "h = []\ndef step(x):\n    loss = f(x) / (1 + sum(h)); loss.backward(); opt.step(); "
        "h.append(loss.item())\n"
        "[step(x) for x in loader]\n",
        [("h", "the loss")],
    ),
    "a generator with a counter of its object": (
        "class T:\n    def batches(self):\n        for x in data:\n            self.n += 1\n"
        "            yield x, self.n\n    def fit(self):\n        for x, n in self.batches(self.loader):\n"
        "            loss = f(self.model(x)) / n; loss.backward(); self.opt.step()\n",
        [("self.n", "the loss")],
    ),
    "a closure from before the loop": (
        "n = 0\ndef closure():\n    global n\n    n += 1\n    loss = f(model(x)) / n\n    loss.backward()\n"
        "    return loss\n" + body("opt.step(closure)"),
        [("n", "the loss")],
    ),
    "a mask of another dimension than the one compared": (
        "mask = None\n"
        + body(
            "if mask is None or len(mask) != len(x): mask = torch.zeros(4, len(x))\n"
            f"loss = f(x, mask); {REST}"
        ),
        [("mask", "the loss")],
    ),
    "a mask that is drawn": (
        "mask = None\n"
        + body(
            f"if mask is None or len(mask) != len(x): mask = torch.rand(len(x))\nloss = f(x, mask); {REST}"
        ),
        [("mask", "the loss")],
    ),
    "a mask of another thing than its size": (
        "mask = None\n"
        + body(
            f"if mask is None or len(mask) != len(x): mask = torch.zeros(len(x)) + y\n"
            f"loss = f(x, mask); {REST}"
        ),
        [("mask", "the loss")],
    ),
    "a mask that is larger than what it is compared with": (
        "mask = None\n"
        + body(
            f"if mask is None or len(mask) != len(x): mask = torch.zeros(len(x) + 1)\n"
            f"loss = f(x, mask); {REST}"
        ),
        [("mask", "the loss")],
    ),
    "a buffer of which a part is old": (
        "buf = 0\n" + body(f"buf[:len(x)] = x; loss = f(model(buf), y); {REST}"),
        [("buf", "the loss")],
    ),
}
HARMLESS = {
    "a function that prints the counter": (
        "def step(x, i):\n    loss = f(model(x)); loss.backward(); "
        "opt.step()\n    if i % 9 == 0: print(i, loss)\n"
        + body("step(x, i)", "for i, x in enumerate(loader):")
    ),
    "a value that a function does not use for what it gives": (
        "def told(loss, i):\n    print(i)\n    return loss\n"
        + body(f"loss = told(f(x), i); {REST}", "for i, x in enumerate(loader):")
    ),
    "the other of two values": (
        "def both(x, n):\n    return f(x), n + 1\nn = 0\n" + body(f"loss, n = both(x, n); {REST}")
    ),
    "a function's own variable of the same name": (
        "n = 1\ndef step(x):\n    n = 2\n    return f(x) / n\n" + body(f"loss = step(x); {REST}; n += 1")
    ),
    "another scope's variable of the same name": (
        "n = 2\ndef half(x):\n    return f(x) / n\ndef main():\n    n = 0\n"
        + textwrap.indent(body(f"loss = half(x); {REST}; n += 1"), "    ")
    ),
    "a trainer that counts and prints": trainer(),
    "a trainer that evaluates now and then": trainer(
        "loss = self.compute(x, y)\n            if self.step % 9 == 0: self.evaluate()",
        "return loss\n    def evaluate(self):\n        self.model.eval(); "
        "self.best = max(self.best, self.seen)",
    ),
    "a criterion that counts and prints": (
        CRITERION.format(used="print(self.it)") + body(f"loss = criterion(model(x), y); {REST}")
    ).replace("f(out, y, print(self.it))", "f(out, y)\n    def report(self):\n        print(self.it)"),
    "a meter": METER
    + body(f"loss = f(model(x), y); {REST}\nmeter.update(loss.item(), len(x)); print(meter.avg)"),
    "a criterion that is told the epoch": (
        "class C:\n    def update(self, epoch): self.w = 1 / epoch\n"
        "    def __call__(self, x): return f(x) * self.w\n"
        "crit = C()\n" + body(f"crit.update(epoch); loss = crit(model(x)); {REST}")
    ),
    "a generator that counts and prints": (
        "def every(it, k):\n    i = 0\n    for x in it:\n        yield x\n        i += 1\n"
        "        if i % k == 0: print(i)\n"
        + body(f"loss = f(model(x)); {REST}", "for x in every(loader, 9):")
    ),
    "a comprehension": f"def step(x):\n    loss = f(model(x)); "
    f"{REST}\n    return loss\nl = [step(x) for x in loader]\n",
    "functions that call each other": (
        "def a(x, n):\n    return b(x, n)\ndef b(x, n):\n    return a(x, n - 1) if n else f(x)\n"
        + body(f"loss = a(x, 3); {REST}")
    ),
    "job.step through a function": STEP + body("train_step((x, y), job.step)"),
    "a mask made anew for another size": (
        "mask = None\n"
        + body(
            f"if mask is None or mask.size(0) != len(x): mask = torch.triu(torch.ones(len(x), len(x)), 1)\n"
            f"loss = f(model(x, mask), y); {REST}"
        )
    ),
    "such a mask by a function": (
        "mask = None\ndef make(n):\n    return torch.triu(torch.full((n, n), float('-inf')), diagonal=1)\n"
        + body(
            f"if mask is None or len(mask) != x.size(0): mask = make(x.size(0))\n"
            f"loss = f(model(x, mask)); {REST}"
        )
    ),
    "a buffer that is filled anew": (
        "buf = 0\n" + body(f"buf.zero_(); buf[:len(x)] = x; loss = f(model(buf), y); {REST}")
    ),
    "a buffer that is written over": ("buf = 0\n" + body(f"buf[:] = x; loss = f(model(buf), y); {REST}")),
}


@pytest.mark.parametrize("case", DECIDES)
def test_calls_are_followed_to_what_decides_the_result(case: str) -> None:
    source, expected = DECIDES[case]
    assert found(source) == expected


@pytest.mark.parametrize("case", HARMLESS)
def test_what_calls_only_report_is_left_alone(case: str) -> None:
    assert found(HARMLESS[case]) == []


def test_lines_are_those_of_the_change_and_of_the_use() -> None:
    tree = ast.parse(CRITERION.format(used="self.it") + body(f"loss = criterion(model(x), y); {REST}"))
    (loop,) = loops_in(tree)
    (carried,) = carried_values(tree, loop, ROLES)
    assert (carried.line, carried.reaches, carried.counts) == (4, 9, True)


def module(folder: Path, name: str, source: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_with_values_objects_and_functions_of_other_files_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    other = module(
        tmp_path,
        "their_losses",
        """\
        TURNS = [0]
        def count():
            TURNS[0] += 1
            return TURNS[0]
        class Base:
            def __call__(self, x): return self.weigh(x) if self.warm else x
        class Warm(Base):
            def __init__(self, warm): self.n = 0; self.warm = warm
            def weigh(self, x):
                self.n += 1
                return x / self.n
        def make():
            n = 0
            def counted(x):
                nonlocal n
                n += 1
                return x / n
            return counted
        """,
    )
    loss = body(f"loss = crit(f(model(x), y)); {REST}")
    turn = body(f"loss = f(x) * losses.count(); {REST}")
    assert found(loss, {"crit": other.Warm(True)}) == [("crit.n", "the loss")]
    assert found(loss, {"crit": other.Warm(False)}) == []
    assert found(loss, {"crit": other.Warm(True).weigh}) == [("crit.n", "the loss")]
    assert found(loss, {"crit": other.make()}) == [("their_losses.n", "the loss")]
    parts = body(f"loss = sum(part(x) for part in parts.values()); {REST}")
    assert found(parts, {"parts": {"warm": other.Warm(True), "plain": len}}) == [
        ("parts['warm'].n", "the loss")
    ]
    assert found(
        parts.replace("sum(part(x) for part in parts.values())", "parts['warm'].weigh(x)"),
        {"parts": {"warm": other.Warm(True)}},
    ) == [("parts['warm'].n", "the loss")]
    assert found(turn, {"losses": other}) == [("their_losses.TURNS", "the loss")]
    tree = ast.parse(turn)
    (loop,) = loops_in(tree)
    (carried,) = carried_values(tree, loop, ROLES, {"losses": other})
    assert (carried.line, carried.reaches) == (3, 3)
    assert (carried.file, carried.reaches_file) == ("their_losses.py", "")


# ---------------------------------------------------------------------- loops


def test_the_loop_that_asks_is_found_however_it_is_written() -> None:
    source = textwrap.dedent(
        """\
        for epoch in epochs:
            l = [f(x)
                 for x in loader]
            s = sum(f(x) for x in loader)
            m = list(map(f, loader))
            it = iter(loader)
            while True:
                x = next(it, None)
            for i in range(9):
                y = 1
                x = next(it)
        def feed(loader):
            for x in loader:
                yield x
        """
    )
    tree = ast.parse(source)
    lines = {line: loop_at(tree, line) for line in range(1, 14)}
    iters = {line: ast.unparse(loop.iter) for line, loop in lines.items() if loop is not None}
    assert iters == {
        1: "epochs", 2: "loader", 3: "loader", 5: "loader", 8: "()", 9: "range(9)", 11: "range(9)",
        13: "loader",
    }  # fmt: skip
    expression = loop_at(tree, 4, generator=True)
    assert expression is not None and is_generator(expression)
    assert lines[13] is not None and is_generator(lines[13])
    assert lines[3] is not None and not is_generator(lines[3])


# ---------------------------------------------------------------------- attributes of a class


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("s.noise.normal_(); return x + s.noise", set()),
        ("n = s.noise.normal_().mul_(2); return x + n", set()),
        ("if x: s.noise.normal_()\n        return x + s.noise", {"noise"}),
        ("y = x + s.noise; s.noise.normal_(); return y", {"noise"}),
        ("s.m.copy_(.9 * s.m + x); return s.m", {"m"}),
        ("s.buf.zero_(); s.buf[:len(x)] = x; return f(s.buf)", set()),
        ("s.buf[:] = 0; s.buf[:len(x)] = x; return f(s.buf)", set()),
        ("s.buf[:len(x)] = x; return f(s.buf)", {"buf"}),
        ("s.queue[:len(x)].copy_(x); return f(s.queue)", {"queue"}),
        ("if s.m is None or len(s.m) != len(x): s.m = make(len(x))\n        return x * s.m", set()),
        ("s.calls += 1; return x\n    def seen(s): return s.calls", set()),
        ("s.calls += 1; return x / s.seen()\n    def seen(s): return s.calls", {"calls"}),
        ("s.calls += 1; return x\n    def seen(s, k): return f(s.calls, k)", {"calls"}),
        ("s.net.requires_grad_(False); return s.net(x)", set()),
    ],
)
def test_attributes_that_decide(body: str, names: set[str]) -> None:
    tree = ast.parse(f"class Net:\n    def __init__(s): s.t = 0\n    def forward(s, x):\n        {body}\n")
    assert set(carried_attributes([ClassSource(tree, "Net")])) == names


def test_what_a_model_only_counts_decides_where_the_loop_reads_it() -> None:
    source = (
        "class Net:\n    def forward(s, x):\n        s.calls += 1\n        return x\n"
        "    def seen(s): return s.calls\nnet = Net()\n"
    )
    for use, decides in (
        (f"loss = f(net(x)) / net.calls; {REST}", True),
        (f"loss = f(net(x)) / net.seen(); {REST}", True),
        (f"loss = f(net(x)) / told(net); {REST}", True),
        (f"loss = f(net(x)); {REST}; print(net.seen(), net.calls)", False),
    ):
        tree = ast.parse(f"{source}def told(m):\n    return m.seen()\n{body(use)}")
        assert carried_attributes([ClassSource(tree, "Net")]) == {}
        assert reported_attributes([ClassSource(tree, "Net")]) == {"calls": Place(3)}
        (loop,) = loops_in(tree)
        carried = carried_values(tree, loop, ROLES, counting={"net.calls": Place(3)})
        assert bool(carried) is decides, use
