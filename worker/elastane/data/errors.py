"""What a dataset or a sampler can do wrong while it is used."""

from __future__ import annotations

from elastane.errors import ElastaneError


class DataError(ElastaneError):
    """A dataset or sampler gave fewer batches than promised, or other ones when asked again."""

    code = "ELA304"
