"""What a loop body and a class carry along, told from their source."""

from __future__ import annotations

import argparse
import ast
import textwrap
from pathlib import Path

import pytest

from elastane.script_source import ClassSource, Role, carried_attributes, carried_values, loop_at, with_bases
from elastane.script_source.across_epochs import epoch_values
from elastane.script_source.body import Place
from elastane.script_source.epoch_body import Inputs
from elastane.script_source.loops import loops_in

ROLES: dict[str, Role] = {
    "net": "model", "model": "model", "opt": "optimizer", "scaler": "optimizer",
    "job": "other", "state": "other",
}  # fmt: skip
REST = "opt.zero_grad(); loss.backward(); opt.step()"


def found(body: str, header: str = "for x, y in loader:", before: str = "it = 0; m = 1.; total = 0; h = []"):
    source = f"{before}\n{header}\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    tree = ast.parse(source)
    loop = loop_at(tree, before.count("\n") + 2)
    assert loop is not None
    return [(one.name, one.decides) for one in carried_values(tree, loop, ROLES)]


LOSS = "loss = f(model(x), y)"
DECIDES = {
    "a running mean in the loss": (
        "l = f(model(x), y); m = .9 * m + .1 * l.item(); opt.zero_grad(); (l / m).backward(); opt.step()",
        [("m", "the loss")],
    ),
    "through other names": (
        f"w = 1 / (1 + it); {LOSS}; scaled = loss * w; scaler.scale(scaled).backward(); it += 1",
        [("it", "the loss")],
    ),
    "the lr": (
        f"for g in opt.param_groups: g['lr'] = .1 / (1 + it)\n{LOSS}; {REST}; it += 1",
        [("it", 'param_group["lr"]')],
    ),
    "the lr, by a name": (
        f"lr = get(it) if decay else .1\nopt.param_groups[0]['lr'] = lr\n{LOSS}; {REST}\nit += 1",
        [("it", 'param_group["lr"]')],
    ),
    "a branch that sets it": (
        f"a = 1.\nif it > 5: a = .5\nloss = a * f(model(x), y)\n{REST}\nit += 1", [("it", "the loss")],
    ),
    "every k-th step": (
        f"{LOSS}\nloss.backward()\nit += 1\nif it % 2 == 0:\n    opt.step()\n    opt.zero_grad()",
        [("it", "whether opt.step() is called"), ("it", "whether opt.zero_grad() is called")],
    ),
    "an average every tenth turn": (
        f"{LOSS}; {REST}\nit += 1\nif it % 10 == 0: state.update_parameters(net)",
        [("it", "whether state.update_parameters() is called")],
    ),
    "a function that sets the lr": (
        f"adjust_learning_rate(opt, it / n + epoch, args); {LOSS}; {REST}; it += 1",
        [("it", "the lr, by adjust_learning_rate()")],
    ),
    "hidden states": (f"out, m = model(x, m); m = m.detach(); loss = f(out, y); {REST}", [("m", "the loss")]),
    "a list": (f"{LOSS} / mean(h); {REST}; h.append(loss.item())", [("h", "the loss")]),
    "a second loader": (f"u = next(it); loss = f(model(x), u); {REST}", [("it", "the loss")]),
    "a queue in place": (f"loss = f(model(x), y, m); m[it] = x; {REST}", [("m", "the loss")]),
    "clipping": (
        f"{LOSS}; loss.backward()\nn = clip_grad_norm_(net.parameters(), pick(h))\nh.append(n); opt.step()",
        [("h", "how gradients are clipped")],
    ),
    "a copy of what it was": (f"m.copy_(m * .9 + x); loss = f(model(m), y); {REST}", [("m", "the loss")]),
    "what a scheduler is told": (
        f"{LOSS}; {REST}; state.step(epoch + it / 9); it += 1", [("it", "the lr, by state.step()")],
    ),
    "an inner loop that goes on": (
        f"for p in x:\n    if p: continue\n    else: m = m + p\nloss = f(m); {REST}", [("m", "the loss")],
    ),
    "a module's attribute": (f"net.tau = 1 / (1 + it); {LOSS}; {REST}; it += 1", [("it", "net.tau")]),
}  # fmt: skip
HARMLESS = {
    "a total": f"{LOSS}; {REST}; total += loss.item(); h.append(loss.item())",
    "a counter that prints": f"{LOSS}; {REST}; it += 1\nif it % 10 == 0: print(it, loss.item())",
    "the loss is divided": f"loss = f(model(x), y); loss = loss / 4; {REST}",
    "the loss of one branch or another": f"if a: loss = f(x)\nelif b: loss = g(x)\n{REST}",
    "the loss is used for its number": f"{LOSS}; {REST}; it += 1\nif it % 9 == 0: loss, at = loss.item(), it",
    "times": f"wait = time() - m; {LOSS}; {REST}; m = time()",
    "a list of the turn": f"h = []\nfor p in x: h.append(model(p))\nloss = sum(h); {REST}",
    "job.step": f"it = job.step\nfor g in opt.param_groups: g['lr'] = .1 / (1 + it)\n{LOSS}; {REST}",
    "carried by the job": f"loss = f(model(x), y) * state.m; {REST}; state.m = .9 * state.m + loss.item()",
    "set by the epoch": f"if epoch >= 3: m = .5\nloss = m * f(model(x), y); {REST}",
    "a best value": f"{LOSS}; {REST}\nif loss < m:\n    m = loss.item()\n    save(net)",
    "an early end": f"it += 1\n{LOSS}; {REST}\nif it > 100: raise SystemExit",
    "evaluating now and then": f"{LOSS}; {REST}; it += 1\nif it % 9 == 0: net.eval(); job.log(a=it)",
    "a batch that is passed over": (
        f"try: m = f(model(x), y)\nexcept RuntimeError:\n    opt.zero_grad()\n    continue\nloss = m; {REST}"
    ),
    "one that is not": f"if len(x) < 2: continue\nelse: m = f(model(x), y)\nloss = m; {REST}",
    "an error": f"if len(x) > 1: m = f(x)\nelse: raise ValueError\nloss = m; {REST}",
    "written over": f"m.normal_(); loss = f(model(x + m), y); {REST}",
    "copied over": f"m.copy_(x).add_(1); loss = f(model(m), y); {REST}",
    "a scheduler that is told of job.step": f"{LOSS}; {REST}; state.step(job.step / 9); state.step(loss)",
    "once a step": f"{LOSS}; {REST}\nif job.stepped:\n    for g in opt.param_groups: g['lr'] *= .9",
}


