"""The hook that `elastane verify --reference` installs in a script that it must not change.

The folder is the first entry of PYTHONPATH in every process of the reference, so that Python itself runs
`sitecustomize`. Nothing here imports Elastane: the reference may run in an environment without it.
"""
