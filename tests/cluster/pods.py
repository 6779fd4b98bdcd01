"""Pods as containers: the pods that an operator creates for a job, and Docker's options for the same.

Each function `*_pods` is what one operator does to a manifest that it is given, as far as a pod can see it: names,
variables, volumes. Read from the sources of training-operator 1.9, Trainer 2.3 and mpi-operator 0.8.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Document = dict[str, Any]

# What OpenShift adds to a pod that names none: an id of the namespace, in group 0, and the group of its volumes.
OPENSHIFT_USER, FS_GROUP = 1000620000, 1000
# The line that OpenShift's engine adds to /etc/passwd (CRI-O, utils.GeneratePasswd).
OPENSHIFT_LINE = f"{OPENSHIFT_USER}:x:{OPENSHIFT_USER}:0:{OPENSHIFT_USER} user:/tmp:/sbin/nologin\n"


@dataclass(frozen=True)
class Pod:
    """`names`: those that the cluster's DNS has for it beside its host name. `folders`: volumes that the operator
    adds, by mount path."""

    name: str
    names: tuple[str, ...]
    spec: Document
    environment: Mapping[str, str]
    folders: Mapping[str, Path] = field(default_factory=dict)


def pytorchjob_pods(job: Document) -> list[Pod]:
    """Workers alone, with an elastic policy: a service for each, no number, no master."""
    spec, name = job["spec"], job["metadata"]["name"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    (container,) = [one for one in worker["template"]["spec"]["containers"] if one["name"] == "pytorch"]
    (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "pytorchjob-port"]
    policy = spec["elasticPolicy"]
    environment = {
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
    }
    return [
        Pod(f"{name}-worker-{index}", (), worker["template"]["spec"], environment)
        for index in range(worker["replicas"])
    ]


def trainjob_pods(runtime: Document, job: Document) -> list[Pod]:
    """The runtime's container called node with the job's command and limits in it, one pod an index.

    A command replaces the image's entrypoint. Without a number of ranks in the job: one for each requested CPU.
    """
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]["template"]["spec"]
    (container,) = [one for one in spec["containers"] if one["name"] == "node"]
    container = {**container, **{key: trainer[key] for key in ("command", "args") if key in trainer}}
    container["resources"] = trainer.get("resourcesPerNode", container.get("resources"))
    container["env"] = [_of_the_job(entry, name) for entry in container["env"]]
    ranks = trainer.get("numProcPerNode", container["resources"]["requests"]["cpu"])
    pods = []
    for index in range(trainer["numNodes"]):
        environment = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(ranks),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        host = f"{name}-{replicated['name']}-0-{index}"
        pods.append(Pod(host, (f"{host}.{name}",), {**spec, "containers": [container]}, environment))
    return pods


def _of_the_job(entry: Document, name: str) -> Document:
    """A variable with the name of the TrainJob, which JobSet writes to a label of the pod, as its value."""
    reference = entry.get("valueFrom", {}).get("fieldRef")
    if reference is None:
        return entry
    assert reference == {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}
    return {"name": entry["name"], "value": name}


def mpijob_pods(job: Document, keys: Path, config: Path) -> tuple[list[Pod], Pod]:
    """The workers and the launcher. `keys` is the secret with the job's key, `config` gets the hostfile."""
    spec, name, namespace = job["spec"], job["metadata"]["name"], job["metadata"]["namespace"]
    replicas = {kind: spec["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker")}
    slots, secret = str(spec["slotsPerWorker"]), {spec["sshAuthMountPath"]: keys}
    assert spec["mpiImplementation"] == "Intel"
    workers = [
        Pod(
            f"{name}-worker-{index}",
            (f"{name}-worker-{index}.{name}.{namespace}.svc",),
            replicas["Worker"]["template"]["spec"],
            {"K_MPI_JOB_ROLE": "worker"},
            secret,
        )
        for index in range(replicas["Worker"]["replicas"])
    ]
    (config / "hostfile").write_text("".join(f"{worker.names[0]}:{slots}\n" for worker in workers))
    environment = {
        "K_MPI_JOB_ROLE": "launcher",
        "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "I_MPI_PERHOST": slots,
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    launcher = replicas["Launcher"]["template"]["spec"]
    folders = {**secret, "/etc/mpi": config}
    own = (f"{name}-launcher.{name}.{namespace}.svc",)
    return workers, Pod(f"{name}-launcher", own, launcher, environment, folders)


def docker_arguments(pod: Pod, claim: Path, secrets: Mapping[str, str]) -> list[str]:
    """`docker run` options and arguments for the pod's one container. `claim` is the folder behind the claim,
    `secrets` has the values of SECRET/KEY."""
    (container,) = pod.spec["containers"]
    outer, inner = pod.spec["securityContext"], container["securityContext"]
    assert outer["runAsNonRoot"] is True
    user, group = outer.get("runAsUser", OPENSHIFT_USER), outer.get("runAsGroup", 0)
    assert user != 0
    limits = container["resources"]["limits"]
    assert container["resources"]["requests"] == limits
    argv = [f"--hostname={pod.name}", f"--user={user}:{group}"]
    argv += [f"--network-alias={name}" for name in (pod.name, *pod.names)]
    argv += [
        f"--group-add={outer.get('fsGroup', FS_GROUP)}",
        f"--cpus={limits['cpu']}",
        f"--memory={_bytes(limits['memory'])}",
    ]
    argv += [f"--cap-drop={name}" for name in inner["capabilities"]["drop"]]
    argv += ["--security-opt=no-new-privileges"] if not inner["allowPrivilegeEscalation"] else []
    argv += ["--read-only"] if inner["readOnlyRootFilesystem"] else []
    variables = {entry["name"]: _value(entry, secrets) for entry in container["env"]}
    for name, value in {**variables, **pod.environment}.items():
        argv += ["--env", f"{name}={value}"]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for mount in container["volumeMounts"]:
        argv += ["--mount", _mount(volumes[mount["name"]], mount["mountPath"], claim)]
    for path, folder in pod.folders.items():
        argv += ["--mount", f"type=bind,source={folder},target={path},readonly"]
    argv += [f"--workdir={container['workingDir']}"] if "workingDir" in container else []
    entrypoint, *rest = container.get("command", [""])
    argv += [f"--entrypoint={entrypoint}"] if entrypoint else []
    return [*argv, container["image"], *rest, *map(_unescaped, container.get("args", ()))]


def _mount(volume: Document, path: str, claim: Path) -> str:
    if "persistentVolumeClaim" in volume:
        return f"type=bind,source={claim},target={path}"
    size = volume["emptyDir"].get("sizeLimit")  # a volume's folder is anybody's to write to
    return f"type=tmpfs,target={path},tmpfs-mode=0777" + (f",tmpfs-size={_bytes(size)}" if size else "")


def _value(entry: Document, secrets: Mapping[str, str]) -> str:
    if "value" in entry:
        return _unescaped(entry["value"])
    reference = entry["valueFrom"]["secretKeyRef"]
    return secrets[f"{reference['name']}/{reference['key']}"]


def _unescaped(text: str) -> str:
    """As the kubelet expands it: $$ is a dollar sign; no $(NAME) is meant by these manifests."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", text)
    return text.replace("$$", "$")


def _bytes(quantity: str) -> int:
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]
