"""The bytes of an image, wherever it lies."""

from __future__ import annotations

import io
import stat

from dept.data.places import NOT_REGULAR, Place, State, Url, is_url
from dept.data.remote import read_url, url_state
from dept.data.shards import MAX_BYTES, archive_of, file_state, member_state, read_member
from dept.errors import DataError


class Contents(io.BytesIO):
    """The bytes of an image, which Pillow's messages call by its place."""

    def __init__(self, data: bytes, place: Place) -> None:
        super().__init__(data)
        self.place = place

    def __repr__(self) -> str:
        return repr(str(self.place))


def contents(place: Place) -> Place | Contents:
    """What Pillow opens: a file itself, or the bytes of what is not one. A DataError for what is no regular file."""
    if (inside := archive_of(str(place))) is not None:
        return Contents(read_member(*inside), place)
    if isinstance(place, Url):
        data = read_url(place, 0, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DataError(f"more than {MAX_BYTES / 1e6:.0f} MB")
        return Contents(data, place)
    if not stat.S_ISREG(place.stat().st_mode):  # opening a FIFO would wait for ever
        raise DataError(NOT_REGULAR)
    return place


def state_of(text: str) -> State | None:
    """By which a change of the file at a place is noticed, without reading it; None if it is not there."""
    if (inside := archive_of(text)) is not None:
        return member_state(*inside)
    return url_state(Url(text)) if is_url(text) else file_state(text)
