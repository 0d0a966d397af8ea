"""The names that other software depends on: labels, annotations, environment, reasons and messages.

All of them are facts of the reference system or of the seeds; none may be respelled.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "mindxdl.gitee.com"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "AscendJob"
POD_GROUP_API: Final = "scheduling.volcano.sh/v1beta1"

CONTROLLER: Final = "ascendjob-controller"
CONTAINER: Final = "ascend"
PORT_NAME: Final = "ascendjob-port"
PORT: Final = 2222
VOLCANO: Final = "volcano"
DEFAULT_QUEUE: Final = "default"
PODS_SERVICE: Final = "acjob-pods"
"""The headless Service that gives every pod of a namespace its host name: one for all jobs, not one each."""
PLANE_DOMAIN: Final = "clusterd-grpc-svc.mindx-dl.svc.cluster.local"
MAX_REPLICAS: Final = 20_000

# ----------------------------------------------------------------------------------- labels of a job
FRAMEWORK: Final = "framework"
FAULT_RETRY_TIMES: Final = "fault-retry-times"
FAULT_SCHEDULING: Final = "fault-scheduling"
POD_RESCHEDULING: Final = "pod-rescheduling"
SUB_HEALTHY: Final = "subHealthyStrategy"
PROCESS_RECOVER: Final = "process-recover-enable"
TOR_AFFINITY: Final = "tor-affinity"
SCALEOUT_TYPE: Final = "scaleout-type"
SCALING_RULE: Final = "mind-cluster/scaling-rule"
SCALING_GROUP: Final = "mind-cluster/group-name"
JOB_ID: Final = "jobID"
APP: Final = "app"
SUPER_POD_AFFINITY: Final = "super-pod-affinity"
SOFT_SHARE: Final = (
    "huawei.com/scheduler.softShareDev.aicoreQuota",
    "huawei.com/scheduler.softShareDev.hbmQuota",
    "huawei.com/scheduler.softShareDev.policy",
)

# ------------------------------------------------------------------------------ annotations of a job
RECOVER_STRATEGY: Final = "recover-strategy"
SCHEDULE_POLICY: Final = "huawei.com/schedule_policy"
AFFINITY_CONFIG: Final = "huawei.com/affinity-config"
SP_BLOCK: Final = "sp-block"
PROCESSES_PER_POD: Final = "taskd.io/processes-per-pod"
LEAVE_TEMPLATE: Final = "taskd.io/leave-template"
"""With the value "true" the operator adds no volumes and mounts of its own."""

STANDBY_PODS: Final = "taskd.io/standby-pods"
"""How many pods of the job are kept ready beside it, outside of its world."""
MAX_STANDBYS: Final = 100
RANK_TABLE: Final = "taskd.io/rank-table"
"""Where the rank table is wanted: "configmap", "file", or both with a comma between."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

# ----------------------------------------------------------------- ConfigMaps, files and where pods see them
RESET_CONFIG: Final = "reset-config-"
RESET_PATH: Final = "/user/restore/reset/config"
DATA_TRACE: Final = "data-trace-"
DATA_TRACE_PATH: Final = "/user/cluster-info/datatrace-config"
RINGS_CONFIG: Final = "rings-config-"
RINGS_PATH: Final = "/user/serverid/devindex/config"
RANK_TABLE_VOLUME: Final = "ranktable"
"""A volume of this name in a template asks for the rank table as a file on shared storage."""
CERTIFICATES: Final = "taskd-certificates-"
"""The Secret of a job's certificates is called that, and the name of the job."""
CERTIFICATES_PATH: Final = "/user/taskd/certificates"
ATLAS: Final = "ring-controller.atlas"
RESET_LABEL: Final = "reset"

APPLIED: Final = "taskd.io/applied"
"""On a PodGroup: a mark of what was applied, so that a change of the job is noticed without comparing."""
CERTIFIED: Final = "taskd.io/certificates"
"""On a pod: the Secret whose certificates it was given. Pods with and without any never meet."""
AVOIDS: Final = "taskd.io/avoids"
"""On a pod: the nodes that it must not be put on, see `avoiding`."""
SHAPE: Final = "taskd.io/shape"
"""On a pod: framework, roles, pods and processes per pod of the job that it was made for."""

# --------------------------------------------------------------------------- labels, annotations of a pod
OPERATOR_NAME: Final = "training.kubeflow.org/operator-name"
GROUP_NAME: Final = "group-name"
JOB_NAME: Final = "training.kubeflow.org/job-name"
JOB_NAME_SHORT: Final = "job-name"
REPLICA_TYPE: Final = "training.kubeflow.org/replica-type"
REPLICA_TYPE_SHORT: Final = "replica-type"
REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
REPLICA_INDEX_SHORT: Final = "replica-index"
JOB_ROLE: Final = "training.kubeflow.org/job-role"
POD_VERSION: Final = "version"
"""The generation of restarts that created the pod: 0 at first, n after the n-th restart."""

