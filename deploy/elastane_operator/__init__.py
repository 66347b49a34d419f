"""The operator of the custom resource ElasticJob: runs Elastane jobs on Kubernetes.

    decisions/  pure: a job's spec, its status, what is there -> what to do, and why
    manifests/  pure: the pods and the master that a job needs, as plain objects
    edge/       Kubernetes, the masters' gRPC, kopf: carries out what was decided

`python -m elastane_operator --help`
"""

from __future__ import annotations

GROUP = "elastane.io"
VERSION = "v1alpha1"
PLURAL = "elasticjobs"
KIND = "ElasticJob"
API_VERSION = f"{GROUP}/{VERSION}"
