"""Transfer on unmodified models of public packages: one program each, their records, and the table of all.

``vit``, ``llm`` and ``mamba2`` run alone; ``registration.md`` is what was fixed before the runs;
``reproduction.pages.public_models_table`` makes their table and figure.
"""