@pytest.mark.parametrize("case", DECIDES)
def test_what_decides_the_result_is_found(case: str) -> None:
    body, expected = DECIDES[case]
    assert found(body) == expected


@pytest.mark.parametrize("case", HARMLESS)
def test_what_does_not_is_left_alone(case: str) -> None:
    assert found(HARMLESS[case]) == []


@pytest.mark.parametrize(
    "header", ["for i, (x, y) in enumerate(loader):", "for i, batch in tqdm(enumerate(loader, 1), total=9):"]
)
def test_enumerate_counts_turns(header: str) -> None:
    decides = f"for g in opt.param_groups: g['lr'] = warm(i / len(loader) + epoch)\n{LOSS}; {REST}"
    assert found(decides, header) == [("i", 'param_group["lr"]')]
    assert found(f"{LOSS}; {REST}\nif i % 100 == 0: print(i, loss.item())", header) == []
    assert found(f"{LOSS}; loss.backward()\nif (i + 1) % 2 == 0: opt.step()", header) == [
        ("i", "whether opt.step() is called")
    ]


def test_branches_that_options_settle_are_taken_or_not() -> None:
    source = (
        "for x in loader:\n    m = m + 1\n    loss = f(x)\n    if {}: loss = loss * m\n    loss.backward()"
    )
    options = argparse.Namespace(smooth=False, kind="l2", schedule=None)
    names = {"args": options, "m": 0, "decay": True}
    for test, taken in (
        ("args.smooth", False),
        ("args.kind == 'l1'", False),
        ("args.kind in ('l1', 'l2') and decay", True),
        ("args.schedule is not None or not decay", False),
        ("m > 3", True),  # it moves
        ("x is None", True),
        ("args.unknown", True),
    ):
        tree = ast.parse("m = 0\n" + source.format(test))
        loop = loop_at(tree, 2)
        assert loop is not None
        assert bool(carried_values(tree, loop, ROLES, names)) is taken, test


