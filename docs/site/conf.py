# SPDX-License-Identifier: BSD-3-Clause
"""Sphinx's configuration. tools/build_site.py puts the pages together and runs Sphinx on them: see there."""

import importlib.metadata

project = "torch-openreg"
author = copyright = "The torch-openreg authors"
version = release = importlib.metadata.version("torch-openreg")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}

autodoc_member_order = "alphabetical"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 90

html_theme = "furo"
html_title = "torch-openreg"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b3401f", "color-brand-content": "#b3401f"},
    "dark_css_variables": {"color-brand-primary": "#f08a5d", "color-brand-content": "#f08a5d"},
}
