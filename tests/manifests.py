"""What a cluster would say of a manifest: by the schemas of `schemas/` and those of Kubernetes.

A schema names keys and types; where it names keys, others are mistakes. Rules that operators check
by code (CEL, webhooks) are not in it, but for those that are noted there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

SCHEMAS = {
    schema["properties"]["kind"]["const"]: schema
    for file in sorted((Path(__file__).parent / "schemas").glob("*.yaml"))
    for schema in [yaml.safe_load(file.read_text(encoding="utf-8"))]
}
KUBERNETES = "1.34"


def mistakes(manifest: str) -> list[str]:
    """What is wrong in the documents of a file, each with its place."""
    return [found for document in yaml.safe_load_all(manifest) for found in _in_document(document)]


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that, where it names keys, allows no others; conditions stay as they are."""
    closed = dict(schema)
    for keyword in ("properties", "$defs"):
        if keyword in schema:
            closed[keyword] = {name: strict(each) for name, each in schema[keyword].items()}
    if "items" in schema:
        closed["items"] = strict(schema["items"])
    if "properties" in schema:
        closed = {"type": "object", "additionalProperties": False, **closed}
    return closed


def _in_document(document: dict[str, Any]) -> Iterator[str]:
    kind = document["kind"]
    if kind not in SCHEMAS:
        yield from _of_kubernetes(document)
        return
    for error in Draft202012Validator(strict(SCHEMAS[kind])).iter_errors(document):
        yield f"{kind}: {error.json_path}: {error.message}"
    for part in _parts(document):
        yield from _of_kubernetes(part)


def _parts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What in a document of an operator is of Kubernetes, as documents of their own."""
    spec = document["spec"]
    match document["kind"]:
        case "PyTorchJob":
            for replicas in spec.get("pytorchReplicaSpecs", {}).values():
                template = replicas.get("template", {})
                yield {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        case "TrainingRuntime":
            for job in spec.get("template", {}).get("spec", {}).get("replicatedJobs", []):
                yield {"apiVersion": "batch/v1", "kind": "Job", **job.get("template", {})}
        case "Experiment":
            yield spec["trialTemplate"]["trialSpec"]


def _of_kubernetes(document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{document['kind']}: {'.'.join(map(str, error.path))}: {error.message}"
