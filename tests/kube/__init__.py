"""The operator against a Kubernetes API: `kmock` in `make test`, any cluster in `make test-kube`.

`scene` is the stage on which a scenario is played: an API, a master, the operator in a process of its
own, and `kubelet`, which starts what the pods would run: a `trainer` that attends at the master.
Scenarios are written once, in the test modules; `clusters` says against which APIs they run.
"""
