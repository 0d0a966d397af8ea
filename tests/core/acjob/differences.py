"""Every intended difference from the reference operator's objects, with its reason. There is no other.

The same rows stand in docs/ascendjob-differences.md; a test compares the two. A row is shown by the recorded
cases (`path`: what differs there) or by a test of ours that is named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    id: str
    reference: str
    ours: str
    reason: str
    case: str = ""
    """Expression for the names of the recorded cases in which it shows."""
    path: str = ""
    """Expression for the fields that differ."""
    test: str = ""
    """Name of the test that shows it, where no recorded case does."""


_ENV = r"Pods/[^/]+/spec/containers\[ascend\]/env"

DIFFERENCES = (
    Difference(
        "env-once",
        "`ASCEND_VISIBLE_DEVICES` stands twice where the user wrote it too",
        "once, with the user's value",
        "a name that stands twice breaks server-side apply, and what the user wrote is meant",
        case="pytorch-1m1w.*",
        path=_ENV + r"\[ASCEND_VISIBLE_DEVICES\]/times",
    ),
    Difference(
        "env-pod-ip",
        "`POD_IP` is left to the user",
        "`POD_IP` is the pod's address",
        "the scripts of the seeds need it, and the sample job does not set it",
        case=".*",
        path=_ENV + r"\[POD_IP\].*",
    ),
    Difference(
        "env-raw-strategy",
        "only the switches derived from `recover-strategy`",
        "also the list itself, as `TASKD_RECOVER_STRATEGY`",
        "what is allowed cannot be told from the switches, and jobs without a device recover too",
        case="pytorch-recover-.*",
        path=_ENV + r"\[TASKD_RECOVER_STRATEGY\].*",
    ),
    Difference(
        "env-place",
        "how many pods there are, and what they are called, is not told",
        "`TASKD_NODES`, `TASKD_PEERS` and `TASKD_LEADER` in the pods of a PyTorch job",
        "pods of different sizes cannot be counted, and rank 0's address does not lead to who manages now",
        case="(pytorch|clean)-.*",
        path=_ENV + r"\[TASKD_(NODES|PEERS|LEADER)\].*",
    ),
    Difference(
        "env-any-device",
        "a job without Ascend devices gets no framework environment",
        "it gets it, with `taskd.io/processes-per-pod` (or its GPUs) as the number of processes",
        "the framework needs its addresses and sizes on any device; Ascend-only variables stay out",
        case="pytorch-no-npu",
        path=_ENV + r"\[(LOCAL_WORLD_SIZE|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|RANK)\].*",
    ),
    Difference(
        "rank-index-any-device",
        "leader and first worker are both `hccl/rankIndex` 0 when nobody has a device",
        "the leader is 0, the workers follow",
        "both compute, and two pods of one rank cannot be told apart",
        case="pytorch-no-npu",
        path=r"Pods/nonpu-worker-0/metadata/annotations/hccl~rankIndex",
    ),
    Difference(
        "env-single-mindspore",
        "MindSpore on one Worker gets no environment at all",
        "it gets what every job gets (task id, addresses of the control plane, devices), but no `MS_…`",
        "without the task id the manager cannot start in it; it still has nobody to meet",
        case="mindspore-noscheduler",
        path=_ENV
        + r"\[(ASCEND_VISIBLE_DEVICES|MINDX_.*|HostNetwork|HCCL_LOGIC_SUPERPOD_ID|REPLICA_TYPE)\].*",
    ),
    Difference(
        "host-names",
        "pods have no host name in DNS",
        "`hostname` and `subdomain`, with one headless Service `acjob-pods` per namespace",
        "a replaced pod keeps its name though its address changes",
        case=".*",
        path=r"Pods/[^/]+/spec/(hostname|subdomain)",
    ),
    Difference(
        "shape-mark",
        "pods keep the world size that they were told when the job is resized, and new ones are told another",
        "annotation `taskd.io/shape` (framework, roles, pods, processes per pod) on each pod; a job that is "
        "resized restarts as a whole, an inference job only gains or loses pods",
        "processes that count differently never meet",
        case=".*",
        path=r"Pods/[^/]+/metadata/annotations/taskd.io~shape",
    ),
    Difference(
        "volumes",
        "volumes for recovery and tracing are left to the user",
        "added, optional and read-only, where nothing is mounted there; annotation `taskd.io/leave-template`",
        "without them recovery fails silently",
        case=".*",
        path=r"Pods/[^/]+/spec/(volumes|containers\[ascend\]/volumeMounts)\[taskd-.*",
    ),
    Difference(
        "certificates",
        "no certificates: whoever reaches a port speaks for any job",
        "where our plane makes them: the Secret `taskd-certificates-<job>`, mounted, `TASKD_CERTIFICATES`, "
        "and the annotation `taskd.io/certificates` on each pod",
        "a job's parts and the plane must know each other, and no job speaks for another",
        test="test_a_pod_sees_the_certificates_of_its_job",
    ),
    Difference(
        "env-order",
        "ours after the user's, recovery variables in random order",
        "ours before the user's, in a fixed order",
        "`$(WORLD_SIZE)` in a user's value is expanded, and two pods of a type differ in their rank alone",
        test="test_a_value_of_the_user_may_refer_to_ours",
    ),
    Difference(
        "env-user-wins",
        "the operator's value comes last and wins; hot switching edits the first of two",
        "the user's value wins, whole",
        "what is written in the job is what the container sees",
        test="test_what_the_user_set_is_what_the_container_sees",
    ),
    Difference(
        "env-visible-devices",
        "no `ASCEND_VISIBLE_DEVICES` beside a request for cpu or memory; set without Volcano too",
        "decided by the `huawei.com/` resource alone, and only with gang scheduling",
        "cpu says nothing about cards, and without Volcano nobody writes the annotation",
        test="test_visible_devices_come_from_the_scheduler_for_whole_cards_only",
    ),
    Difference(
        "env-world-size",
        "world size from one arbitrary template",
        "the sum over all types",
        "a Master with 4 and two Workers with 8 devices are 20 processes, not 12",
        test="test_pods_of_different_size_make_one_world",
    ),
    Difference(
        "env-exit",
        "`exit` switches recovery on",
        "`exit` alone switches nothing on",
        "it means the opposite",
        test="test_no_way_of_recovery_no_switch",
    ),
    Difference(
        "env-blanks",
        "`recover, dump` loses `dump`; an unknown word gives an empty list",
        "blanks do not matter; an unknown word is refused by validation",
        "a list is a list",
        test="test_blanks_between_strategies_do_not_matter",
    ),
    Difference(
        "group-queue",
        "no queue named: none in the PodGroup",
        "`default`",
        "that is what the documentation promises, and what Volcano takes",
        test="test_a_group_without_a_queue_is_in_the_default_one",
    ),
    Difference(
        "group-annotations",
        "all annotations are copied",
        "all but `kubectl.kubernetes.io/last-applied-configuration`",
        "it describes the job, doubles the object and misleads kubectl",
        test="test_the_group_shows_what_the_job_says",
    ),
    Difference(
        "group-resources",
        "summed in random order of the types, without init containers",
        "leader first, as the scheduler counts a pod",
        "the same job must give the same group, and a pod that needs more at its start must fit",
        test="test_the_leader_is_counted_first",
    ),
    Difference(
        "service-ports",
        "every port is called TCP; one without a name makes the Service invalid",
        "the port's own protocol; a name is made up where it is missing",
        "the container was valid, so the job must start",
        test="test_ports_that_a_container_may_have_suit_the_service",
    ),
    Difference(
        "nobody",
        "a job without pods, or with AllWorkers and nobody who computes, has succeeded at once",
        "it is `JobValidFailed`",
        "it did nothing, and whoever waits for its result waits for what never was",
        test="test_a_job_in_which_nobody_works_has_a_mistake",
    ),
    Difference(
        "refused-replacement",
        "a job that has run is `Created` again while a pod cannot be replaced",
        "it stays `Restarting`, with what was refused in the message",
        "the newest condition is what the job does",
        test="test_a_replacement_that_is_refused_keeps_the_job_restarting",
    ),
    Difference(
        "table-ranks",
        "`rankIndex * devices of this pod`",
        "sum of the devices of all pods before",
        "ranks overlap or have gaps when pods differ",
        test="test_rank_ids_are_unique_and_dense",
    ),
    Difference(
        "table-initializing",
        "the old servers stay in the list while a pod is missing",
        "the list is empty",
        "a reader must not use devices that are gone",
        test="test_a_lost_pod_empties_the_table",
    ),
    Difference(
        "table-version",
        "seconds of the previous save",
        "one more at the write that changes the content; no write without a change",
        "readers wait for a change, and clocks go backwards",
        test="test_the_version_grows_with_the_content_and_only_then",
    ),
    Difference(
        "table-leader",
        "a leader without a device makes 2.0 fail, and 1.0 be rewritten for ever",
        "it must exist and plays no part, in every form",
        "a Scheduler without a device is the usual case",
        test="test_a_leader_without_a_device_has_no_entry",
    ),
    Difference(
        "table-super-pods",
        "a gap in `super-pod-rank` leaves a null entry; inference groups in random order",
        "no null entries, in ascending order",
        "readers do not expect null, and equal input must give equal text",
        test="test_super_pods_follow_the_annotations",
    ),
    Difference(
        "table-asked",
        "the ConfigMap is used only if the user created it before the operator first looked",
        "created when the job asks: annotation `taskd.io/rank-table`, or a volume that shows it",
        "the order of `kubectl apply` must not matter",
        test="test_the_table_goes_where_the_job_asks",
    ),
    Difference(
        "service-end",
        "the Service goes only with a leader that `cleanPodPolicy` removes, not with one that has ended",
        "it goes once no pod of the job runs; the policy `None` keeps it",
        "nobody needs it any more, and addresses of a cluster are limited",
        test="test_the_address_of_the_leader_goes_when_no_pod_runs",
    ),
)
