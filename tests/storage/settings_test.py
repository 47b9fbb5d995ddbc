"""The settings of JAX that are part of a run are those of JAX's own list that can change numbers."""

import jax
import pytest
from jax._src import config as jax_config

from depthmup_flax.storage import provenance

# Of what enters JAX's cache of traced programs: meshes and contexts, checks, reports, and how a program is lowered.
CANNOT = """
mesh_context_manager abstract_mesh_context_manager compute_on_context_manager xla_metadata_context_manager
pallas_tpu_interpret_mode_context_manager user_context axis_env_state jax_debug_key_reuse jax_check_static_indices
jax_use_simplified_jaxpr_constants jax_embedded_constants_max_bytes jax_remove_size_one_mesh_axis_from_type check_vma
jax_hlo_source_file_canonicalization_regex jax_enable_pgle jax_pgle_profiling_runs jax_error_checking_behavior_nan
jax_error_checking_behavior_divide jax_error_checking_behavior_oob jax_default_device jax_disable_jit
jax_numpy_rank_promotion jax_auto_pcast jax_no_execution jax_mutable_array_checks jax_xla_profile_version
jax_use_shardy_partitioner jax_pallas_enable_debug_checks
""".split()  # noqa: SIM905


OF_JAX = [name for name in provenance.settings() if name != "XLA_FLAGS"]


def test_every_setting_on_jaxs_list_is_compared_or_cannot_change_numbers():
    try:
        listed = set(jax_config.trace_context_names())
    except (AttributeError, NotImplementedError):
        pytest.skip("this JAX has no such list")
    assert listed - set(CANNOT) == set(OF_JAX) - {"jax_default_prng_impl"}


def test_settings_that_nobody_sets_are_usual():
    assert provenance.unusual_settings() == {}


@pytest.mark.parametrize("name", OF_JAX)
def test_an_unusual_setting_is_noticed(name):
    usual, others = getattr(jax.config, name), {"threefry2x32": "rbg", "standard": "strict", None: "highest", 0: 3}
    other = not usual if isinstance(usual, bool) else {**others, 1: "allow"}[usual]
    try:
        jax.config.update(name, other)
        assert provenance.unusual_settings().keys() == {name}
    finally:
        jax.config.update(name, {1: "warn"}.get(usual, usual))


@pytest.mark.parametrize(
    ("flags", "noticed"),
    [
        ("--xla_cpu_enable_fast_math=true --xla_dump_to=there", {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}),
        ("--xla_b_precision --xla_a_tf32=false", {"XLA_FLAGS": "--xla_a_tf32=false --xla_b_precision"}),
        ("--xla_force_host_platform_device_count=8 --xla_gpu_enable_latency_hiding_scheduler=true", {}),
    ],
)
def test_flags_of_xla_that_change_results_are_noticed_and_those_of_speed_are_not(monkeypatch, flags, noticed):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert provenance.unusual_settings() == noticed
