"""A local copy of a directory of checkpoints in a bucket to which Orbax cannot write: S3."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

from depthmup_flax.storage.workdir import buckets

COMPLETE = "uploaded.txt"


class Mirror:
    """``local`` has a folder per checkpoint; `upload` makes the bucket's folders equal.

    A complete folder in the bucket has a marker, which is written last and deleted first. The local directory starts
    with the bucket's complete folders.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self.local = pathlib.Path(tempfile.mkdtemp(prefix="depthmup-checkpoints-"))
        for folder in self._complete():
            buckets.file_system(directory).get(str(directory / folder), str(self.local / folder), recursive=True)
            (self.local / folder / COMPLETE).unlink()

    def upload(self) -> None:
        """Returns when the bucket has all local folders, and no others."""
        complete, ours = self._complete(), {path.name for path in self.local.iterdir() if path.is_dir()}
        for folder in sorted(ours - complete):
            target = self._directory / folder
            buckets.delete_tree(target)  # leftovers of an interrupted upload
            buckets.file_system(target).put(f"{self.local / folder}/", f"{target}/", recursive=True)
            buckets.put(target / COMPLETE, "")
        for folder in sorted(complete - ours):
            (self._directory / folder / COMPLETE).unlink(missing_ok=True)
            buckets.delete_tree(self._directory / folder)

    def close(self) -> None:
        """Deletes the local directory."""
        shutil.rmtree(self.local, ignore_errors=True)

    def _complete(self) -> set[str]:
        return {marker.parent.name for marker in self._directory.glob(f"*/{COMPLETE}")}
