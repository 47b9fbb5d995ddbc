"""What is published: versions that agree, valid metadata, a README whose links work outside the repository."""

import re
import tomllib

import pytest
import yaml
from processes import ROOT

import depthmup_flax as dm

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == dm.__version__
    assert dm.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "depthmup_flax/__init__.py"


def test_the_forge_tests_the_pythons_that_the_metadata_names():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_files_of_the_forge_are_valid_yaml_with_what_it_requires(path):
    content = yaml.safe_load(path.read_text())
    assert content["name"]
    required = {"workflows": "jobs", "ISSUE_TEMPLATE": "body"}[path.parent.name]
    assert content[required]


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
