"""From a creation to server-side apply: what was made by POST becomes ours to take back.

A POST costs the API server a quarter less than the same object applied (a Service: 9.5 ms of core time,
against 12.5), and jobs come in hundreds. But the server keeps what one wrote and what one applied in separate
accounts, under the same name. A later apply would then take back nothing: a port that the job has no longer
would stay, since somebody (we) wrote it. So before an object is applied for the first time, what we wrote is
moved to the account of what we apply. Objects that never change, nearly all, need that never.
"""

from collections.abc import Sequence
from typing import Any

from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.objects import Json
from taskd.kube.resources import Resource

TRIES = 3


def as_applied(entries: Sequence[Json], manager: str) -> list[Json] | None:
    """`managedFields` in which all that the manager wrote counts as applied; None where it does already.

    What it wrote to a subresource is an account of its own, and stays.
    """
    written = [entry for entry in entries if _is(entry, manager, "Update")]
    if not written:
        return None
    applied = [entry for entry in entries if _is(entry, manager, "Apply")]
    fields: Json = {}
    for entry in (*applied, *written):
        _join(fields, entry.get("fieldsV1") or {})
    joined = {**(applied or written)[0], "operation": "Apply", "fieldsV1": fields}
    return [entry for entry in entries if entry not in applied and entry not in written] + [joined]


def _is(entry: Json, manager: str, operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (
        manager,
        operation,
        "",
    )


def _join(fields: Json, more: Json) -> None:
    for name, inner in more.items():
        _join(fields.setdefault(name, {}), inner)


async def claim(client: KubeClient, resource: Resource[Any], namespace: str, name: str, manager: str) -> None:
    """Have what the manager wrote to the object count as applied by it; nothing to do where there is none.

    Others may write to the object meanwhile, so it is tried a few times.
    """
    whole = resource.decoded(dict)
    for tries_left in reversed(range(TRIES)):
        try:
            metadata = (await client.get(whole, namespace, name))["metadata"]
            entries = as_applied(metadata.get("managedFields") or (), manager)
            if entries is not None:
                version = metadata["resourceVersion"]
                patch = {"metadata": {"resourceVersion": version, "managedFields": entries}}
                await client.patch(resource, namespace, name, patch, field_manager=manager)
        except ApiError as error:
            if error.is_conflict and tries_left:
                continue
            if not error.is_not_found:
                raise
        return
