# SPDX-License-Identifier: BSD-3-Clause
"""Builds the documentation as HTML: ``make docs``.

Pages keep their places in the tree, so that their links hold in a checkout and on the site: README.md, docs/ and what
they link to are copied below build-site/source, with docs/site/index.md as the front page and generated pages of
reference, and Sphinx runs on that. A warning is an error: a link that leads nowhere is one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-site"
SOURCE, HTML = BUILD / "source", BUILD / "html"
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "RELEASING.md", "tests/acceptance.md")
LINKED = ("LICENSE", ".ci/run", "runtime/include/openreg", "examples", "tests/drivers")
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)#:\s]+)\)")


def copy_pages() -> None:
    """Puts the pages, and the files that they link to, where Sphinx finds them."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "*.o", "__pycache__", "*.egg-info", "build", "site", "_build")
    for name in (*PAGES, "docs", *LINKED):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, SOURCE / name, ignore=ignored, dirs_exist_ok=True)
        else:
            (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, SOURCE / name)
    shutil.copy(ROOT / "docs/site/index.md", SOURCE / "index.md")
    shutil.copy(ROOT / "docs/site/conf.py", SOURCE / "conf.py")
    (SOURCE / "_static").mkdir()
    shutil.copy(ROOT / "docs/site/style.css", SOURCE / "_static/style.css")
    front = (SOURCE / "index.md").read_text(encoding="utf-8")
    others = [f"docs/{page.stem}" for page in sorted((SOURCE / "docs").glob("*.md"))]
    unlisted = [page for page in others if not re.search(rf"{page}\b", front)]
    front = front.replace("docs/choosing-devices\n", "\n".join(("docs/choosing-devices", *unlisted)) + "\n", 1)
    (SOURCE / "index.md").write_text(front, encoding="utf-8")

    for page in SOURCE.rglob("*.md"):
        # A folder is a link in a checkout; on the site it is the page that the folder has, or its name.
        def of_a_folder(link: re.Match[str], page: Path = page) -> str:
            if not (page.parent / link["target"]).is_dir():
                return link[0]
            has_page = (page.parent / link["target"] / "README.md").exists()
            return f"[{link['text']}]({link['target'].rstrip('/')}/README.md)" if has_page else f"`{link['text']}`"

        text = page.read_text(encoding="utf-8")
        for link in LINK.finditer(text):
            target = Path(os.path.normpath(page.parent / link["target"]))
            original = ROOT / os.path.relpath(target, SOURCE)
            if target.is_relative_to(SOURCE) and original.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(original, target)
        text = LINK.sub(of_a_folder, text)
        page.write_text(text, encoding="utf-8")


def c_reference() -> None:
    """A page for each public header: its text, whole."""
    folder = SOURCE / "reference" / "c"
    folder.mkdir(parents=True)
    names = sorted(header.name for header in (ROOT / "runtime/include/openreg").glob("*.h"))
    for name in names:
        # Lines of 120 columns: no contents beside them, and a wide page.
        css = ".content { width: min(60em, 100vw - 19em); } pre { font-size: 0.72em; }"
        (folder / f"{name}.md").write_text(
            f"---\nhide-toc: true\n---\n# openreg/{name}\n```{{raw}} html\n<style>{css}</style>\n```\n\n"
            f"```{{literalinclude}} ../../runtime/include/openreg/{name}\n:language: c\n```\n",
            encoding="utf-8",
        )
    contents = "\n".join(f"c/{name}" for name in names)
    (SOURCE / "reference/c.md").write_text(
        "# Headers in C\n\nThe comments are the contract: what a function does, in which units, who owns what, which "
        "threads may call it, and every error. What each header is for: [the C API](../docs/c-api.md).\n\n"
        f"```{{toctree}}\n{contents}\n```\n",
        encoding="utf-8",
    )


def python_reference() -> None:
    """A page for torch.openreg and for each of its public modules: every public name with its whole docstring."""
    modules = ("amp", "graphs", "memory", "operators", "plugins", "profiler", "random", "selection", "streams")
    pages = {f"torch.openreg.{name}": f"torch_openreg.openreg.{name}" for name in modules}
    pages["torch_openreg.config"] = "torch_openreg.config"
    for title, module in {"torch.openreg": "torch_openreg.openreg", **pages}.items():
        # Links lead to the description on the first page of what several modules have and another defines.
        again = "   :no-index:\n" if title in ("torch.openreg.memory", "torch.openreg.plugins") else ""
        options = f"   :members:\n   :show-inheritance:\n{again}"
        text = f"# {title}\n```{{eval-rst}}\n.. automodule:: {module}\n{options}```\n"
        if module == "torch_openreg.openreg":
            text += "\n## Modules\n```{toctree}\n" + "\n".join(pages) + "\n```\n"
        (SOURCE / "reference" / f"{title}.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Builds and checks."""
    copy_pages()
    c_reference()
    python_reference()
    for folder in (HTML, BUILD / "doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(BUILD / "doctrees")]
    if subprocess.run([*command, str(SOURCE), str(HTML)], check=False, env=os.environ | {"COLUMNS": "100"}).returncode:
        return 1
    print(f"{HTML}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
