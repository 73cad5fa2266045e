"""The manifests of packaging/kubernetes against the schemas of Kubernetes itself, as kubernetes-validate brings them, and for what these
do not say: sidecar, probes, draining, volumes. A line each; the exit code is 1 if one is not as it should be.
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


def complaints_about_mount(pod, claims):
    """What the schemas cannot say of a pod that has a daemon of ours."""
    daemons = [c for c in [*pod.get("initContainers", []), *pod["containers"]] if c["name"] == "dlio-fs"]
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
    flags = dict(zip(words, words[1:]))
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
    if "emptyDir" in volumes[mounts[fast]["name"]]:
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


def main():
    documents = [(file.name, d) for file in sorted(MANIFESTS.glob("*.yaml")) for d in yaml.safe_load_all(file.read_text())]
    claims = {d["metadata"]["name"] for _, d in documents if d["kind"] == "PersistentVolumeClaim"}
    failed, mounts = 0, 0

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
            tell(what, list(complaints_about_mount(document["spec"]["template"]["spec"], claims)))
    tell("a sidecar and a DaemonSet", [] if mounts == 2 else [f"{mounts} of them"])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
