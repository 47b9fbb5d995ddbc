"""The version of the installed distribution. A build takes it from the repository's last tag."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("depthmup-flax")
except importlib.metadata.PackageNotFoundError:  # a checkout on the path
    __version__ = "not installed"
