"""What is compared between the processes of a run."""

import copy
import dataclasses

from small_runs import config

from depthmup_flax.data import stored_dataset
from depthmup_flax.data.dataset import ArraySplit
from depthmup_flax.storage import provenance
from depthmup_flax.trainer import loop
from depthmup_flax.trainer.engine import identity
from depthmup_flax.trainer.engine.from_config import build


def facts(experiment):
    return loop.facts(experiment, stored_dataset.to_json(experiment.dataset), identity.programs(experiment, {}))


def changed(name, value):
    experiment = build(config())
    section, field = name.split(".")
    experiment.config[section][field] = value  # digits would refuse a directory
    return experiment


def differing(experiment):
    ours, theirs = facts(build(config())), facts(experiment)
    return {name for name in ours | theirs if ours.get(name) != theirs.get(name)}


def test_every_field_counts_because_each_decides_when_processes_communicate():
    assert differing(changed("train.log_every", 2)) == {"config.train.log_every"}


def test_the_place_of_the_data_may_differ_between_hosts():
    assert not differing(changed("data.data_dir", "/local"))


def test_another_example_or_another_number_of_them_counts():
    def with_train(change):
        experiment = build(config())
        fields = copy.deepcopy(experiment.dataset.train.arrays())
        split = ArraySplit(change(fields))
        return dataclasses.replace(experiment, dataset=dataclasses.replace(experiment.dataset, train=split))

    def other_pixel(fields):
        fields["image"][0, 3, 3, 0] += 1
        return fields

    fewer = with_train(lambda fields: {name: values[:-1] for name, values in fields.items()})
    assert differing(with_train(other_pixel)) == {"the content of training examples"}
    assert "the number of training examples" in differing(fewer)


def test_another_version_or_another_edit_of_the_code_counts(monkeypatch):
    ours = facts(build(config()))
    packages = [name for name in provenance.PACKAGES if name not in ("orbax-checkpoint", "pillow")]
    monkeypatch.setattr(provenance, "PACKAGES", packages)
    monkeypatch.setattr("depthmup_flax.trainer.loop._source_digest", lambda: "0123456789ab")
    theirs = facts(build(config()))
    assert {name for name in ours if ours[name] != theirs.get(name)} == {
        "the hash of the code",
        "the version of orbax-checkpoint",
        "the version of pillow",
    }
