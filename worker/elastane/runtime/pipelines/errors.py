"""Refusals of scripts with a pipeline, each with its code."""

from __future__ import annotations

from elastane_common.errors import StepError, UnsupportedError


class PipelineOptionError(UnsupportedError):
    """`prepare_pipeline` got an argument that pipelines do not support."""

    code = "ELA394"


class PipelineBodyError(StepError):
    """The loop body is not `loss = pipe(batch)`, once, and then `optimizer.step()`."""

    code = "ELA395"


class EvaluationError(StepError):
    """`pipe.evaluate` or `pipe.state_dict` was called where it is not allowed."""

    code = "ELA396"
