"""Kubernetes: client, informer, work queue, leader election and events.

The rest of TaskD builds manifests as plain dictionaries and reads small typed views (``objects``), so only
this package knows HTTP. Nothing below ``train`` or ``worker`` imports it.
"""
