"""The files of docs/deploy.md fit Kubernetes' schemas, and use existing commands and names."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from sglang_prefill_ext.cli import app
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.fleet.settings import engine_urls

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deploy"
RELEASES = ("1.31", "1.37")
"""The oldest and the newest release of Kubernetes that the files are for."""

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SERVER_FLAGS = {
    "--enable-prefill-only",
    *(flag_name(each.name) for each in fields(PrefillOnlyConfig)),
}
SGLANGS = {"--config", "--model-path", "--host", "--port"}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """All documents except Helm's values, by file and kind."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if "kind" in each:
                yield f"{path.name}: {each['kind']}", each


DOCUMENTS = dict(documents())


def pod_templates(value: Any) -> Iterator[dict[str, Any]]:
    """All values of a key `template`, at any depth, that have containers."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "template" and "containers" in each.get("spec", {}):
                yield each
            yield from pod_templates(each)
    elif isinstance(value, list):
        for each in value:
            yield from pod_templates(each)


TEMPLATES = [(name, each) for name, one in DOCUMENTS.items() for each in pod_templates(one)]
UNITS = sorted(FOLDER.glob("*.service"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words of all commands of containers and units, except for Ray's, which KubeRay sets."""
    for name, template in TEMPLATES:
        for each in template["spec"]["containers"]:
            if "command" in each:
                yield name, [*each["command"], *each["args"]]
    for path in UNITS:
        yield path.name, shlex.split(unit(path)["Service"]["ExecStart"])


def unit(path: Path) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text())
    return read


def flag_values(words: list[str]) -> dict[str, str]:
    text = " ".join(words)
    return dict(re.findall(r"(--[\w-]+)(?:[= ]([^-]\S*))?", text))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_kubernetes_own_fits_its_schema(name: str, release: str) -> None:
    document = DOCUMENTS[name]
    if "ray.io" in document["apiVersion"]:
        return
    kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("name", "template"), TEMPLATES, ids=[name for name, _ in TEMPLATES])
def test_pods_fit_their_schema(name: str, template: dict[str, Any], release: str) -> None:
    """This includes pods of resources whose own schema comes with an operator."""
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
    kubernetes_validate.validate(pod, release, strict=True)


def test_a_misspelt_field_is_found() -> None:
    (_, template), *_ = TEMPLATES
    wrong = {"spec": template["spec"] | {"contaners": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        test_pods_fit_their_schema("", wrong, RELEASES[0])


@pytest.mark.parametrize(("name", "words"), list(commands()), ids=[name for name, _ in commands()])
def test_commands_exist_with_their_flags(name: str, words: list[str]) -> None:
    program, command = Path(words[0]).name, words[1]
    if program == "sglang":
        assert command == "serve"
        known = SERVER_FLAGS | SGLANGS
    else:
        assert program == "sglang-prefill"
        known = {flag for each in COMMANDS[command].params for flag in each.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_lists_of_processes_show_no_key() -> None:
    assert not [name for name, words in commands() if "key" in " ".join(words)]


def test_engines_and_routers_read_the_key_of_one_secret() -> None:
    page = (FOLDER.parent / "deploy.md").read_text()
    secret = re.search(r"create secret generic ([\w-]+) ", page)
    assert secret
    made = set(re.findall(r"--from-literal=([\w.-]+)=", page))
    (flags,) = (
        each["secret"]
        for each in DOCUMENTS["engines.yaml: StatefulSet"]["spec"]["template"]["spec"]["volumes"]
        if "secret" in each
    )
    spec = DOCUMENTS["router.yaml: Deployment"]["spec"]["template"]["spec"]
    (key,) = (each["valueFrom"]["secretKeyRef"] for each in spec["containers"][0]["env"])
    assert {flags["secretName"], key["name"]} == {secret[1]}
    assert {*(each["key"] for each in flags["items"]), key["key"]} == made


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_have_what_systemd_asks_for(path: Path) -> None:
    read = unit(path)
    assert read.sections() == ["Unit", "Service", "Install"]
    assert read["Service"]["Restart"] == "always"
    assert Path(shlex.split(read["Service"]["ExecStart"])[0]).is_absolute()


def test_an_engine_finds_what_is_installed_beside_it() -> None:
    """Units have a path of systemd's own. On a GPU, SGLang compiles, and calls `ninja`."""
    service = unit(FOLDER / "sglang-engine.service")["Service"]
    name, _, folders = service["Environment"].partition("=")
    assert name == "PATH"
    assert folders.split(":")[0] == str(Path(shlex.split(service["ExecStart"])[0]).parent)


def test_routers_name_every_engine_that_may_be_started() -> None:
    service, engines = (DOCUMENTS[f"engines.yaml: {kind}"] for kind in ("Service", "StatefulSet"))
    words = next(words for name, words in commands() if name == "router.yaml: Deployment")
    most = DOCUMENTS["autoscaling.yaml: HorizontalPodAutoscaler"]["spec"]["maxReplicas"]
    name, port = engines["metadata"]["name"], service["spec"]["ports"][0]["port"]
    domain = engines["spec"]["serviceName"]
    assert service["metadata"]["name"] == domain
    assert service["spec"]["clusterIP"] == "None"
    assert engine_urls(flag_values(words)["--engines"]) == tuple(
        f"http://{name}-{number}.{domain}:{port}" for number in range(most)
    )


def test_selectors_and_ports_lead_to_the_pods() -> None:
    for file, kind in (("engines.yaml", "StatefulSet"), ("router.yaml", "Deployment")):
        service, workload = DOCUMENTS[f"{file}: Service"], DOCUMENTS[f"{file}: {kind}"]
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert service["spec"]["selector"] == template["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        port = service["spec"]["ports"][0]["port"]
        assert container["ports"][0]["containerPort"] == port
        assert flag_values(container["args"])["--port"] == str(port)


def test_the_job_of_ray_has_engines_and_routers_where_the_cluster_has_nodes() -> None:
    cluster, job, service = (
        DOCUMENTS[f"ray.yaml: {kind}"] for kind in ("RayCluster", "RayJob", "Service")
    )
    name = {"ray.io/cluster": cluster["metadata"]["name"]}
    assert job["spec"]["clusterSelector"] == name
    assert service["spec"]["selector"].items() >= name.items()
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["sglang-prefill", "fleet"]
    flags = flag_values(words[2:])
    assert int(flags["--replicas"]) == workers["replicas"] == workers["maxReplicas"]
    assert int(flags["--router-nodes"]) == workers["replicas"] + 1
    assert int(flags["--port"]) == service["spec"]["ports"][0]["port"]


def test_the_autoscaler_asks_for_a_metric_that_routers_have() -> None:
    (rule,) = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    (metric,) = DOCUMENTS["autoscaling.yaml: HorizontalPodAutoscaler"]["spec"]["metrics"]
    asked = metric["object"]
    assert asked["metric"]["name"] == rule["name"]["as"]
    router = DOCUMENTS["router.yaml: Service"]
    assert asked["describedObject"]["name"] == router["metadata"]["name"]
    assert router["metadata"]["annotations"]["prometheus.io/port"] == "30080"
    (series,) = re.findall(r'__name__="([^"]+)"', rule["seriesQuery"])
    assert f"`{series}{{replica}}`" in (ROOT / "docs" / "fleet.md").read_text()


def test_the_page_leads_to_every_file() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    files = [path.name for path in FOLDER.iterdir()]
    assert files
    assert [name for name in files if f"(deploy/{name})" not in page] == []
