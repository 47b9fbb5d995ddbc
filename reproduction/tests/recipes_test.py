"""reproduction/pages/recipes.md: its numbers and commands against the committed records."""

import shlex

import pytest

from depthmup_flax.config import config_hash, flags
from reproduction.pages import recipes_table


@pytest.fixture(scope="module")
def measured():
    return [recipes_table.Measured(recipe) for recipe in recipes_table.RECIPES]


def test_the_page_is_what_the_records_give(measured):
    page = recipes_table.PAGE.read_text()
    assert recipes_table.renewed(page, measured) == page


def test_each_command_repeats_the_recorded_run_of_the_large_network(measured):
    for one in measured:
        given, others = flags.split(shlex.split(one.command().replace("\\\n", ""))[2:], None)
        config, record = given.resolved(), one.large[0]
        if config.data.name == recipes_table.TEXT:
            config.data.name = one.base["data"]["name"]  # where that machine had the file
        assert not others
        assert config_hash(config) == record.run


def test_recipes_train_every_layer_and_have_a_base_of_the_proxys_size(measured):
    for one in measured:
        config = one.config(one.large[0])
        assert config.optimizer.frozen == ()
        assert (config.model.base_width, config.model.base_depth) == (one.proxy[0].width, one.proxy[0].depth)
        assert len(one.proxy) == len({record.seed for record in one.proxy}) >= 3
