"""The manifests of packaging/kubernetes against the schemas of Kubernetes itself, as kubernetes-validate brings them, and for what these
do not say: sidecar, probes, draining, volumes, and what makes the mounts of several pods one fleet. A line each; the exit code is 1 if
one is not as it should be.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

MANIFESTS = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "kubernetes"
# Where packaging/Dockerfile puts it; there is no shell in that image.
PROGRAM = "/usr/bin/dlio-fs"
# Native sidecars came with 1.29.
VERSIONS = ["1.29", "1.33", kubernetes_validate.latest_version()]


def seconds(text):
    return int(text.removesuffix("s"))


def daemons_of(pod):
    return [c for c in [*pod.get("initContainers", []), *pod["containers"]] if c["name"] == "dlio-fs"]


def flags_of(daemon):
    words = daemon["command"]
    return dict(zip(words, words[1:]))


def options_of(daemon):
    """What -o gives."""
    given = flags_of(daemon).get("-o", "")
    return dict(option.split("=", 1) for option in given.split(",") if option)


def complaints_about_mount(pod, claims, templates):
    """What the schemas cannot say of a pod that has a daemon of ours. `templates`: the names of the claims that each pod has for itself."""
    daemons = daemons_of(pod)
    if len(daemons) != 1:
        yield f"has {len(daemons)} daemons"
        return
    (daemon,) = daemons
    if daemon in pod.get("initContainers", []) and daemon.get("restartPolicy") != "Always":
        yield "the daemon is no sidecar: the training would never start"
    if daemon["image"] != "dlio-fs:0.1.0":
        yield f"the image {daemon['image']} is not the one that docs/kubernetes.md builds"
    words = daemon["command"]
    if words[:2] != [PROGRAM, "mount"] or "--foreground" not in words:
        yield f"starts no daemon: {words}"
    flags = flags_of(daemon)
    mountpoint, fast, slow = words[2], flags["--fast"], flags["--slow"]
    port = int(flags["--metrics-addr"].rpartition(":")[2])
    ports = {p["name"]: p["containerPort"] for p in daemon["ports"]}
    probes = [("startupProbe", ("/readyz", "/healthz")), ("livenessProbe", ("/healthz",)), ("readinessProbe", ("/readyz",))]
    for probe, paths in probes:
        asked = daemon[probe]["httpGet"]
        if asked["path"] not in paths or ports[asked["port"]] != port:
            yield f"{probe} asks {asked}"
    drain = daemon["lifecycle"]["preStop"]["exec"]["command"]
    if drain[:3] != [PROGRAM, "drain", mountpoint] or drain[3] != "--deadline":
        yield f"preStop does not drain {mountpoint}: {drain}"
    elif seconds(drain[4]) >= pod["terminationGracePeriodSeconds"]:
        yield f"it is killed after {pod['terminationGracePeriodSeconds']} s, and drains for {drain[4]}"
    volumes = {v["name"]: v for v in pod["volumes"]}
    mounts = {m["mountPath"]: m for m in daemon["volumeMounts"]}
    above = str(pathlib.PurePath(mountpoint).parent)
    if mounts[above].get("mountPropagation") != "Bidirectional" or not daemon["securityContext"]["privileged"]:
        yield f"nobody else sees {mountpoint}"
    if mounts[fast]["name"] not in templates and "emptyDir" in volumes[mounts[fast]["name"]]:
        yield "the fast tier is deleted with the pod"
    if not mounts[slow].keys() & {"subPath", "subPathExpr"}:
        yield "two of it would have one slow directory"
    for name in (v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v):
        if name not in claims:
            yield f"nobody claims {name}"
    for other in pod["containers"]:
        seen = [m for m in other["volumeMounts"] if m["name"] == mounts[above]["name"]]
        if other is not daemon and [m.get("mountPropagation") for m in seen] != ["HostToContainer"]:
            yield f"{other['name']} does not see a mount that replaces a dead one"


def complaints_about_fleet(document):
    """What makes the mounts of several pods one fleet, whose members find their slots again."""
    name, spec = document["metadata"]["name"], document["spec"]
    (daemon,) = daemons_of(spec["template"]["spec"])
    options = options_of(daemon)
    if options.get("fleet") != name:
        yield f"the fleet {options.get('fleet')} has another name than the claims of {name}"
    if options.get("fleet_size") != str(spec["replicas"]):
        yield f"{spec['replicas']} pods are a fleet of {options.get('fleet_size')}"
    if spec.get("podManagementPolicy") != "Parallel":
        yield "a pod waits until the one before it is ready"
    if spec.get("persistentVolumeClaimRetentionPolicy") != {"whenDeleted": "Retain", "whenScaled": "Retain"}:
        yield "a fast tier may be deleted with what is on it only"
    mounts = {m["mountPath"]: m for m in daemon["volumeMounts"]}
    flags = flags_of(daemon)
    if mounts[flags["--fast"]]["name"] not in {c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])}:
        yield "the pods have one fast tier together"
    if mounts[flags["--slow"]].get("subPath") != name:
        yield "the pods have no slow directory in common that is this fleet's alone"


def main():
    documents = [(file.name, d) for file in sorted(MANIFESTS.glob("*.yaml")) for d in yaml.safe_load_all(file.read_text())]
    claims = {d["metadata"]["name"] for _, d in documents if d["kind"] == "PersistentVolumeClaim"}
    failed, mounts, fleets = 0, 0, 0

    def tell(what, complaints):
        nonlocal failed
        for complaint in complaints:
            failed += 1
            print(f"FAILED {what}: {complaint}")
        if not complaints:
            print(f"ok {what}")

    for file, document in documents:
        what = f"{file}: {document['kind']} {document['metadata']['name']}"
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
                tell(f"{what}, Kubernetes {version}", [])
            except Exception as error:  # Whatever it says, it is about the document.
                tell(f"{what}, Kubernetes {version}", [error])
        if "template" in document.get("spec", {}):
            mounts += 1
            templates = {c["metadata"]["name"] for c in document["spec"].get("volumeClaimTemplates", [])}
            tell(what, list(complaints_about_mount(document["spec"]["template"]["spec"], claims, templates)))
        if document["kind"] == "StatefulSet":
            fleets += 1
            tell(f"{what}, a fleet", list(complaints_about_fleet(document)))
    tell("a sidecar, a DaemonSet and a fleet", [] if (mounts, fleets) == (3, 1) else [f"{mounts} mounts, {fleets} fleets"])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
