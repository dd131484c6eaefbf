"""What mkdocs does not do by itself for the site of docs/ (scripts/mkdocs.yml):

- The navigation is that of docs/README.md: its sections, and under each the pages that it names. Where such a page is
  the index of a folder of generated pages, these come under it.
- Pages and files outside docs/ that pages name (CONTRIBUTING.md, configs/...) become part of the site; a link to a
  folder becomes a link to its README.md, or plain text.
- Pages fetch nothing from another host: the theme's shim for search without a server is scripts/site_worker.js.
"""

import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WIDE = ("reference/options/", "reference/commands/", "reference/errors", "reference/messages")  # tables, few headings
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def title_of(page):
    """Without the name of a section of options: "Model: `model`" is Model."""
    return re.search(r"^# (.*)", page.read_text(), re.MULTILINE)[1].split(": `")[0].replace("`", "")


def place_on_site(path):
    """Where a file of the repository is on the site; None: nowhere."""
    if path.is_dir():
        path = path / "README.md"
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return "repository/" + path.relative_to(ROOT).as_posix()


def outside_files():
    """The files outside docs/ that its pages, and pages among these files, name."""
    found, pages = set(), sorted(DOCS.rglob("*.md"))
    while pages:
        page = pages.pop()
        for _, target, _ in LINK.findall(page.read_text()):
            path = (page.parent / target).resolve() if target and "://" not in target else page
            path = path / "README.md" if path.is_dir() else path
            place = place_on_site(path)
            if place and place.startswith("repository/") and path not in found:
                found.add(path)
                if path.suffix == ".md":
                    pages.append(path)
    return sorted(found)


def navigation():
    nav = []
    for section in re.split(r"^## ", (DOCS / "README.md").read_text(), flags=re.MULTILINE)[1:]:
        entries = []
        for title, target, _ in LINK.findall("\n".join(re.findall(r"^- .*", section, re.MULTILINE))):
            path = (DOCS / target).resolve()
            place = place_on_site(path)
            if path.name == "README.md" and path.parent.parent.name == "reference":
                pages = [path.parent / name for _, name, _ in LINK.findall(path.read_text())]
                generated = [{title_of(page): place_on_site(page)} for page in pages]
                entries.append({title: [place, *generated]})
            elif place and path.suffix == ".md":
                entries.append({title: place})
        nav.append({section.split("\n")[0]: entries})
    return [{"Home": "README.md"}, *nav]


def on_config(config):
    config.nav = navigation()
    return config


def on_files(files, config):
    for name in ("site.css", "site_worker.js"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / "scripts" / name)))
    for path in outside_files():
        files.append(File.generated(config, place_on_site(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    here = pathlib.Path(page.file.abs_src_path)
    place = page.file.src_uri
    if place.startswith(WIDE):
        page.meta["hide"] = ["toc"]
        markdown = re.sub(r"^(# .*)$", r"\1\n\n<div class='options'></div>", markdown, count=1, flags=re.MULTILINE)
    if place == "development/modules.md":
        page.meta["hide"] = ["toc"]  # its drawing is as wide as the page

    def on_the_site(match):
        label, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target:
            return match[0]
        goal = place_on_site((here.parent / target).resolve())
        if goal is None:
            return label
        return f"[{label}]({os.path.relpath(goal, os.path.dirname(place) or '.')}{anchor})"

    return LINK.sub(on_the_site, markdown)


def on_post_page(output, page, config):
    up = "../" * page.file.dest_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", up + "site_worker.js")


def on_post_template(output_content, template_name, config):
    return output_content.replace("https://unpkg.com/iframe-worker/shim", "/site_worker.js")
