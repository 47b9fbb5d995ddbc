"""What is published: a version that is the tag's, valid metadata, a README whose links work outside the repository."""

import re
import shutil
import subprocess
import sys
import tomllib

import packaging.version
import pytest
import yaml
from processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_citation_has_the_version_of_the_latest_release_notes():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## \[(?:Unreleased\]: )?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == headings[0]


@pytest.fixture
def checkout(tmp_path):
    """A repository with pyproject.toml, two commits, and what the build reads."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    git(tmp_path, "commit", "--quiet", "--message=second", "--allow-empty")
    return tmp_path


def git(directory, *arguments):
    nobody = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", "-C", directory, *nobody, *arguments], check=True)


def built_version(directory):
    """The version that a build in ``directory`` has, without an index."""
    pytest.importorskip("hatch_vcs")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"], cwd=directory, capture_output=True, text=True, check=True
    )
    return packaging.version.Version(done.stdout.strip())


def test_the_version_of_a_build_is_that_of_the_tag(checkout):
    git(checkout, "tag", "v1.2.3")
    assert str(built_version(checkout)) == "1.2.3"
    git(checkout, "commit", "--quiet", "--message=third", "--allow-empty")
    after = built_version(checkout)
    assert packaging.version.Version("1.2.3") < after < packaging.version.Version("1.2.4")
    assert after.is_devrelease


def test_a_checkout_without_tags_and_a_tree_without_git_can_be_built(checkout):
    assert built_version(checkout).is_devrelease
    shutil.rmtree(checkout / ".git")
    assert built_version(checkout) < packaging.version.Version("0.1")


def test_a_release_is_published_without_a_token_from_a_checkout_with_tags():
    workflow = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    build, publish = (workflow["jobs"][name] for name in ("build", "publish"))
    assert build["steps"][0]["with"] == {"fetch-depth": 0}
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["steps"][-1].keys() == {"uses"}  # no password, no repository
    for step in [*build["steps"], *publish["steps"]]:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "a@" + 40 * "0"))


def test_the_forge_tests_the_pythons_that_the_metadata_names():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


def test_links_and_images_of_the_readme_become_whole_addresses():
    text = (ROOT / "README.md").read_text()
    for substitution in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_every_relative_link_of_the_readme_is_a_file():
    targets = re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / "README.md").read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []
