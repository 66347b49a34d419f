"""CPU time of a step's fingerprints beside that of the step. Run by steady_step.py.

    fingerprint_cost.py MODEL BATCH REPEATS

Prints JSON: for each repeat the CPU milliseconds of a step (forward, backward, optimizer) and of a worker's
fingerprints in a step, of all threads, as means over the number of steps in which all state is compared once.
Both are measured in turn: behind a step the caches hold nothing that fingerprints need, which costs several
times what they cost in a loop of their own. torch uses one thread, so that CPU time equals elapsed time on an
idle machine.
"""

import json
import sys
import time

import torch
from steady_script import MODELS, loss_of

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.fingerprints import Fingerprints
from elastane.state.train_state import TrainState


def milliseconds(train, compare, steps):
    """Return the mean CPU times of this process for a step and for its fingerprints, in milliseconds."""
    trained = compared = 0.0
    for number in range(steps):
        began = time.process_time()
        train(number)
        middle = time.process_time()
        compare(number)
        trained, compared = trained + middle - began, compared + time.process_time() - middle
    return trained / steps * 1e3, compared / steps * 1e3


def main(model, batch, repeats):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, inputs, targets = MODELS[model]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    steps = WorkerEnvironment.model_fields["fingerprint_steps"].default
    buffers = list(net.buffers())
    fingerprints = Fingerprints(TrainState(net, [optimizer], [], {}), lambda: buffers, steps)

    def train(_):
        loss = loss_of(net, inputs[:batch], targets[:batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def compare(step):
        fingerprints.begin(step, whole=False, alone=False)
        fingerprints.state_digest(), fingerprints.settings_digest()

    train(0), compare(0)
    found = [milliseconds(train, compare, steps) for _ in range(repeats)]
    print(json.dumps({"step": [one for one, _ in found], "fingerprints": [other for _, other in found]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
