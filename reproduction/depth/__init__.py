"""Whether depth pays: a registered comparison of a shallow and a deep network on text, with the rule and without.

``text`` is the data, ``runs`` the networks and the program, ``registration.md`` what was fixed before the runs.
"""
