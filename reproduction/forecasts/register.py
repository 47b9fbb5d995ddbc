"""Register a forecast: python -m reproduction.forecasts.register FORECAST.json NAME

Writes reproduction/forecasts/NAME.json: the forecast, the date, and ``sha256``, that of the content with an empty
``sha256``. Publish it before the target is trained. A registered file is never overwritten.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import pathlib
import sys

from depthmup_flax.storage.run_hash import json_text
from depthmup_flax.util.types import Json

HERE = pathlib.Path(__file__).parent


def sha256(content: Json) -> str:
    """The hash of a registered file's content."""
    fields = {name: value for name, value in content.items() if name != "crc32"}  # earlier files have it outside
    return hashlib.sha256(json_text({**fields, "sha256": ""}).encode()).hexdigest()


def main(source: str, name: str) -> None:
    """Writes the registered file and prints its hash."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {**json.loads(pathlib.Path(source).read_text()), "date": now}
    content["sha256"] = sha256(content)
    with (HERE / f"{name}.json").open("x") as file:
        file.write(json_text(content))
    print(f"{content['sha256']} {now}")


if __name__ == "__main__":
    main(*sys.argv[1:])
