"""Getting at the folder: made at first use, made anew when it has vanished, tried again when it could not be had."""

from __future__ import annotations

import threading
import time

from .layout import UNSHARED, arrive
from .place import Place
from .troubles import Troubles

__all__ = ["Access"]

RETRY_SECONDS = 1.0


class Access:
    """:param group: whether the folder is to be shared; one that is there and is not is used all the same."""

    def __init__(self, path: str, *, group: bool, troubles: Troubles) -> None:
        self.path = path
        self.place: Place | None = None
        self._group = group
        self._troubles = troubles
        self._lock = threading.Lock()
        self._retry = {True: 0.0, False: 0.0}  # when to try again to make, to find; monotonic seconds
        self._closed = False

    def reading(self, *, wait: bool = True) -> Place | None:
        """The folder, if there is one.

        :raises BlockingIOError: with ``wait=False``, when somebody must look.
        """
        if self.place is None and not wait and not self._closed and time.monotonic() >= self._retry[False]:
            raise BlockingIOError
        return self.place or self._arrive(create=False)

    def writing(self) -> Place | None:
        """The folder at its path, made if need be."""
        place = self.place
        if place is not None and not place.home.stands():
            self.leave(place)
            place = None
        return place or self._arrive(create=True)

    def check(self) -> None:
        """Nothing was found: is the folder still there?"""
        place = self.place
        if place is not None and not place.home.stands():
            self.leave(place)

    def leave(self, place: Place) -> None:
        with self._lock:
            if self.place is not place:
                return
            self.place = None
        place.alive = False

    def _arrive(self, *, create: bool) -> Place | None:
        with self._lock:
            if self.place is None and not self._closed and time.monotonic() >= self._retry[create]:
                try:
                    home = arrive(self.path, group=self._group, create=False)
                    if home is None and create:
                        home = arrive(self.path, group=self._group, create=True)
                except OSError as error:
                    self._retry[create] = time.monotonic() + RETRY_SECONDS
                    self._troubles.warn("opening the folder", error)
                else:
                    self.place = Place(home) if home is not None else None
                    if home is not None and self._group and not home.group:
                        self._troubles.tell(f"it is not shared with a group: {UNSHARED}")
            return self.place

    def close(self) -> None:
        """Leave for good; what this process has not finished goes."""
        with self._lock:
            self._closed = True
            place, self.place = self.place, None
        if place is not None:
            try:
                place.close()
            except OSError as error:
                self._troubles.warn("closing", error)

    def forked(self) -> None:
        """In a forked child: everything open is the parent's."""
        self._lock = threading.Lock()
        place, self.place = self.place, None
        if place is not None:
            place.forked()
