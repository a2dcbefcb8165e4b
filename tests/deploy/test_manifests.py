"""deploy/: the image, the compose file and the Kubernetes manifests agree with each other and with the configuration.

`make deploy-check` also validates the manifests against the schemas of Kubernetes.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kestrel.config.load import loads
from tests.server.running import ROOT, Processes

DEPLOY: Final = ROOT / "deploy"
CONTAINERFILE: Final = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
CONFIG_TEXT: Final = (DEPLOY / "kestrel.toml").read_text()
CONFIG: Final = loads(CONFIG_TEXT)
PORTS: Final = {
    "memcache": CONFIG.memcache_listen_port,
    "text": CONFIG.text_listen_port,
    "thrift": CONFIG.thrift_listen_port,
    "admin": CONFIG.admin.http_port,
}


def document(path: str) -> Any:
    """Return the one document of a YAML file below deploy/."""
    return yaml.safe_load((DEPLOY / path).read_text())


KUSTOMIZATIONS: Final = {folder: document(f"{folder}kustomization.yaml") for folder in ("", "monitoring/")}
RESOURCES: Final = {
    resource["kind"]: resource
    for folder, kustomization in KUSTOMIZATIONS.items()
    for resource in (document(folder + path) for path in kustomization["resources"])
}
POD: Final = RESOURCES["StatefulSet"]["spec"]["template"]["spec"]
CONTAINER: Final = POD["containers"][0]
SERVICES: Final = document("compose.yaml")["services"]


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction of the Containerfile, wherever it occurs."""
    return re.findall(rf"^{name} (.*)$", CONTAINERFILE, re.MULTILINE)


def command() -> list[str]:
    """Return the command line of the container."""
    return [word for name in ("ENTRYPOINT", "CMD") for line in instructions(name) for word in json.loads(line)]


def test_container_serves_its_ports_with_the_configuration_of_the_image(processes: Processes) -> None:
    text = CONFIG_TEXT.replace("/var/lib/kestrel", str(processes.folder))
    twistd, *arguments = command()
    assert twistd == "twistd"
    assert arguments[arguments.index("--config") + 1] == "/etc/kestrel/kestrel.toml"
    arguments[arguments.index("--config") + 1] = str(processes.write("kestrel.toml", text))
    done = processes.run(*processes.command, *arguments, "--validate")
    assert (done.returncode, done.stderr) == (0, "")
    assert instructions("EXPOSE") == [" ".join(map(str, PORTS.values()))]


def test_image_uses_existing_files_that_are_not_ignored() -> None:
    sources = [words[:-1] for line in instructions("COPY") if not (words := shlex.split(line))[0].startswith("--from")]
    ignored = [line for line in (ROOT / ".containerignore").read_text().split("\n") if line and line[0] != "#"]
    kept = {line[1:] for line in ignored if line[0] == "!"}
    assert ignored[0] == "*"
    assert {path for paths in sources for path in paths} == kept
    assert all((ROOT / path).exists() for path in kept)


