"""Families of interchangeable parts, found by walking the family's package.

A member is a class with a `name` attribute, decorated with its family's registry:

    SCHEDULES: Registry[Schedule] = Registry("schedule", "planner.schedules")

    @SCHEDULES.register
    class GPipe: name = "gpipe" ...

The first look-up imports every module of the package, so that a new member is one new file and no list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Generic, TypeVar

from planner.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Name -> instance of one family's members.

    `kind` is the word that error messages use; `package` is the import name whose modules are the members.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._members: dict[str, T] = {}
        self._loaded = False

    def register(self, member: type) -> type:
        """Class decorator: make one instance of `member` available under `member.name`."""
        instance = member()
        name: str = instance.name
        if name in self._members:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._members[name] = instance
        return member

    def __getitem__(self, name: str) -> T:
        """The member called `name`; InputError with the known names otherwise."""
        self._load()
        try:
            return self._members[name]
        except KeyError:
            known = ", ".join(self.names())
            raise InputError(f"unknown {self.kind} {name!r}: use one of {known}") from None

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._members

    def __iter__(self) -> Iterator[T]:
        self._load()
        return iter(self._members[name] for name in self.names())

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        self._load()
        return tuple(sorted(self._members))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")
