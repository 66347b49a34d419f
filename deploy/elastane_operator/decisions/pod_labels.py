"""Labels of the pods that the operator makes."""

from __future__ import annotations

LABEL_JOB = "elastane.io/job-name"
LABEL_INDEX = "elastane.io/worker-index"
LABEL_PS_INDEX = "elastane.io/ps-index"
LABEL_ROLE = "elastane.io/role"
LABEL_POOL = "elastane.io/pool"
LABEL_DEVICE_TYPE = "elastane.io/device-type"
LABEL_CAPACITY = "elastane.io/capacity"
"""How the node is billed, of pods of jobs that may have on-demand workers."""
CAPACITY_ON_DEMAND = "on-demand"
CAPACITY_SPOT = "spot"
