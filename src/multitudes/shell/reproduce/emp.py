"""Tables and figures."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Item

ITEMS: tuple[Item, ...] = ()
