#!/bin/bash
# Start the training of one pod:  train_start.sh CODE OUTPUT ENTRY [arguments of ENTRY …]
#
#   CODE    directory of the training code; ENTRY is looked for there, and runs there
#   OUTPUT  directory for logs; this pod's are in OUTPUT/logs/node-N
#   ENTRY   the training script
#
# Everything else comes from the environment that the operator gives to the pod. With TaskD's short way none of
# this is needed: `taskd run ENTRY …` does the same (docs/kubernetes.md).
#
#   MAX_RESTARTS      faults that this container may have (default 32767)
#   MONITOR_INTERVAL  seconds between looks at the processes (default 5)
#   EXPORT_HCCL=off   leave the two HCCL switches alone

usage="usage: train_start.sh CODE OUTPUT ENTRY [arguments …]"
[[ $# -ge 3 ]] || { echo "$usage" >&2; exit 2; }
code=$1 output=$2 entry=$3
shift 3
[[ -f "$code/$entry" ]] || { echo "train_start.sh: there is no $code/$entry; $usage" >&2; exit 2; }

function logger() {
    echo "[$(date '+%Y-%m-%d %H:%M:%S')] $*" | tee -a "$log_dir/train_start.log"
}

# Which framework the operator prepared this pod for, and which pod of the job it is.
function get_framework() {
    if [[ -n "${MS_ROLE:-}" ]]; then
        framework=MindSpore server_id=${MS_NODE_RANK:-0}
    elif [[ -n "${CM_RANK:-}" ]]; then
        framework=TensorFlow server_id=${CM_RANK}
    else
        framework=PyTorch server_id=${RANK:-0}
    fi
}

function get_env_for_pytorch_multi_node_job() {
    GPUS_PER_NODE=${LOCAL_WORLD_SIZE:-1}
    NNODES=${TASKD_NODES:-$((${WORLD_SIZE:-1} / GPUS_PER_NODE))}
    NODE_RANK=${RANK:-0}
    MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
    MASTER_PORT=${MASTER_PORT:-2222}
}

get_framework
log_dir=$output/logs/node-$server_id
# The new pod of a hot switch has the rank of the pod that it relieves, and that one still writes there.
[[ "$HOSTNAME" == *-hot-* ]] && log_dir=$log_dir-$HOSTNAME
mkdir -p "$log_dir" || exit 2
logger "server id is: ""${server_id}"

# --- TaskD, as its guides have it -------------------------------------------------------------------------
TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
export TASKD_PROCESS_ENABLE="on"
if [[ "${EXPORT_HCCL:-on}" == on ]]; then
    # A failed operator is repeated by HCCL itself, and its watchdog does not end a process that can go on.
    export HCCL_OP_RETRY_ENABLE="${HCCL_OP_RETRY_ENABLE:-L0:0, L1:1, L2:1}"
    export HCCL_ASYNC_ERROR_HANDLING="${HCCL_ASYNC_ERROR_HANDLING:-0}"
fi
[[ -f manager.py ]] || cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
manager=
# PyTorch
if [[ "${framework}" == "PyTorch" && "${RANK}" == 0 ]]; then
   export MASTER_ADDR=${POD_IP}
    python manager.py &           # Determined by the current path. In a pod that stands by it waits.
    manager=$!
fi
# MindSpore
if [[ -n "${MS_SCHED_HOST:-}" && "${MS_SCHED_HOST}" == "${POD_IP}" ]]; then
    python manager.py &   # Determined by the current path.
    manager=$!
fi

# --- the training -----------------------------------------------------------------------------------------
cd "$code" || exit 2
if [ "${framework}" == "PyTorch" ]; then
    get_env_for_pytorch_multi_node_job
    DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts ${MAX_RESTARTS:-32767} --monitor_interval ${MONITOR_INTERVAL:-5}"
    # shellcheck disable=SC2086 - flags and values, which have no blanks in them
    torchrun $DISTRIBUTED_ARGS --log_dir "$log_dir" "$entry" "$@" &
elif [ "${framework}" == "MindSpore" ]; then
    msrun --worker_num "${MS_WORKER_NUM}" --local_worker_num "${MS_LOCAL_WORKER}" --master_addr "${MS_SCHED_HOST}" \
        --master_port "${MS_SCHED_PORT}" --node_rank "${MS_NODE_RANK}" --log_dir "$log_dir" --join True "$entry" "$@" &
else
    python "$entry" "$@" &
fi
training=$!

# Kubernetes ends a pod by a signal to this shell: pass it on, and wait for what it causes.
deleted=
trap 'deleted=yes; kill -TERM "$training" 2>/dev/null' TERM INT
wait "$training"
code_of_training=$?
while kill -0 "$training" 2>/dev/null; do
    wait "$training"
    code_of_training=$?
done
# The manager ends by itself when the job is over; one that has lost its launcher here has nothing left to do. Where
# only this pod is deleted the others go on, and find the next manager: SIGTERM would have it end the whole job.
if [[ -n "$manager" && -n "$deleted" ]]; then
    kill -KILL "$manager" 2>/dev/null
elif [[ -n "$manager" ]]; then
    for _ in $(seq 50); do kill -0 "$manager" 2>/dev/null || break; sleep 0.1; done
    kill -TERM "$manager" 2>/dev/null
fi
logger "training ended with code $code_of_training"
exit "$code_of_training"
