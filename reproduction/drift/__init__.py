"""Where the best rate of a small network comes from: its drift over width and over depth, by how the readout starts.

``registration.md`` says what was fixed before the runs; ``cells`` lists them, ``runs`` trains what is missing and
``table`` prints what the records show.
"""
