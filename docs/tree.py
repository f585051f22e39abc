"""The site has the repository's own tree, so links between its files mean the same there and on a code host."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "examples/README.md")
LINKED = (
    "LICENSE",
    "CITATION.cff",
    "docker-compose.yml",
    "docs/images/*",
    "docs/site.css",
    "docs/results/data/*",
    "examples/**/*.*",
    "deploy/**/*",
    "tests/**/test_*.py",
)
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Keep all of the theme's files, and those of the repository that pages link to."""
    shown = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path for pattern in PAGES + LINKED for path in ROOT.glob(pattern) if path.is_file()})
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return Files([*shown, *(File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names)])


def on_page_markdown(markdown: str, **_: object) -> str:
    """In code within a table, code hosts want `\\|` for a bar, and Python-Markdown shows the backslash."""
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
