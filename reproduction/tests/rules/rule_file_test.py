"""A file that states a rule in other words has the runs of the preset; what cannot be stated is refused."""

import pytest

from depthmup_flax.rule.parametrization import PRESETS, get_parametrization
from depthmup_flax.util.errors import InputError, UserCodeError
from reproduction.rules.rule_file import Rule, read_rule
from reproduction.rules.runs import covers, values_at
from reproduction.rules.tasks import PROXY, TARGETS, TASKS

HEAD = "import depthmup_flax as dm\n"
SIZES = (PROXY, *TARGETS.values())


@pytest.fixture
def rule_of(tmp_path):
    def write(text):
        path = tmp_path / "my_rule.py"
        path.write_text(HEAD + text)
        return read_rule(str(path))

    return write


@pytest.mark.parametrize(
    ("text", "shipped"),
    [
        ("RULE = dm.Parametrization(alpha=1.0, gamma=0.0)", "completep"),
        ("def RULE(m, r, config):\n    return dm.Parametrization(alpha=0.5, gamma=0.5)", "depth_mup"),
        ("TUNED = ('learning_rate',)\nRULE = dm.get_parametrization('mup')", "mup"),
    ],
)
def test_a_file_that_states_a_shipped_rule_has_its_runs(rule_of, text, shipped):
    ours, theirs = rule_of(text), read_rule(shipped)
    for task in TASKS.values():
        assert [values_at(ours, task, sizes) for sizes in SIZES] == [values_at(theirs, task, sizes) for sizes in SIZES]


def test_rules_share_the_runs_at_sizes_at_which_they_are_the_same_network():
    at = lambda preset, sizes: values_at(Rule(preset, PRESETS[preset]), TASKS["pairs_gpt_adam"], sizes)
    assert len({at(preset, (1, 1)) for preset in ("sp", "mup", "depth_mup", "completep")}) == 1
    assert at("mup", (4, 1)) == at("depth_mup", (4, 1)) == at("completep", (4, 1)) != at("sp", (4, 1))
    assert at("sp", (1, 4)) == at("mup", (1, 4)) != at("depth_mup", (1, 4))
    assert len({at(preset, (4, 4)) for preset in ("sp", "mup", "depth_mup", "completep")}) == 4


def test_the_second_hyperparameter_multiplies_the_rules_own(rule_of):
    rule = rule_of(
        "TUNED = ('learning_rate', 'input_lr_factor')\n"
        "def RULE(m, r, config):\n    return dm.Parametrization(input_lr_factor=m**0.5)"
    )
    values = values_at(rule, TASKS["pairs_gpt_adam"], (4, 4), 16.0)
    assert values.count(2.0 * 16.0) == 1


def test_a_rule_leaves_out_what_it_does_not_cover():
    assert not covers(read_rule("per_layer_sp"), TASKS["digits_mlp_muon"])
    assert covers(read_rule("per_layer_sp"), TASKS["digits_mlp_adam"])
    block_only = Rule("block_only", get_parametrization("block_only"))
    assert not covers(block_only, TASKS["digits_mlp_sgd"])
    assert covers(block_only, TASKS["digits_mlp_adam"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule = 3", "has no RULE"),
        ("RULE = 'mup'", "RULE of my_rule is 'mup'"),
        ("class P(dm.Parametrization): pass\nRULE = P()", "RULE of my_rule is "),
        ("RULE = dm.Parametrization", "RULE of my_rule is "),
        ("RULE = dm.Parametrization()\nTUNED = 5", "TUNED of .* is 5"),
        ("RULE = dm.Parametrization()\nTUNED = ('embedding_lr',)", "TUNED of .* has 'embedding_lr'"),
        ("RULE = dm.Parametrization()\nTUNED = ('input_lr_factor', 'output_lr_factor')", "give one besides"),
    ],
)
def test_a_file_that_states_no_rule_is_refused(rule_of, text, said):
    with pytest.raises(InputError, match=said):
        rule_of(text)


def test_a_file_with_the_name_of_a_shipped_rule_does_not_take_its_place(tmp_path):
    (tmp_path / "mup.py").write_text(HEAD + "RULE = dm.Parametrization()")
    with pytest.raises(InputError, match="rename"):
        read_rule(str(tmp_path / "mup.py"))


def test_an_error_in_a_file_is_the_users(rule_of):
    with pytest.raises(UserCodeError, match="NameError"):
        rule_of("RULE = depth_mup")
