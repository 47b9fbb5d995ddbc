"""Google Cloud Storage on this machine, by gcp-storage-emulator: a server that a test can stop, watch and break."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pathlib
import threading
from collections.abc import Callable
from http import HTTPStatus, server
from urllib.parse import parse_qs, unquote, urlparse

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage


class _Memory(Storage):
    """Forgets at its end. The package writes a description of all objects, deleted ones included, at every request."""

    def _write_config_to_file(self) -> None:
        pass


class BucketServer:
    """A bucket named ``bucket``; requests are served one at a time.

    ``on_write`` is called with the name of an object before it is written or deleted, and with ``""`` before a batch.
    An HTTP status that it returns is the answer, and nothing is written.
    """

    def __init__(self) -> None:
        self.storage = _Memory(use_memory_fs=True)
        buckets.create_bucket("bucket", self.storage)
        self.on_write: Callable[[str], HTTPStatus | None] = lambda name: None
        self._port, self._server = 0, None
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which gcsfs and TensorStore talk to this server."""
        url = f"http://127.0.0.1:{self._port}"
        # No search for credentials; without them, gcsfs cannot ask which kind of bucket this is.
        plain = {"NO_GCE_CHECK": "true", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "EPATH_USE_TF": "false"}
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

    def names(self, directory: str) -> list[str]:
        """Names of all objects below a directory, relative to it."""
        names = (file["name"] for file in self.storage.get_file_list("bucket")[0])
        return sorted(name.removeprefix(f"{directory}/") for name in names if name.startswith(f"{directory}/"))

    def copy(self, directory: str, target: pathlib.Path) -> pathlib.Path:
        """Writes all objects of a directory to a disk."""
        for name in self.names(directory):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.storage.get_file("bucket", f"{directory}/{name}"))
        return target


class NoSleep:
    """In place of ``gcsfs.retry.asyncio``: the client repeats a failed request as often as ever, but at once."""

    @staticmethod
    async def sleep(seconds: float) -> None:
        pass


class _Handler(emulator.RequestHandler):
    """Adds the generations of objects and conditions on them, which the package lacks."""

    def __init__(self, bucket: BucketServer, *args: object) -> None:
        self._bucket = bucket
        super().__init__(bucket.storage, *args)

    def handle_one_request(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a client that was killed
            super().handle_one_request()

    def _passes(self) -> bool:
        """Whether the request is to be served; else it has been answered."""
        name, query = self._object_name(), parse_qs(urlparse(self.path).query)
        status = self._bucket.on_write(name) if self.command != "GET" else None
        self._current = self._generation(name)
        if self._current != query.get("ifGenerationMatch", [self._current])[0]:
            status = HTTPStatus.PRECONDITION_FAILED
        if self._current == query.get("ifGenerationNotMatch", [None])[0]:
            status = HTTPStatus.NOT_MODIFIED
        if "/moveTo/" in self.path:  # the package lacks it; gcsfs then copies and deletes
            status = HTTPStatus.BAD_REQUEST
        if status is not None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return status is None

    def end_headers(self) -> None:
        if self.command == "GET":
            self.send_header("x-goog-generation", self._current)
        super().end_headers()

    def _object_name(self) -> str:
        url = urlparse(self.path)
        query = parse_qs(url.query)
        if "name" in query:
            return query["name"][0]
        if query.get("uploadType") == ["multipart"]:  # the name is in the body's first part, which is JSON
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.rfile = io.BytesIO(body)
            return str(json.loads(body[body.index(b"{") : body.index(b"}\n") + 1])["name"])
        return unquote(url.path.rpartition("/o/")[2])

    def _generation(self, name: str) -> str:
        try:
            return str(self.storage.get_file_obj("bucket", name)["generation"])
        except NotFound:
            return "0"

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
