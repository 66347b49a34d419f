"""Makes the documentation site: assembles docs/ with the generated reference, and has Sphinx build it.

`python -m docs_site` (with tools/ on the path) is the command; `make docs` calls it.
"""
