"""An open benchmark of transfer rules: ten tasks, on which a rule is a small file, and the records of known rules.

``tasks`` and ``synthetic`` are the tasks as data, ``rule_file`` reads a rule, ``runs`` trains what its score needs and
the records lack, ``score`` is the arithmetic, ``table`` prints it. ``rules`` and ``records`` are what was compared.
"""
