"""The pages tell the truth: links lead somewhere and examples run. (test_knobs and test_catalogue check the lists.)"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import check_docs

PAGES = [str(page.relative_to(check_docs.ROOT)) for page in check_docs.pages()]
EXAMPLES = [(page, code) for page in PAGES for code in check_docs.examples(check_docs.ROOT / page)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert list(check_docs.broken_links(check_docs.ROOT / page)) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](nowhere.md) [b](#one-heading) [c](#other) [d](https://example.org/)\n")
    found = list(check_docs.broken_links(page))
    assert len(found) == 2
    assert "nowhere.md" in found[0]
    assert "#other" in found[1]


@pytest.mark.neuron_only
@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_examples_run(page: str, code: str) -> None:
    result = check_docs.run_example(code)
    assert result.returncode == 0, result.stderr


def test_the_readme_has_an_example() -> None:
    assert "README.md" in [page for page, _ in EXAMPLES]
