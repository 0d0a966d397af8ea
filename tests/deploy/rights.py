"""All that the controller may do. A role that grants something else, more or less, fails the tests."""

# In any namespace.
GRANTED = {
    "ascendjobs.mindxdl.gitee.com": {"list", "watch", "delete"},
    "ascendjobs.mindxdl.gitee.com/status": {"patch"},
    "ascendjobs.mindxdl.gitee.com/finalizers": {"update"},
    "pods": {"get", "list", "watch", "create", "patch", "delete"},
    "services": {"get", "list", "watch", "create", "patch", "delete"},
    "configmaps": {"get", "create", "patch"},
    "events": {"create", "patch"},
    "podgroups.scheduling.volcano.sh": {"list", "watch", "create", "patch", "delete"},
    "queues.scheduling.volcano.sh": {"get", "list", "watch"},
    "nodes": {"get", "list", "watch"},
}
# In its own namespace, whatever the name; the lease of its own name can be read and updated besides.
GRANTED_AT_HOME = {**GRANTED, "leases.coordination.k8s.io": {"create"}}
