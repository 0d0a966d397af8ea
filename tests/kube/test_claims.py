"""What we made by POST is ours to take back by server-side apply, and what others wrote is not."""

from taskd.kube.claims import as_applied
from taskd.kube.objects import Json

PORT: Json = {"f:spec": {"f:port": {}}}
NAME: Json = {"f:spec": {"f:name": {}}, "f:metadata": {"f:labels": {}}}


def entry(manager: str, operation: str, fields: Json, subresource: str = "") -> Json:
    made = {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields}
    return {**made, "subresource": subresource} if subresource else made


def test_what_we_wrote_counts_as_applied() -> None:
    other, status = entry("kubectl", "Update", NAME), entry("us", "Update", NAME, "status")
    entries = [entry("us", "Update", PORT), other, status]

    assert [other, status, entry("us", "Apply", PORT)] == as_applied(entries, "us")


def test_what_we_wrote_is_added_to_what_we_applied() -> None:
    entries = [entry("us", "Apply", PORT), entry("us", "Update", NAME)]
    both: Json = {"f:spec": {"f:port": {}, "f:name": {}}, "f:metadata": {"f:labels": {}}}

    assert [entry("us", "Apply", both)] == as_applied(entries, "us")


def test_where_all_is_applied_nothing_is_to_do() -> None:
    assert as_applied([entry("us", "Apply", PORT), entry("other", "Update", NAME)], "us") is None
