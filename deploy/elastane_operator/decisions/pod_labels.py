"""Labels of the pods that the operator makes."""

from __future__ import annotations

LABEL_JOB = "elastane.io/job-name"
LABEL_INDEX = "elastane.io/worker-index"
LABEL_ROLE = "elastane.io/role"
LABEL_POOL = "elastane.io/pool"
LABEL_DEVICE_TYPE = "elastane.io/device-type"
