"""Croissant: a description of a data set that tools read (MLCommons, 1.0, with its RAI fields).

https://docs.mlcommons.org/croissant/docs/croissant-spec.html
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnplace.files import write_json

FILE = "croissant.json"
LICENCE = "https://creativecommons.org/licenses/by/4.0/"
CONFORMS = [
    "http://mlcommons.org/croissant/1.0",
    "http://mlcommons.org/croissant/RAI/1.0",
]
PUBLISHED, DATA_VERSION = "2026-11-29", "1.0.0"
FORMATS = {
    ".npz": "application/octet-stream",
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".txt": "text/plain",
}
NUMBERS = {"ops": "sc:Integer", "step_time_s": "sc:Float", "measured_s": "sc:Float"}
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


@dataclass(frozen=True)
class DataSetCard:
    """The description of a data set, without its files.

    Attributes:
        name: The name of the data set.
        description: One sentence or two.
        collection: How the data came about.
        limitations: What they do not cover.
        use_cases: What they are for.
        creator: The authors.
        url: Where they are; empty if they are not published.
        licence: The address of their licence.
        addresses: Where each file is found, by its name, if it does not come with the description.
    """

    name: str
    description: str
    collection: str
    limitations: str
    use_cases: str
    creator: str = "The gnnplace authors"
    url: str = ""
    licence: str = LICENCE
    addresses: Mapping[str, str] = field(default_factory=dict)


def write_croissant(
    folder: Path, files: Sequence[Path], card: DataSetCard, records: str = ""
) -> None:
    """Write the description of a folder's files.

    Args:
        folder: The folder of the data set.
        files: The files that it has.
        card: What it is.
        records: A CSV file among them whose lines are described as records; empty for none.
    """
    distribution = [
        {
            "@type": "cr:FileObject",
            "@id": path.name,
            "name": path.name,
            "contentUrl": card.addresses.get(path.name, path.name),
            "contentSize": f"{path.stat().st_size} B",
            "encodingFormat": FORMATS[path.suffix],
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files
    ]
    data: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": card.name,
        "description": card.description,
        "license": card.licence,
        "creator": {"@type": "sc:Organization", "name": card.creator},
        "datePublished": PUBLISHED,
        "version": DATA_VERSION,
        "citeAs": f"{card.creator}: {card.name}, {PUBLISHED[:4]}.",
        "rai:dataCollection": card.collection,
        "rai:dataLimitations": card.limitations,
        "rai:dataUseCases": card.use_cases,
        "rai:dataBiases": card.limitations,
        "rai:personalSensitiveInformation": "None: random weights and inputs alone.",
        "rai:dataReleaseMaintenancePlan": "Versions with checksums; a change makes a new version.",
        "distribution": distribution,
    }
    if card.url:
        data["url"] = card.url
    if records:
        data["recordSet"] = [_record_set(folder / records)]
    write_json(folder / FILE, data)


def _record_set(path: Path) -> dict[str, Any]:
    """Return the description of a CSV file's lines."""
    with path.open(encoding="utf-8", newline="") as file:
        columns = next(csv.reader(file))
    name = path.stem
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{name}/{column}",
                "name": column,
                "description": column.replace("_", " "),
                "dataType": NUMBERS.get(column, "sc:Text"),
                "source": {
                    "fileObject": {"@id": path.name},
                    "extract": {"column": column},
                },
            }
            for column in columns
        ],
    }
