"""TaskD's manager, for rank 0's pod: `python manager.py &` before torchrun or msrun.

The guides have you write the two numbers; here they come from the environment that the operator gives to
the pod. The number of nodes decides when the job begins; how many processes a node has, its launcher knows.
"""

import os
import sys

from taskd.api import init_taskd_manager, start_taskd_manager

job_id = os.getenv("MINDX_TASK_ID")
proc_per_node = int(os.getenv("LOCAL_WORLD_SIZE") or os.getenv("MS_LOCAL_WORKER") or 1)
world_size = int(os.getenv("WORLD_SIZE") or os.getenv("MS_WORKER_NUM") or proc_per_node)
node_nums = int(os.getenv("TASKD_NODES") or world_size // proc_per_node)

if not init_taskd_manager({"job_id": job_id, "node_nums": node_nums, "proc_per_node": proc_per_node}):
    sys.exit(2)
sys.exit(0 if start_taskd_manager() else 1)