def test_what_is_switched_off_by_none_is_not_changed_in_place() -> None:
    source = textwrap.dedent(
        """\
        for x in loader:
            loss = f(x)
            (amp.scale(loss) if amp else loss).backward()
            if {0}:
                {0}.update(loss)
            if {0}: loss = {0}.mean()
        """
    ).format
    for name, value, carried in (
        ("amp", {"amp": None}, []),
        ("amp", {"amp": {"of": "the script's own"}}, ["amp"]),
        ("amp", {}, ["amp"]),
        ("run.amp", {"run": argparse.Namespace(amp=None), "amp": None}, []),
    ):
        tree = ast.parse("amp = run = None\n" + source(name))
        loop = loop_at(tree, 2)
        assert loop is not None
        assert [one.name for one in carried_values(tree, loop, ROLES, value)] == carried, (name, value)


def test_every_turn_is_every_k_th_turn_where_k_is_one() -> None:
    source = "for i, x in enumerate(loader):\n    loss.backward()\n    if i % k == 0: opt.step()"
    for k in (1, 2):
        tree = ast.parse(source)
        loop = loop_at(tree, 1)
        assert loop is not None
        assert len(carried_values(tree, loop, ROLES, {"k": k})) == k - 1


def test_attributes_and_functions_are_followed_and_lines_are_told() -> None:
    source = textwrap.dedent(
        """\
        class Trainer:
            def __init__(self):
                self.it = 0

            def run(self, loader, opt, model):
                def helper(loss):
                    return loss
                for x, y in loader:
                    self.it += 1
                    loss = model(x) / self.it
                    self.seen = self.it
                    loss.backward()
                    opt.step()
        """
    )
    tree = ast.parse(source)
    loop = loop_at(tree, 8)
    assert loop is not None and loop_at(tree, 9) is None
    (carried,) = carried_values(tree, loop, ROLES)
    assert (carried.name, carried.line, carried.counts) == ("self.it", 9, True)
    assert (carried.decides, carried.reaches) == ("the loss", 12)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("s.t += 1; return s.f(x) / s.t", {"t"}),
        ("s.m = .9 * s.m + x.mean(); return x - s.m", {"m"}),
        ("s.queue.append(x); return sum(s.queue)", {"queue"}),
        ("s.mean.mul_(.9).add_(x); return x - s.mean", {"mean"}),
        ("s.calls += 1; print(s.calls); return x", set()),
        ("s.calls += 1\n        if s.calls % 9 == 0: print(s.calls)\n        return x", set()),
        ("s.calls += 1\n        if s.calls % 9 == 0: print(s.calls); x = 2 * x\n        return x", {"calls"}),
        (
            "s.calls += 1\n        if s.calls % 9:\n            with y: print(s.calls)\n        return x",
            set(),
        ),
        ("s.aux = 0\n        for f in s.parts: s.aux += f(x)\n        return s.aux", set()),
        ("s.taps = []\n        for f in s.parts: s.taps.append(f(x))\n        return cat(s.taps)", set()),
        ("if x: s.taps = []\n        s.taps.append(x); return cat(s.taps)", {"taps"}),
        ("y = s.t; s.t = 0; s.t += x; return y", {"t"}),
        ("if len(x) not in s.cache: s.cache[len(x)] = f(x)\n        return s.cache[len(x)]", set()),
        ("if x not in s.ids: s.ids[x] = len(s.ids)\n        return s.ids[x]", {"ids"}),
        ("s.last = x; return s.last", set()),
        ("s.longest = max(s.longest, len(x)); return s.table[:s.longest]", set()),
        ("if s.mask is None: s.mask = make(x)\n        return x * s.mask", set()),
    ],
)
def test_attributes_that_a_class_carries(body: str, names: set[str]) -> None:
    tree = ast.parse(f"class Net:\n    def __init__(s): s.t = 0\n    def forward(s, x):\n        {body}\n")
    assert set(carried_attributes([ClassSource(tree, "Net")])) == names


