"""Checks the pages: links lead somewhere, python examples run, docs/knobs.md is what the registry gives.

python scripts/check_docs.py           exits with 1 and names each mistake
python scripts/check_docs.py --write   writes docs/knobs.md first
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KNOBS = ROOT / "docs" / "knobs.md"
EXAMPLE_SECONDS = 120

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def pages() -> list[Path]:
    """All pages of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Names that a link into the page may have after the #, as code hosts make them of its headings."""
    text = _FENCED.sub("", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def broken_links(page: Path) -> Iterator[str]:
    """Links to files or headings of the project that are not there. Links to other places are not followed."""
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: link to {link}, which is not there"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: link to {link}, but that page has no such heading"


def examples(page: Path) -> list[str]:
    """The python blocks of a page; each is a whole program."""
    return [code for language, code in _FENCED.findall(page.read_text()) if language == "python"]


def run_example(code: str) -> subprocess.CompletedProcess[str]:
    """Runs a block in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=EXAMPLE_SECONDS, check=False)


def failing_examples(page: Path) -> Iterator[str]:
    """Python blocks that do not run."""
    for number, code in enumerate(examples(page), 1):
        result = run_example(code)
        if result.returncode != 0:
            yield f"{page.relative_to(ROOT)}: python block {number} fails:\n{result.stderr.rstrip()}"


def rendered_knobs() -> str:
    """What docs/knobs.md has to say."""
    command = [sys.executable, "-m", "torch_neuronx.knobs"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def stale_knobs() -> Iterator[str]:
    """Is docs/knobs.md what the registry gives?"""
    if not KNOBS.exists() or KNOBS.read_text() != rendered_knobs():
        yield "docs/knobs.md is not what the registry of knobs gives: run 'make docs'"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/knobs.md")
    if parser.parse_args(argv).write:
        KNOBS.write_text(rendered_knobs())
    mistakes = [*stale_knobs()]
    for page in pages():
        mistakes += [*broken_links(page), *failing_examples(page)]
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    print(f"{len(pages())} pages: {len(mistakes)} mistakes")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
