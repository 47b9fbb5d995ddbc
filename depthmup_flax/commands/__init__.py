"""The commands of ``depthmup``: one file each, with its flags and ``main``, and what they share."""
