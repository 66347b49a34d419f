"""Errors of datasets and samplers while they are in use."""

from __future__ import annotations

from elastane_common.errors import ElastaneError


class DataError(ElastaneError):
    """A dataset or sampler gave fewer batches than promised, or different ones when asked again."""

    code = "ELA304"
