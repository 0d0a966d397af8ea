"""The cache of one kind of object, and what may change it.

Three voices speak of an object: the list, the watch, and the answers to our own writes. The last are the
newest, and a reconcile that runs before the watch has caught up must see them, or it creates a pod twice or
deletes one that it has just replaced. So answers are written through (``assume``), and the rules here keep an
older voice from undoing them:

* ``version`` is how far list and watch have come. What they have not shown by then does not exist. So an
  answer with a version not above it has nothing to add: if its object is not here, it is already gone.
* A change that is not newer than what is stored is old news, ours or a repetition, and is dropped.
* A deletion always counts for the object with that UID, and never for its namesake.
* An object that we know to be deleted (``assume_deleted``) stays away until the watch has said so too or a
  list that began later has settled it.
* A list replaces everything except what is newer than the list.

The store does no input or output and has no clock.
"""

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Generic, TypeVar, cast

from taskd.kube.objects import HasMeta, Identity, Json, identity

T = TypeVar("T")
Key = tuple[str, str]


class Change(StrEnum):
    """What happened to an object, as far as the handlers are concerned."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


# (change, what was stored, what is now). Of a deletion the last value is the object's final state, or None
# where only its absence is known.
Handler = Callable[[Change, T | None, T | None], None]


class Store(Generic[T]):
    """Objects by name, by UID and by controlling owner."""

    def __init__(self) -> None:
        self.version = 0
        self._objects: dict[Key, tuple[Identity, T]] = {}
        self._keys: dict[str, Key] = {}  # by UID
        self._owned: dict[str, dict[Key, T]] = {}  # by UID of the owner
        self._buried: dict[str, int] = {}  # UID -> number of the list that may settle it
        self._lists = 0
        self._handlers: list[Handler[T]] = []

    def add_handler(self, handler: Handler[T]) -> None:
        """Call ``handler`` at each change from now on; it must return at once and not raise."""
        self._handlers.append(handler)

    # ------------------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter([obj for _, obj in self._objects.values()])

    def get(self, namespace: str, name: str) -> T | None:
        """Return the object of that name."""
        found = self._objects.get((namespace, name))
        return None if found is None else found[1]

    def by_uid(self, uid: str) -> T | None:
        """Return the object with that UID."""
        key = self._keys.get(uid)
        return None if key is None else self._objects[key][1]

    def owned_by(self, uid: str) -> Collection[T]:
        """Return the objects whose controller has that UID; a snapshot."""
        return tuple(self._owned.get(uid, {}).values())

    # -------------------------------------------------------------------------------- the server's voice

    def begin_list(self) -> int:
        """Say that a list is being asked for; give the number back to ``replace``."""
        self._lists += 1
        return self._lists

    def replace(self, items: Collection[T], version: int, number: int) -> None:
        """Take a whole list, which shows the collection at ``version``."""
        rewound = 0 <= version < self.version  # etcd was restored: what we remember never happened
        if rewound:
            self._buried.clear()
        self._buried = {uid: nr for uid, nr in self._buried.items() if nr > number}
        listed = [(identity(cast("HasMeta | Json", obj)), obj) for obj in items]
        present = {ident.uid for ident, _ in listed}
        for ident, obj in list(self._objects.values()):
            if ident.uid not in present and (rewound or ident.version <= version):
                self._remove(ident)
                self._tell(Change.DELETED, obj, None)
        for ident, obj in listed:
            self._offer(ident, obj, believe=rewound)
        self.version = version

    def changed(self, obj: T) -> None:
        """Take an ADDED or MODIFIED event."""
        ident = identity(cast("HasMeta | Json", obj))
        self._offer(ident, obj)
        self.version = max(self.version, ident.version)

    def deleted(self, obj: T) -> None:
        """Take a DELETED event (also sent when an object no longer fits the selector)."""
        ident = identity(cast("HasMeta | Json", obj))
        self.version = max(self.version, ident.version)
        self._buried.pop(ident.uid, None)
        stored = self._objects.get(ident.key)
        if stored is None or stored[0].uid != ident.uid:
            return
        self._remove(stored[0])
        self._tell(Change.DELETED, stored[1], obj)

    def advance(self, version: int) -> None:
        """Take a bookmark."""
        self.version = max(self.version, version)

    # ----------------------------------------------------------------------------------------- our voice

    def assume(self, obj: T) -> bool:
        """Take the server's answer to a write of ours; False if it was no news.

        Handlers are not called for it: whoever wrote knows. Nor are they when the watch repeats it. Only the
        end of a predecessor of the same name is told, if it was not yet.
        """
        ident = identity(cast("HasMeta | Json", obj))
        if ident.version <= self.version or ident.uid in self._buried:
            return False
        stored = self._objects.get(ident.key)
        if stored is not None and stored[0].version >= ident.version:
            return False
        if stored is not None and stored[0].uid != ident.uid:
            self._remove(stored[0])
            self._tell(Change.DELETED, stored[1], None)
        self._put(ident, obj)
        return True

    def assume_deleted(self, uid: str) -> bool:
        """Forget an object that a deletion of ours has removed; False if it was not here.

        Handlers are called now, and not again when the watch confirms it.
        """
        self._buried[uid] = self._lists + 1
        key = self._keys.get(uid)
        if key is None:
            return False
        ident, obj = self._objects[key]
        self._remove(ident)
        self._tell(Change.DELETED, obj, None)
        return True

    # ----------------------------------------------------------------------------------------- internals

    def _offer(self, ident: Identity, obj: T, *, believe: bool = False) -> None:
        if ident.uid in self._buried:
            return
        stored = self._objects.get(ident.key)
        if stored is None:
            self._put(ident, obj)
            self._tell(Change.ADDED, None, obj)
            return
        old, before = stored
        if 0 <= ident.version <= old.version and not believe:
            return
        if old.uid == ident.uid:
            self._put(ident, obj)
            self._tell(Change.MODIFIED, before, obj)
            return
        # The predecessor's end was not seen; it happened all the same.
        self._remove(old)
        self._tell(Change.DELETED, before, None)
        self._put(ident, obj)
        self._tell(Change.ADDED, None, obj)

    def _put(self, ident: Identity, obj: T) -> None:
        stored = self._objects.get(ident.key)
        if stored is not None and (stored[0].uid != ident.uid or stored[0].owner != ident.owner):
            self._remove(stored[0])
        self._objects[ident.key] = ident, obj
        self._keys[ident.uid] = ident.key
        if ident.owner:
            self._owned.setdefault(ident.owner, {})[ident.key] = obj

    def _remove(self, ident: Identity) -> None:
        del self._objects[ident.key]
        self._keys.pop(ident.uid, None)
        if ident.owner and (siblings := self._owned.get(ident.owner)) is not None:
            siblings.pop(ident.key, None)
            if not siblings:
                del self._owned[ident.owner]

    def _tell(self, change: Change, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(change, old, new)
