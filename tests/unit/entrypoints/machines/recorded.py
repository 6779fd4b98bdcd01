"""The machines, with their CPUs numbered as Linux numbers them there."""

from __future__ import annotations

from tests.unit.entrypoints.machines.layout import ICE_LAKE, SPR, Machine

# A container of cgroup version 1 under the host's namespace, as Docker makes it.
V1_OWN = "4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc\n"
V1_MOUNTS = """\
84 83 0:46 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
85 84 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct
87 84 0:31 /docker/abc /sys/fs/cgroup/cpuset ro,nosuid - cgroup cgroup rw,cpuset
88 84 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
"""

MACHINES = {
    # Xeon Platinum 8358: node0 0-31,64-95, node1 32-63,96-127.
    "ice-lake-2x32": Machine(((32,), (32,)), threads=2, model="Xeon 8358", flags=ICE_LAKE),
    # Xeon Platinum 8480+ with SNC4: node0 0-13,112-125, ... node7 98-111,210-223.
    "sapphire-rapids-2x56-snc4": Machine(((14,) * 4, (14,) * 4), threads=2, flags=SPR),
    # r7iz.metal-16xl: Xeon Gold 6455B, one socket, 0-31,32-63.
    "r7iz.metal-16xl": Machine(((32,),), threads=2, flags=SPR),
    # Xeon Max 9480, flat memory mode: HBM is nodes 2 and 3, which have no CPUs.
    "xeon-max-2x56-flat": Machine(((56,), (56,)), threads=2, flags=SPR, memory_only=2),
    # Xeon 6979P, SNC3 as delivered: node0 0-39,240-279.
    "granite-rapids-2x120-snc3": Machine(((40,) * 3, (40,) * 3), threads=2, flags=SPR + " amx_fp16"),
    # Xeon 6980P, one socket, SNC3: 128 cores are 43, 43 and 42.
    "granite-rapids-1x128-snc3": Machine(((43, 43, 42),), threads=2, flags=SPR + " amx_fp16"),
    # EPYC 9654: node0 0-95,192-287.
    "genoa-2x96-nps1": Machine(((96,), (96,)), threads=2),
    # The same with NPS4: node0 0-23,192-215.
    "genoa-2x96-nps4": Machine(((24,) * 4, (24,) * 4), threads=2),
    # EPYC 9755.
    "turin-2x128-nps1": Machine(((128,), (128,)), threads=2),
    "turin-2x128-nps4": Machine(((32,) * 4, (32,) * 4), threads=2),
    "vm-2": Machine(((2,),)),
    # Hyper-V numbers the threads of a core side by side.
    "vm-16-adjacent": Machine(((8,),), threads=2, numbering="adjacent"),
    # Firmware that numbers the two sockets' cores in turn: node0 0,2,4,..., node1 1,3,5,....
    "alternating-2x8": Machine(((8,), (8,)), threads=2, numbering="alternating"),
    "cpuset-without-0": Machine(((16,),), mask="5,7,9-12"),
    # A cpuset that has second threads of some cores only.
    "cpuset-of-siblings": Machine(((8,),), threads=2, mask="2-3,10-13"),
    "quota-1.5-v1": Machine(
        ((32,),),
        threads=2,
        own=V1_OWN,
        mounts=V1_MOUNTS,
        groups={"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
    ),
    # The pod's own limit is tighter than the container's, whose own file says max.
    "quota-1.5-v2-nested": Machine(
        ((32,),),
        threads=2,
        own="0::/kubepods.slice/pod1/container\n",
        groups={
            "kubepods.slice/cpu.max": "6000000 100000",
            "kubepods.slice/pod1/cpu.max": "150000 100000",
            "kubepods.slice/pod1/container/cpu.max": "max 100000",
        },
    ),
    "quota-16-on-2x32": Machine(((32,), (32,)), threads=2, groups={"cpu.max": "1600000 100000"}),
    "quota-max-v2": Machine(((32,),), threads=2, groups={"cpu.max": "max 100000"}),
    # Kubernetes' static CPU manager: whole cores for the pod, and a quota of as many CPUs.
    "kubernetes-static-16": Machine(
        ((32,), (32,)), threads=2, mask="2-9,66-73", groups={"cpu.max": "1600000 100000"}
    ),
    # Second threads switched off by the administrator, and one core more.
    "offline": Machine(((8,), (8,)), threads=2, offline="3,16-31"),
    # Two sockets of unequal size, as with cores that failed or are kept by the host.
    "asymmetric-12+4": Machine(((12,), (4,))),
    "no-numa-folder": Machine(((8,), (8,)), has_nodes=False),
    "graviton3": Machine(((64,),), flags="fp asimd sve i8mm bf16", arm=True),
}
