"""The batches of each EST: those of a stock DataLoader with a DistributedSampler, bit for bit."""

from elastane.data.pool import DataWorkerError
from elastane.data.settings import SamplerSettings, sampler_settings, stock_loader
from elastane.data.source import BatchInfo, BatchSource

__all__ = [
    "BatchInfo",
    "BatchSource",
    "DataWorkerError",
    "SamplerSettings",
    "sampler_settings",
    "stock_loader",
]
