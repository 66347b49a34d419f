"""An example of each part of the Python reference whose docstring has none."""

from __future__ import annotations

from typing import Final

#: By the name under which the reference has it.
EXAMPLES: Final = {
    "elastane.init": "job = elastane.init(seed=7)",
    "elastane.save_model": """\
for epoch in job.epochs(10):
    ...
torch.save(net.state_dict(), "net.pt")
url = elastane.save_model("net.pt")""",
    "Job.prepare": """\
model, optimizer, loader, scheduler = job.prepare(net, optimizer, loader, scheduler)
for epoch in job.epochs(10):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()""",
    "Job.push": """\
for task in job.tasks("clicks", size=10_000, task_size=64):
    with job.push(task) as push:
        loss_of(model, task.indices).backward()
    print(push.applied, push.staleness)""",
    "Job.skip": """\
for task in job.tasks("clicks", size=10_000, task_size=64):
    if nothing_in(task.indices):
        job.skip(task)
        continue
    with job.push(task):
        loss_of(model, task.indices).backward()""",
    "Job.evaluate": """\
with job.evaluate():
    accuracy = accuracy_of(model, held_out)""",
    "Job.register": """\
augment = numpy.random.default_rng(job.num_ests)
job.register("augment", augment)
model, optimizer, loader = job.prepare(net, optimizer, loader)""",
    "Job.reduce": """\
counts = {"hits": 0, "samples": 0}
job.register("counts", counts)
...
total = job.reduce(counts, "sum")  # between epochs
print(total["hits"] / total["samples"])""",
    "Job.epochs": """\
for epoch in job.epochs(10, max_steps=5000):
    for x, y in loader:
        ...
    if job.is_leader:
        torch.save(net.state_dict(), "net.pt")""",
    "Job.log": """\
loss = loss_fn(model(x), y)
job.log(loss=loss, rate=scheduler.get_last_lr()[0])
loss.backward()""",
    "Job.log_to": 'job.log_to("tensorboard:runs/digits", "mlflow:digits")',
    "Job.tasks": """\
for task in job.tasks("images", size=len(data), task_size=64):
    scores = model(torch.stack([data[i] for i in task.indices]))
    torch.save(scores, f"scores/{task.index}.pt")""",
    "Job.steps_per_epoch": """\
steps = 10 * job.steps_per_epoch(loader)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)""",
    "Job.each_rank": """\
for epoch in job.epochs(10):
    for x, y in loader:
        ...
    for rank in job.each_rank():
        random.shuffle(order)""",
    "Job.isolated_rng": """\
with job.isolated_rng():
    show(sample_from(model))""",
    "elastane.ElastaneError": """\
try:
    job = elastane.init()
except elastane.ElastaneError as error:
    raise SystemExit(error.line()) from error""",
}
