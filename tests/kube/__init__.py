"""The operator against a Kubernetes API: `kmock` in `make test`, any cluster in `make test-kube`.

`scene` sets up a scenario: an API, a master, the operator in a separate process, and `kubelet`, which runs a
`trainer` for each pod: a worker that connects to the master. Scenarios are written once, in the test modules;
the fixture `cluster` in `conftest` decides against which APIs they run.
"""
