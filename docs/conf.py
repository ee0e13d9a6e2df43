"""How Sphinx builds the site from these pages: ``make docs``."""

project = "plm-pipeline"
extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
exclude_patterns = ["reference.py"]
html_theme = "furo"
html_title = project
html_show_copyright = False
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"