RANK_INDEX: Final = "hccl/rankIndex"
POD_GROUP_OF: Final = "scheduling.k8s.io/group-name"
TASK_SPEC: Final = "volcano.sh/task-spec"
DEVICES_910: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
DEVICES_NPU: Final = "ascend.kubectl.kubernetes.io/ascend-npu-configuration"
SUPER_POD_RANK: Final = "super-pod-rank"
SUPER_POD_ID: Final = "super-pod-id"
HARDWARE_TYPE: Final = "mind-cluster/hardware-type"

HOT_SWITCH: Final = "inHotSwitchFlow"
ASK_OPERATOR: Final = "needOperatorOpe"
ASK_VOLCANO: Final = "needVolcanoOpe"
POD_TYPE: Final = "podType"
BACKUP: Final = "backup"
STANDBY: Final = "standby"
"""As `podType`, and in names and labels: a pod that is kept ready and has no place yet."""
BACKUP_SOURCE: Final = "backupSourcePodName"
BACKUP_NEW: Final = "backupNewPodName"

# ------------------------------------------------------------------------------------- condition types
CREATED: Final = "Created"
RUNNING: Final = "Running"
RESTARTING: Final = "Restarting"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

# --------------------------------------------------------------------------------------------- reasons
JOB_CREATED: Final = "JobCreated"
JOB_RUNNING: Final = "JobRunning"
JOB_RESTARTING: Final = "jobRestarting"
JOB_SUCCEEDED: Final = "JobSucceeded"
JOB_FAILED: Final = "JobFailed"
JOB_INVALID: Final = "JobValidFailed"
JOB_SUSPENDED: Final = "JobSuspended"
SYNC_POD_GROUP_FAILED: Final = "SyncPodGroupFailed"
POD_GROUP_NOT_INITIALIZED: Final = "PodGroupNotInitialized"
POD_GROUP_PENDING: Final = "PodGroupPending"
SYNC_SERVICE_FAILED: Final = "SyncServiceFailed"
POD_CREATE_FAILED: Final = "PodCreateFailed"
SYNC_CERTIFICATES_FAILED: Final = "SyncCertificatesFailed"
SYNC_CONFIG_MAP_FAILED: Final = "SyncConfigMapFailed"
"""Of an Event only: no state of the job speaks of ConfigMaps."""

SET_JOB_SCHEDULER: Final = "SettedJobSchedulerName"
SET_TEMPLATE_SCHEDULER: Final = "SettedPodTemplateSchedulerName"
SET_TEMPLATE_RESTART: Final = "SettedPodTemplateRestartPolicy"
UNKNOWN_TOR_AFFINITY: Final = "UnknownTorAffinity"
UNKNOWN_SCHEDULE_POLICY: Final = "UnknownSchedulePolicy"

SET_JOB_SCHEDULER_TEXT: Final = (
    "Another job scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
)
SET_TEMPLATE_SCHEDULER_TEXT: Final = (
    "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
)
SET_TEMPLATE_RESTART_TEXT: Final = (
    "Restart policy in pod template will be overwritten by restart policy in replica spec"
)
SCHEDULER_SILENT: Final = (
    "volcano-scheduler is maybe not running, execute command to check the status: "
    "kubectl get pod -n volcano-system -l app=volcano-scheduler"
)
NO_RESOURCES: Final = "the cluster resource is not enough"

STRATEGIES: Final = ("retry", "recover", "recover-in-place", "elastic-training", "dump", "exit")
SUB_HEALTHY_VALUES: Final = ("ignore", "graceExit", "forceExit", "hotSwitch")
FAULT_SCHEDULING_VALUES: Final = ("grace", "force", "off")
FAULT_SCHEDULING_PREFIXES: Final = ("external-grace", "external-force")
TOR_AFFINITY_VALUES: Final = ("null", "large-model-schema", "normal-schema")
SCHEDULE_POLICIES: Final = (
    "chip1-node2",
    "chip1-node8",
    "chip1-node16",
    "chip4-node4",
    "chip4-node8",
    "chip4-node16",
    "chip8-node8",
    "chip8-node16",
    "chip2-node8",
    "chip2-node16",
    "chip2-node16-sp",
    "chip2-node8-sp",
    "chip8-node8-sp",
    "chip8-node8-ra64-sp",
    "chip1-softShareDev",
    "multilevel",
)

BACK_OFF: Final = "BackOff"
"""An Event: a restart waits, because the ones before it did not help."""
UNKNOWN_LABEL_VALUE: Final = "UnknownLabelValue"
NO_HOST_NAME: Final = "NoHostName"
RECOVERY_REFUSED: Final = "RecoveryRefused"
STANDBY_PODS_IGNORED: Final = "StandbyPodsIgnored"
RANK_TABLE_NOT_WRITTEN: Final = "RankTableNotWritten"
RANK_TABLE_FAILED: Final = "RankTableFailed"
