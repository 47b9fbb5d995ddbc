"""Explanations of fields, read from where the fields are defined."""

import dataclasses

from depthmup_flax.config import field_comments


@dataclasses.dataclass
class Sizes:
    """Two numbers and a name.

    Attributes:
      width, height: of the box, in
        pixels.
      name: what it is called: a word.
    """

    # Above the field,
    # in two lines.
    width: int = 1

    # A heading.

    height: int = 2  # beside the field
    depth: int = 3
    name: str = "box"  # inside the value


def test_comments_above_and_beside_belong_to_a_field_of_a_class():
    expected = {"width": "Above the field, in two lines.", "height": "beside the field", "name": "inside the value"}
    assert field_comments.of_class(Sizes) == expected


def test_a_section_of_a_docstring_explains_fields_one_or_several_at_a_time():
    box = "of the box, in pixels."
    expected = {"width": box, "height": box, "name": "what it is called: a word."}
    assert field_comments.of_docstring(Sizes, "Attributes") == expected
    assert field_comments.of_docstring(Sizes, "Args") == {}


def test_keys_of_dictionaries_and_arguments_of_calls_have_comments():
    code = """
def get_config():
    return make(
        "x",
        # Above.
        seed=0,
        train={  # of the section
            "steps": 1,  # inside
            **others,
            "rate": 2,
        },
        size=at(  # beside the name
            small=1,
            large=2,
        ),
    )
"""
    expected = {"seed": "Above.", "train": "of the section", "train.steps": "inside", "size": "beside the name"}
    assert field_comments.of_code(code) == expected
