# SPDX-License-Identifier: BSD-3-Clause
"""Builds the documentation as HTML: ``make docs``.

Pages keep their places in the tree, so that their links hold in a checkout and on the site: README.md, docs/ and what
they link to are copied below build-site/source, with docs/site/index.md as the front page and generated pages of
reference, and Sphinx runs on that. A warning is an error, and so is a link inside the site that leads nowhere. Where
there is a browser it opens the front page and searches.
"""

from __future__ import annotations

import argparse
import functools
import html.parser
import http.server
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-site"
SOURCE, HTML = BUILD / "source", BUILD / "html"
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "RELEASING.md", "tests/acceptance.md")
LINKED = ("LICENSE", ".ci/run", "runtime/include/openreg", "examples", "tests/drivers")
DIVIDER = re.compile(r"^/\* -{10,} (?P<name>.+?) \*/$", re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)#:\s]+)\)")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIEW = (1280, 800)


def copy_pages() -> None:
    """Puts the pages, and the files that they link to, where Sphinx finds them."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name in PAGES:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, SOURCE / name)
    ignored = shutil.ignore_patterns("*.so", "*.o", "__pycache__", "*.egg-info", "build", "site", "_build")
    for name in ("docs", *LINKED):
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
    """A page for each public header: its text, whole, with a heading for each of its parts."""
    folder = SOURCE / "reference" / "c"
    folder.mkdir(parents=True)
    names = []
    for header in sorted((ROOT / "runtime/include/openreg").glob("*.h")):
        text = header.read_text(encoding="utf-8")
        names.append(header.name)
        dividers = list(DIVIDER.finditer(text))
        starts = [0, *(divider.end() for divider in dividers)]
        ends = [*(divider.start() for divider in dividers), len(text)]
        titles = ["", *(divider["name"] for divider in dividers)]
        # Lines of 120 columns: no contents beside them, and a wide page.
        css = ".content { width: min(60em, 100vw - 19em); } pre { font-size: 0.72em; }"
        style = f"```{{raw}} html\n<style>{css}</style>\n```"
        parts = [f"---\nhide-toc: true\n---\n# openreg/{header.name}\n{style}"]
        for title, start, end in zip(titles, starts, ends, strict=True):
            heading = f"## {title[0].upper()}{title[1:]}\n" if title else ""
            parts.append(f"{heading}````c\n{text[start:end].strip()}\n````")
        (folder / f"{header.name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    contents = "\n".join(f"c/{name}" for name in names)
    (SOURCE / "reference/c.md").write_text(
        "# Headers in C\n\nThe comments are the contract: what a function does, in which units, who owns what, which "
        "threads may call it, and every error. What each header is for: [the C API](../docs/c-api.md).\n\n"
        f"```{{toctree}}\n{contents}\n```\n",
        encoding="utf-8",
    )


def python_reference() -> None:
    """A page for torch.openreg and for each of its public modules: every public name with its whole docstring."""
    torch_openreg = importlib.import_module("torch_openreg")
    top = torch_openreg.openreg
    modules = [top, *(value for name in sorted(top.__all__) if inspect.ismodule(value := getattr(top, name)))]
    modules += [importlib.import_module(f"torch_openreg.{name}") for name in ("config",)]
    folder = SOURCE / "reference"
    documented: dict[int, str] = {}
    for module in modules:
        public = module.__name__.replace("torch_openreg.openreg", "torch.openreg")
        if public.startswith("torch.") and not public.startswith("torch.openreg"):
            continue  # a module of PyTorch's own
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")
        ]
        parts = [f"# {public}", "", "```{eval-rst}", f".. py:module:: {public}" if module is not top else ""]
        doc = inspect.getdoc(module) or ""
        parts += ["", *doc.splitlines(), ""]
        for name in sorted(names, key=str.lower):
            value = getattr(module, name)
            if id(value) in documented:
                parts += [f"``{name}``", f"   See :py:obj:`{documented[id(value)]}`.", ""]
            elif not inspect.ismodule(value):
                documented[id(value)] = f"{module.__name__}.{name}"
                parts += entry(module.__name__, name, value)
        parts.append("```")
        if module is top:
            children = [m.__name__.replace("torch_openreg.openreg", "torch.openreg") for m in modules[1:]]
            children = [c for c in children if not c.startswith("torch.") or c.startswith("torch.openreg")]
            parts += ["", "## Modules", "```{toctree}", *children, "```"]
        (folder / f"{public}.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def entry(module: str, name: str, value: object) -> list[str]:
    """The directive that documents a name. What comes from PyTorch is named, and described there."""
    home = getattr(value, "__module__", None) or ""
    if not home.startswith(("torch_openreg", "_torch_openreg")):
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        source = f"{home}.{getattr(value, '__qualname__', name)}" if home else "PyTorch"
        return [f".. py:{kind}:: {name}", "", f"   PyTorch's ``{source}``." if home else f"   ``{value!r}``", ""]
    if inspect.isclass(value):
        return [f".. autoclass:: {module}.{name}", "   :members:", "   :show-inheritance:", ""]
    return [f".. autofunction:: {module}.{name}", ""] if callable(value) else [f".. py:data:: {name}", ""]


class Links(html.parser.HTMLParser):
    """The links of a page and the places in it that links can name."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects what a tag refers to, and its own name."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken_links() -> list[str]:
    """Links between the files of the site that lead nowhere."""
    pages = {page: Links(page) for page in HTML.rglob("*.html")}
    broken = []
    for page, found in pages.items():
        for link in found.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else page
            place = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{page.relative_to(HTML)}: {link}")
    return broken


