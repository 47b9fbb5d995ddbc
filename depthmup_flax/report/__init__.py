"""The report of a sweep: reads records, writes figures, tables and one self-contained page. No model runs here."""

from depthmup_flax.report.sweep_report import Report, make_report

__all__ = ["Report", "make_report"]
