"""Builds the documentation site with Sphinx, from docs/ and the generated reference.

`python -m docs_site` (with tools/ on the path) is the command; `make docs` calls it.
"""