PROBE = """<!doctype html><title>probe</title>
<iframe id="page" width="%d" height="%d" style="border:0" src="index.html"></iframe>
<iframe id="search" width="900" height="900" src="search.html?q=set_device"></iframe>
<pre id="result">not finished</pre>
<script>
const frame = (id) => document.getElementById(id).contentDocument;
let tries = 0;
const timer = setInterval(() => {
  const found = [...frame("search").querySelectorAll("#search-results li a")].map((link) => link.textContent);
  if (!found.length && ++tries < 100) return;
  clearInterval(timer);
  const page = frame("page");
  const code = page.querySelector(".highlight-python pre");
  document.getElementById("result").textContent = JSON.stringify({
    title: page.title, heading: page.querySelector("h1").innerText, program: code.innerText,
    bottom: code.getBoundingClientRect().bottom, width: page.documentElement.scrollWidth, found: found,
    cards: page.querySelectorAll(".sd-card").length,
    images: [...page.images].filter((image) => !image.complete || !image.naturalWidth).length });
}, 100);
</script>
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def browse(browser: str, *arguments: str) -> str:
    """Runs a browser without a screen, and returns what it printed."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        done = subprocess.run(
            [browser, *flags, *arguments], capture_output=True, text=True, check=True, timeout=120, cwd=profile
        )
    return done.stdout


def look(browser: str, screenshot: Path) -> dict[str, object]:
    """What a browser shows of the front page and of a search, and a picture of the front page."""
    probe = HTML / "probe.html"
    probe.write_text(PROBE % VIEW, encoding="utf-8")
    handler = functools.partial(QuietHandler, directory=str(HTML))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        dom = browse(browser, "--virtual-time-budget=20000", "--dump-dom", f"{address}/probe.html")
        size = f"--window-size={VIEW[0]},{VIEW[1]}"
        browse(browser, size, "--virtual-time-budget=5000", f"--screenshot={screenshot}", f"{address}/index.html")
    finally:
        server.shutdown()
        server.server_close()
        probe.unlink()
    found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, dom[:2000]
    return dict(json.loads(html.unescape(found[1])))


def complaints(seen: dict[str, object]) -> list[str]:
    """What is wrong with what the browser shows."""
    wanted = {
        "the title": seen["title"] == "torch-openreg",
        "the heading": str(seen["heading"]).startswith("torch-openreg"),
        "the first program": "loss.backward()" in str(seen["program"]),
        "the first program, without scrolling": float(str(seen["bottom"])) < VIEW[1],
        "three cards": seen["cards"] == 3,
        "every image": seen["images"] == 0,
        "a page that is no wider than the window": int(str(seen["width"])) <= VIEW[0],
        "set_device among what a search finds": any("set_device" in name for name in list(seen["found"])),  # type: ignore[call-overload]
    }
    return [f"the browser does not show {what}: {seen}" for what, is_shown in wanted.items() if not is_shown]


def main() -> int:
    """Builds and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--browser", action="store_true", help="look at the front page; an error where there is no browser"
    )
    parser.add_argument("--keep", type=Path, help="where to keep the picture of the front page")
    arguments = parser.parse_args()
    copy_pages()
    c_reference()
    python_reference()
    for folder in (HTML, BUILD / "doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(BUILD / "doctrees")]
    if subprocess.run([*command, str(SOURCE), str(HTML)], check=False, env=os.environ | {"COLUMNS": "100"}).returncode:
        return 1
    wrong = [f"broken link: {link}" for link in broken_links()]
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print("there is no browser here (Debian: chromium): nobody has looked at the front page")
        wrong += ["--browser asks for one"] if arguments.browser else []
    else:
        picture = BUILD / "front-page.png"
        wrong += complaints(look(browser, picture))
        if arguments.keep and not wrong:
            shutil.copy(picture, arguments.keep)
    print("\n".join(wrong) or f"{HTML}/index.html")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
