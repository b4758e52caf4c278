"""Sphinx settings for the manual, built by `./run.sh docs`.

The source folder is the root of the repository, so links work both in the manual and in the repository.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from audit.version import __version__  # noqa: E402

project = "Hidden-state audit"
copyright = "the authors of Hidden-state audit, under Apache-2.0"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "WORKSPACE.md",
    "docs/**",
    "audit/README.md",
    "audit/**/README.md",
    "models/README.md",
    "experiments/README.md",
    "experiments/**/README.md",
    "experiments/benchmark/reports/*.md",
    "experiments/**/*.png",
]
exclude_patterns = ["docs/_build", "docs/_templates"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
default_role = "code"  # for text in single backticks
myst_url_schemes = ["http", "https", "mailto"]
templates_path = ["docs/_templates"]  # relative to the source folder

autosummary_generate = True
autosummary_imported_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_extra_path = ["_front"]  # index.html, which redirects to the manual's first page


_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.png)\)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def _write_gallery(app):
    """Writes the gallery, which shows all figures under the titles of their pages."""
    folder = ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    parts = ["# Gallery\n\nAll figures. The linked pages explain how they were made."]
    for page in sorted([ROOT / "README.md", *ROOT.glob("experiments/**/README.md")]):
        text = page.read_text()
        figures = _IMAGE.findall(text)
        if figures:
            link = os.path.relpath(page, folder)
            parts.append(f"## [{_TITLE.search(text)[1]}]({link})")
        for caption, name in figures:
            image = os.path.relpath(page.parent / name, folder)
            parts.append(f"{caption}\n\n![{caption}]({image})")
    content = "\n\n".join(parts) + "\n"
    path = folder / "gallery.md"
    if not path.exists() or path.read_text() != content:
        path.write_text(content)


def setup(app):
    """Registers the function that runs before pages are read."""
    app.connect("builder-inited", _write_gallery, priority=100)
