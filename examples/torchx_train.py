"""A TorchX component: a command of the image on several nodes, each with torchrun's agent.

    torchx run --workspace "" --scheduler local_docker examples/torchx_train.py:nodes \
        --image cpu-train-stack:2.13 --data $PWD/data --output $PWD/output -- \
        train --model_name_or_path /data/model --train_file /data/train.csv --output_dir /output/first

With a workspace, which is the default, TorchX would copy the current folder into a new image.
"""

import shlex

import torchx.specs as specs


def nodes(
    *command: str,
    image: str,
    name: str = "train",
    num_nodes: int = 2,
    ranks_per_node: str = "auto",
    cpus: int = 2,
    memory_mb: int = 4096,
    data: str = "",
    output: str = "",
    max_restarts: int = 0,
) -> specs.AppDef:
    """Run a command of the image, such as train, on several nodes.

    Args:
        command: train, run or bench, with its options
        image: an image of ./inv build, or HOST/NAME@sha256:... of ./inv push
        name: the job's name
        num_nodes: containers to start
        ranks_per_node: ranks in each container; auto: one for each NUMA node
        cpus: CPUs of each container
        memory_mb: memory of each container, including /dev/shm
        data: a folder, mounted read-only at /data
        output: a folder that uid 1000 can write to, mounted at /output
        max_restarts: restarts of a container that fails, from the last checkpoint
    """
    options = [
        f"--nnodes={num_nodes}",
        f"--node-rank={specs.macros.replica_id}",
        # TorchX replaces the macro by the name of a variable, and two dollar signs by one.
        f'--master-addr="$$(printenv {specs.macros.rank0_env} || echo localhost)"',
        f"--nproc-per-node={shlex.quote(ranks_per_node)}",
    ]
    script = " ".join(["exec entrypoint launch", *options, '-- "$$@"'])
    mounts = []
    if data:
        mounts.append(specs.BindMount(src_path=data, dst_path="/data", read_only=True))
    if output:
        mounts.append(specs.BindMount(src_path=output, dst_path="/output"))
    role = specs.Role(
        name="node",
        image=image,
        entrypoint="sh",
        args=["-c", script, "launch", *(word.replace("$", "$$") for word in command)],
        env={"CPU_TRAIN_STACK_IMAGE": image, "CPU_TRAIN_STACK_JOB": f"torchx/{specs.macros.app_id}"},
        num_replicas=num_nodes,
        max_retries=max_restarts,
        resource=specs.Resource(cpu=cpus, gpu=0, memMB=memory_mb),
        port_map={"torchrun": 29500},
        mounts=mounts,
    )
    return specs.AppDef(name=name, roles=[role])
