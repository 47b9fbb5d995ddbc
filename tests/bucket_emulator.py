"""Google Cloud Storage on this machine, by gcp-storage-emulator: a server that a test can stop, and can watch."""

import contextlib
import functools
import threading
from collections.abc import Callable
from http import HTTPStatus, server
from urllib.parse import parse_qs, urlparse

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage


class BucketServer:
    """A bucket named ``bucket``; requests are served one at a time."""

    def __init__(self) -> None:
        self.storage = Storage(use_memory_fs=True)
        buckets.create_bucket("bucket", self.storage)
        self.requests: list[str] = []  # "POST /upload/storage/v1/b/bucket/o?..."
        self.on_request: Callable[[str], None] = lambda request: None
        self._port, self._server = 0, None
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which gcsfs and TensorStore talk to this server."""
        url = f"http://127.0.0.1:{self._port}"
        # Without credentials, gcsfs cannot ask which kind of bucket this is.
        plain = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "EPATH_USE_TF": "false"}
        return {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url, **plain}

    def start(self) -> None:
        """Serves on the same port as before."""
        self._server = server.HTTPServer(("127.0.0.1", self._port), functools.partial(_Handler, self))
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Refuses connections; the objects stay."""
        self._server.shutdown()
        self._server.server_close()

    def names(self) -> list[str]:
        """Names of all objects."""
        return sorted(file["name"] for file in self.storage.get_file_list("bucket")[0])

    def read(self, name: str) -> str:
        """Content of an object."""
        return self.storage.get_file("bucket", name).decode()


class _Handler(emulator.RequestHandler):
    """Adds generation preconditions, which the package ignores."""

    def __init__(self, bucket: BucketServer, *args: object) -> None:
        self._bucket = bucket
        super().__init__(bucket.storage, *args)

    def handle_one_request(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
            super().handle_one_request()

    def _passes(self) -> bool:
        line = f"{self.command} {self.path}"
        self._bucket.requests.append(line)
        self._bucket.on_request(line)
        url = urlparse(self.path)
        query = parse_qs(url.query)
        required = query.get("ifGenerationMatch")
        if required is None:
            return True
        name = query["name"][0] if "name" in query else url.path.rpartition("/o/")[2]
        try:
            generation = self.storage.get_file_obj("bucket", name)["generation"]
        except NotFound:
            generation = "0"
        if required[0] == generation:
            return True
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(HTTPStatus.PRECONDITION_FAILED)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_POST(self) -> None:
        if self._passes():
            super().do_POST()

    def do_PUT(self) -> None:
        if self._passes():
            super().do_PUT()

    def do_GET(self) -> None:
        if self._passes():
            super().do_GET()

    def do_DELETE(self) -> None:
        if self._passes():
            super().do_DELETE()
