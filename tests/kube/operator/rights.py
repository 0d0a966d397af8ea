"""The rights that the controller is installed with, as an administrator would apply them."""

from __future__ import annotations

from typing import Any

import yaml

from tests.kube.operator.site import ROOT

HOME = "taskd-system"
ACCOUNT = "taskd-controller"
MANIFESTS = ROOT / "deploy" / "kustomize" / "base" / "taskd.yaml"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
Rule = dict[str, Any]


def documents() -> list[dict[str, Any]]:
    """Account, roles and bindings of the manifests."""
    found = yaml.safe_load_all(MANIFESTS.read_text("utf-8"))
    return [document for document in found if document and document["kind"] in KINDS]


def rules() -> list[Rule]:
    """Every rule of every role."""
    return [
        rule
        for document in documents()
        if document["kind"] in {"ClusterRole", "Role"}
        for rule in document["rules"]
    ]
