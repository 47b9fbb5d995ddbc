"""Records as columns: short names that are unique."""

from depthmup_flax.storage.records import Record, flat, short_names


def test_a_short_name_belongs_to_one_axis_and_to_no_field_of_a_record():
    paths = ["optimizer.learning_rate", "model.eps", "optimizer.kwargs.eps", "hyper.steps"]
    assert list(short_names(paths).values()) == ["learning_rate", "model.eps", "optimizer.kwargs.eps", "hyper.steps"]


def test_a_flat_record_has_every_number_once():
    point = {"seed": 3, "model.width": 8, "model.depth": 2, "optimizer.learning_rate": 0.1}
    record = Record("a" * 12, "completed", point, 8, 2, 100, 3, 5, 0.5, 0.6, 50, [0.7], test_metrics={"test_norm": 2.0})
    row = flat(record)
    assert (row["learning_rate"], row["test_norm"]) == (0.1, 2.0)
    assert not {"point", "test_metrics", "versions", "model.width"} & set(row)
    assert all(not isinstance(value, dict) for value in row.values())