def test_image_has_all_sources_of_the_build() -> None:
    manifest = re.findall(r"^(?:include|graft) (.*)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    kept = {path for line in instructions("COPY") for path in shlex.split(line)[:-1]}
    assert {"kestrel", "pyspark_kestrel", "twisted", "tap-configs", "docs/package.md"} <= kept
    assert "deploy" in manifest


def test_user_of_the_image_is_that_of_the_pods() -> None:
    (user,) = instructions("USER")
    assert re.search(r"useradd --uid (\d+)", CONTAINERFILE)[1] == user.partition(":")[0]  # type: ignore[index]
    context = POD["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["runAsNonRoot"] is True
    assert context["fsGroup"] == context["runAsGroup"]


def test_volume_holds_everything_that_the_server_writes() -> None:
    (volume,) = instructions("VOLUME")
    assert all(Path(path).is_relative_to(volume) for path in (CONFIG.queue_path, CONFIG.status_file))
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    (claim,) = RESOURCES["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert mounts == {volume: claim["metadata"]["name"], "/etc/kestrel": "config"}
    assert f"queues:{volume}" in SERVICES["kestrel"]["volumes"]


def test_ports_are_those_of_the_configuration() -> None:
    assert {port["name"]: port["containerPort"] for port in CONTAINER["ports"]} == PORTS
    assert {port["name"]: port["port"] for port in RESOURCES["Service"]["spec"]["ports"]} == PORTS
    assert SERVICES["kestrel"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in PORTS.values()]
    rules = RESOURCES["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [*PORTS]
    assert document("monitoring/prometheus.yaml")["scrape_configs"][0]["static_configs"] == [
        {"targets": [f"{CONFIG.admin.host_names[0]}:{CONFIG.admin.http_port}"]}
    ]


def test_selectors_match_the_labels_of_the_pods() -> None:
    labels = RESOURCES["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = [RESOURCES[kind]["spec"]["selector"]["matchLabels"] for kind in ("StatefulSet", "PodDisruptionBudget")]
    selectors += [RESOURCES["Service"]["spec"]["selector"]]
    selectors += [RESOURCES["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    selectors += [each["labelSelector"]["matchLabels"] for each in POD["topologySpreadConstraints"]]
    assert all(selector == labels for selector in selectors)
    assert RESOURCES["StatefulSet"]["spec"]["serviceName"] == RESOURCES["Service"]["metadata"]["name"]


def test_service_monitor_finds_the_admin_port_of_the_service() -> None:
    spec = RESOURCES["ServiceMonitor"]["spec"]
    labels = RESOURCES["Service"]["metadata"]["labels"]
    assert RESOURCES["ServiceMonitor"]["apiVersion"] == "monitoring.coreos.com/v1"
    assert spec["selector"] == {"matchLabels": labels}
    assert spec["endpoints"] == [{"port": "admin", "path": "/metrics", "interval": "15s"}]
    assert labels[spec["jobLabel"]] == "kestrel"


def test_probes_use_the_health_pages_of_the_admin_port() -> None:
    probes = {name: CONTAINER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {
        "startupProbe": {"path": "/health", "port": "admin"},
        "livenessProbe": {"path": "/health", "port": "admin"},
        "readinessProbe": {"path": "/ready", "port": "admin"},
    }
    (check,) = instructions("HEALTHCHECK")
    assert f"127.0.0.1:{CONFIG.admin.http_port}/health" in check


def test_containers_have_few_rights() -> None:
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    service = SERVICES["kestrel"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert CONFIG.administrators == ()


def test_memory_limit_leaves_room_for_the_process() -> None:
    limits = {CONTAINER["resources"]["limits"]["memory"], CONTAINER["resources"]["requests"]["memory"]}
    assert limits == {"1Gi"}
    assert SERVICES["kestrel"]["mem_limit"] == "1g"
    assert CONFIG.max_total_memory_bytes == 1 << 29


@pytest.mark.parametrize("folder", KUSTOMIZATIONS)
def test_generated_files_are_below_the_kustomization(folder: str) -> None:
    for generator in KUSTOMIZATIONS[folder]["configMapGenerator"]:
        for each in generator["files"]:
            assert (DEPLOY / folder / each.rpartition("=")[2]).is_file()


def test_pods_use_the_generated_configuration_and_the_image() -> None:
    kustomization = KUSTOMIZATIONS[""]
    names = [generator["name"] for generator in kustomization["configMapGenerator"]]
    assert POD["volumes"] == [{"name": "config", "configMap": {"name": names[0]}}]
    images = [image["name"] for image in kustomization["images"]]
    assert images == [CONTAINER["image"]] == [SERVICES["kestrel"]["image"]]


def test_files_of_the_compose_services_exist() -> None:
    sources = [volume.partition(":")[0] for service in SERVICES.values() for volume in service["volumes"]]
    names = document("compose.yaml")["volumes"].keys()
    assert [each for each in sources if each not in names and not (DEPLOY / each).is_file()] == []
    build = SERVICES["kestrel"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
