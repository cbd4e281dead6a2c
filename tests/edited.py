"""Edit JSON files that have a checksum."""

import json

from ogc._files import write_json


def edited(path, change=None, **fields):
    """Apply a function to the object in a file, set its fields, or both, and update the checksum."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    if change is not None:
        change(content)
    write_json(path, content | fields)
