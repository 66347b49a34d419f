"""Sphinx's configuration. The site loads nothing from other servers, so it works offline."""

from elastane import __version__

project = "Elastane"
author = copyright = "The Elastane authors"
release = version = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Elastane {release}"
html_copy_source = False
html_show_sourcelink = False
pygments_style = "default"
pygments_dark_style = "monokai"
