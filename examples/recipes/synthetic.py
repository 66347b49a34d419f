"""Small data for the recipes: made from fixed seeds, the same in every process, nothing downloaded."""

import torch
from torch.utils.data import Dataset


class Images(Dataset):
    """Noisy pictures of `classes` patterns. transform: what each picture goes through when it is read."""

    def __init__(self, count, channels=1, size=8, classes=10, seed=0, transform=None):
        patterns = torch.rand(classes, channels, size, size, generator=torch.Generator().manual_seed(99))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(classes, (count,), generator=generator)
        noise = torch.rand(count, channels, size, size, generator=generator)
        self.images = 0.6 * patterns[self.labels] + 0.4 * noise
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


def text(length=2000, words=16, seed=0):
    """Codes below `words`, each of which often follows from the one before."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 3, (length,), generator=generator)
    return steps.cumsum(0) % words


class Sentences(Dataset):
    """Pairs of sentences of uneven length, and whether the second goes on where the first ends."""

    def __init__(self, count, words=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        codes = text(64 * count, words, seed)
        self.rows = []
        for start in range(0, 64 * count, 64):
            cut = int(torch.randint(3, 9, (), generator=generator))
            label = int(torch.randint(2, (), generator=generator))
            second = start + cut if label else start + 40
            ids = torch.cat([codes[start : start + cut], codes[second : second + cut]])
            self.rows.append({"input_ids": 1 + ids, "labels": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]
