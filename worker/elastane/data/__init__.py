"""Batches of each EST: those of the stock DataLoader of its rank, bit for bit."""

from elastane.data.errors import DataError
from elastane.data.loader_settings import OrderKind, SamplerSettings, check_loader, sampler_settings
from elastane.data.pool import DataWorkerError
from elastane.data.source import BatchInfo, BatchSource
from elastane.data.stock import set_epoch, stock_loader

__all__ = [
    "BatchInfo",
    "BatchSource",
    "DataError",
    "DataWorkerError",
    "OrderKind",
    "SamplerSettings",
    "check_loader",
    "sampler_settings",
    "set_epoch",
    "stock_loader",
]
