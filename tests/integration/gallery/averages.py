"""Two moving averages of the weights: torch's AveragedModel, and a copy made by hand.

The copy is also a teacher: its output is part of the loss. AveragedModel averages BatchNorm's buffers, which
are each rank's own under DDP: such an average may be evaluated and kept, but must not be part of the loss.
"""

import copy

import torch
from parts import Images, small_cnn
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import elastane

job = elastane.init(seed=8)
net = small_cnn()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Images(), 4, shuffle=True)
averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
copied = copy.deepcopy(net).requires_grad_(False)
averaged.eval()
copied.eval()
model, optimizer, loader, averaged, copied = job.prepare(net, optimizer, loader, averaged, copied)

for _ in job.epochs(2):
    for images, labels in loader:
        with torch.no_grad():
            target = copied(images).softmax(1)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels) + nn.functional.cross_entropy(scores, target)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if job.stepped:
            averaged.update_parameters(net)
            with torch.no_grad():
                for mean, new in zip(copied.parameters(), net.parameters(), strict=True):
                    mean.lerp_(new, 0.2)