def test_what_a_base_class_counts_and_its_subclass_uses_is_found_with_the_base_s_line() -> None:
    tree = ast.parse(
        "class Base:\n    def forward(s, x):\n        s.n += 1\n        return x\n"
        "class Net(Base):\n    def forward(s, x):\n        return super().forward(x) / s.n\n"
    )
    assert [source.name for source in with_bases(tree, "Net")] == ["Net", "Base"]
    assert carried_attributes(with_bases(tree, "Net")) == {"n": Place(3)}
    assert carried_attributes(with_bases(tree, "Base")) == {}


def test_options_of_an_instance_and_of_its_module_settle_branches_of_a_class() -> None:
    tree = ast.parse(
        "class Net:\n    def forward(s, x):\n        s.t += 1\n"
        "        if s.anneal and not plain: return x / s.t\n        return x * (s.t if scaled else 1)\n"
    )
    for anneal, plain, scaled, found in ((1, 0, 0, 1), (0, 0, 0, 0), (1, 1, 0, 0), (0, 1, 1, 1)):
        instance = argparse.Namespace(anneal=anneal, t=0)
        names = {"plain": plain, "scaled": scaled}
        assert bool(carried_attributes([ClassSource(tree, "Net", names)], instance)) == bool(found)


def test_no_script_of_ours_is_suspected() -> None:
    """Scripts that are shown to be exact carry nothing into their result."""
    root = Path(__file__).parents[2]
    kept = dict.fromkeys(("smoothing", "loss_scaler", "sums"), "other")
    roles: dict[str, Role] = ROLES | {"optimizer": "optimizer", "net": "model"} | kept
    ours = [*root.glob("examples/**/*.py"), *root.glob("tests/integration/gallery/*.py")]
    scripts = [path for path in ours if not path.stem.endswith("_ddp")]  # originals, as they are under DDP
    for path in scripts:
        tree = ast.parse(path.read_text())
        for loop in loops_in(tree):
            assert carried_values(tree, loop, roles, {"slip": None}) == [], f"{path}:{loop.lineno}"


