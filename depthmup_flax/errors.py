"""The one exception that means "you can put this right"."""


class InputError(ValueError):
    """Bad input: one sentence that names the field, its value and the remedy.

    ``train.py`` prints it without a traceback and exits with code 2; a library user catches it as a ``ValueError``.
    """
