"""Configs: their fields and defaults, files and flags, the shipped ones by name."""

from typing import TYPE_CHECKING

from depthmup_flax.util.imports import imported_late

if TYPE_CHECKING:
    from depthmup_flax.config.fields import config_hash, default_config, validate
    from depthmup_flax.config.files import from_file

__all__ = ["config_hash", "default_config", "from_file", "validate"]

if not TYPE_CHECKING:
    __getattr__ = imported_late(__name__)