EPOCHS = "opt.zero_grad(); f(net(x), y).backward(); opt.step()"
#: Before, and behind the loop over mini-batches of an epoch -> what is found: name, what it decides, origin.
ACROSS: dict[str, tuple[str, str, str, list[tuple[str, str, str]]]] = {
    "a teacher of every epoch": (
        "teacher = copy.deepcopy(net)", "f(net(x), teacher(x)).backward()", "",
        [("teacher", "the loss", "model")],
    ),
    "a teacher that is set": (
        "teacher.load_state_dict(net.state_dict())", "f(net(x), teacher(x)).backward()", "",
        [("teacher", "the loss", "model")],
    ),
    "weights from an evaluation": (
        "w = check(net)", "(w * f(net(x), y)).backward()", "", [("w", "the loss", "model")],
    ),
    "weights of the model": (
        "old = [p.detach().clone() for p in net.parameters()]", "f(net(x), old).backward()", "",
        [("old", "the loss", "model")],
    ),
    "labels of the dataset": (
        "data.y[3:] = net(data.x)", EPOCHS, "", [("data.y", "the mini-batches", "model")],
    ),
    "an order that goes on": (
        "", EPOCHS, "data.order = data.order[perm()]", [("data.order", "the mini-batches", "carried")],
    ),
    "what is switched off once": (
        "if epoch == 3: data.mosaic = False", EPOCHS, "",
        [("data.mosaic", "the mini-batches", "carried")],
    ),
    "a temperature": (
        "", EPOCHS, "net.tau = max(.1, net.tau * .9)", [("net.tau", "what the model does", "carried")],
    ),
    "parts of the model": (
        "", EPOCHS, "for m in net.modules(): m.p = m.p + .1",
        [("net.*.p", "what the model does", "carried")],
    ),
    "unfrozen by a function": (
        "if epoch == 2: unfreeze(net.body)", EPOCHS, "",
        [("net.body.*.requires_grad", "what the model does", "carried")],
    ),
    "the loss of the epoch before": (
        "", EPOCHS, "v = check(net)\nif v > m:\n    for g in opt.param_groups: g['lr'] *= .5\nm = v",
        [("m", 'param_group["lr"]', "carried")],
    ),
    "the best is saved": (
        "", EPOCHS, "v = check(net)\nif v < m:\n    m = v\n    torch.save(net.state_dict(), 'best')",
        [("m", "which weights are saved", "carried")],
    ),
    "the best is kept": (
        "", EPOCHS, "v = check(net)\nif v < m:\n    m = v\n    best = copy.deepcopy(net.state_dict())",
        [("m", "which weights are saved", "carried")],
    ),
    "a mean of the epoch's losses": (
        "total = 0", f"loss = f(net(x), y); total += loss.item(); {EPOCHS}", "state.step(total / 9)",
        [("total", "the lr, by state.step()", "turns")],
    ),
    "by a function": (
        "", EPOCHS, "t = train(net, loader, opt)\nif t < .1: break", [("t", "when to stop", "turns")],
    ),
    "nothing: from the epoch": (
        "net.tau = .9 ** epoch; data.level = epoch\nif epoch >= 3:\n    unfreeze(net.body); m = 1",
        "(m * f(net(x), y)).backward()", "", [],
    ),
    "nothing: what only prints": (
        "total = 0; n = sum(p.numel() for p in net.parameters())",
        f"loss = f(net(x), y) / n; total += loss.item(); {EPOCHS}", "print(total, check(net))\nsave(net)", [],
    ),
    "nothing: what is made of the mini-batch": (
        "net.train(); ps = [p for p in net.parameters()]",
        "with no_grad(): t = net(x)\nloss = f(net(x), t); clip_grad_norm_(ps, 1); loss.backward()", "", [],
    ),
    "nothing: what the model is made of": (
        "ps = net.trainable_parameters(); hidden = net.init_hidden(4); crit = net.get_criterion()",
        "loss = crit(net(x, hidden), y); clip_grad_norm_(ps, 1); loss.backward()", "", [],
    ),
    "nothing: an evaluation that schedules": ("", EPOCHS, "state.step(check(net))", []),
}  # fmt: skip
FUNCTIONS = """
def check(model):
    return f(model(held))
def unfreeze(part):
    for p in part.parameters(): p.requires_grad = True
def train(net, batches, opt):
    mean = 0
    for x, y in batches:
        loss = f(net(x), y); loss.backward(); mean += loss.item()
    return mean
"""


@pytest.mark.parametrize("case", ACROSS)
def test_what_lives_across_epochs_and_what_begins_in_them_is_found(case: str) -> None:
    before, turn, behind, expected = ACROSS[case]
    loader_loop = f"for x, y in loader:\n{textwrap.indent(turn, '    ')}"
    body = "\n".join(filter(None, [before, loader_loop, behind]))
    tree = ast.parse(f"m = 9.\nfor epoch in job.epochs(9):\n{textwrap.indent(body, '    ')}\n{FUNCTIONS}")
    loop = loop_at(tree, 2)
    assert loop is not None
    inputs = Inputs(frozenset({"loader"}), frozenset({"data"}))
    carried = epoch_values(tree, loop, {**ROLES, "loader": "other"}, inputs=inputs)
    assert [(one.name, one.decides, one.origin) for one in carried] == expected
