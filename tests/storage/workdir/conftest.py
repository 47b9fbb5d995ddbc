"""A bucket on this machine, for tests of work directories in buckets."""

import logging
import os

import pytest


@pytest.fixture(scope="session")
def server():
    """One for all tests: clients remember its address."""
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    from bucket_emulator import BucketServer

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    before, running = dict(os.environ), BucketServer()
    os.environ.update(running.environment)
    yield running
    running.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def bucket(server, request):
    """The server, with a directory of this test's own."""
    server.directory = request.node.name.translate(str.maketrans("[]/", "---"))
    server.url = f"gs://bucket/{server.directory}"
    yield server
    server.on_write = lambda name: None
