"""What commands of registered runs share."""

from reproduction.rules.command import within


def test_nothing_further_starts_once_the_hours_are_used():
    assert list(within(1.0, "abc")) == ["a", "b", "c"]
    assert list(within(-1.0, "abc")) == []
