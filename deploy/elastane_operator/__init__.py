"""Operator for the custom resource ElasticJob: runs Elastane jobs on Kubernetes.

  decisions/  pure: spec, status and observed state of a job -> actions and their reasons
  manifests/  pure: the pods and the master of a job, as plain objects
  edge/       Kubernetes and the masters' gRPC API: carries out the decisions

`python -m elastane_operator --help`
"""

from __future__ import annotations

GROUP = "elastane.io"
VERSION = "v1alpha1"
PLURAL = "elasticjobs"
KIND = "ElasticJob"
POOL_PLURAL = "elasticpools"
API_VERSION = f"{GROUP}/{VERSION}"
