"""A model of the catalogue by its name: its defaults, and its chain by sizes, without torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from gnnplace.costs import has_step_constants
from gnnplace.errors import InputError
from gnnplace.models import CatalogueModel, default_batch, find_model
from gnnplace.plans.answers import make_plan
from gnnplace.plans.decoders.adapters import Adapters
from gnnplace.plans.decoders.costs import DecoderCosts, decoder_chain
from gnnplace.plans.decoders.decoder import (
    DecoderSizes,
    catalogue_decoder,
    decoder_or_reason,
    with_adapters,
)
from gnnplace.plans.decoders.setting import (
    HALVES,
    PricingSetting,
    find_memory_limit,
    make_pricing_setting,
    roofline_line,
)
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.plan import Plan, PlanFile
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price_spec
from gnnplace.problem import Cluster, find_kind, get_figures

RECOGNISED = "recognised"
"""The source of the sizes of a model of one's own."""
HALF = "bf16-mixed"
FULL = "32-true"
BY_SIZES = "planned by the model's sizes; add --runnable for a plan that `gnnplace execute` runs"


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model of the catalogue as it is trained on a cluster.

    Attributes:
        job: What is trained, with the catalogue's defaults.
        row: The model's row of the catalogue.
        sizes: What prices it; None where its layers are priced from a capture alone.
    """

    job: TrainingJob
    row: CatalogueModel
    sizes: DecoderSizes | None


def find_named(job: TrainingJob, cluster: Cluster) -> NamedModel | None:
    """Return the model of the catalogue that a job names, or None for every other model.

    Its defaults are of GPUs: on other devices the example inputs of the model's type stay.

    Raises:
        InputError: If the model has layers that no plan is made for.
    """
    for kind in cluster.kinds:
        if find_kind(kind) == "cpu":
            return None
    if not isinstance(job.model, str):
        return None
    name, _, query = job.model.partition("?")
    row = find_model(name)
    if row is None:
        return None
    is_plain = all(
        part.startswith(("length=", "batch=")) for part in query.split("&") if part
    )
    sizes = catalogue_decoder(job.model, cluster.num_devices)
    if sizes is not None and job.lora is not None:
        sizes = with_adapters(sizes, job.lora)
    if not is_plain:
        return None
    batch = job.batch
    if batch is None and sizes is not None:
        batch = sizes.batch
    elif batch is None and row.tokens is not None and "batch=" not in query:
        batch = default_batch(row.tokens, cluster.num_devices)
    model = job.model
    if row.length is not None and "length=" not in query:
        model = f"{model}{'&' if query else '?'}length={row.length}"
    has_half = all(get_figures(kind).has_bfloat16 for kind in cluster.kinds)
    precision = job.precision or (HALF if has_half else FULL)
    return NamedModel(
        replace(job, model=model, batch=batch, precision=precision), row, sizes
    )


def make_sized_model(job: TrainingJob, cluster: Cluster) -> NamedModel:
    """Return a decoder of one's own, known by its sizes, as one of the catalogue.

    Args:
        job: The job, whose model is given by `hf:CONFIG` or `module:callable`, or is a module.
        cluster: The devices, on all of which frameworks are priced.

    Raises:
        InputError: If it is no such decoder, with the reason.
        CaptureError: If it cannot be captured.
    """
    if isinstance(job.model, str):
        name = job.model
    else:
        name = type(job.model).__name__
    sizes = decoder_or_reason(job.model, job.inputs, cluster.num_devices, loss=job.loss)
    if isinstance(sizes, str):
        raise InputError(
            f"{name}: is no decoder of text that is known by its sizes, for which launchers' "
            f"plans are searched: {sizes}; give a plan of yours with --given"
        )
    row = CatalogueModel(
        name=name,
        type=sizes.kind,
        config={},
        parameters=sizes.parameters,
        source="" if name.startswith("hf:") else RECOGNISED,
    )
    job = replace(job, batch=job.batch or sizes.batch, precision=job.precision or HALF)
    return NamedModel(job, row, with_adapters(sizes, job.lora))


def find_named_chain(named: NamedModel, cluster: Cluster) -> Chain | None:
    """Return a model of the catalogue as a chain by its sizes, or None if a capture must price it.

    Args:
        named: The model.
        cluster: The devices, of kinds with constants.
    """
    job = named.job
    if named.sizes is None or job.precision not in HALVES:
        return None
    if not all(has_step_constants(kind) for kind in cluster.kinds):
        return None
    setting = make_pricing_setting(
        replace(named.sizes, batch=job.batch or named.sizes.batch),
        cluster,
        precision=job.precision,
        optimizer=job.optimizer,
        memory_limit=find_memory_limit(cluster),
    )
    return build_named_chain(named.row, setting)


def capture_file_chain(
    file: PlanFile, model: str, cluster: Cluster, precision: str
) -> Chain:
    """Capture the model of a plan's file with the file's batch and optimizer.

    Args:
        file: The plan's file.
        model: The model by its name.
        cluster: The devices.
        precision: The precision to capture in.
    """
    # Captures import torch.
    from gnnplace.plans.segments.chains import capture_chain

    job = TrainingJob(
        model,
        batch=file.batch,
        precision=precision,
        optimizer=file.optimizer,
        accept_other_loss=True,
    )
    named = find_named(job, cluster)
    return capture_chain(job if named is None else named.job, cluster)


def build_named_chain(row: CatalogueModel, setting: PricingSetting) -> Chain:
    """Return a model of the catalogue as a chain by its sizes.

    Args:
        row: The model's row of the catalogue.
        setting: The model's sizes, the devices and the framework.
    """
    sizes = setting.decoder
    cluster = setting.cluster
    # What a type or the data says by itself is no field of a fingerprint.
    fields = asdict(replace(sizes, batch=1))
    for name in ("joins_queries", "joins_gate", "sample_length"):
        del fields[name]
    if sizes.adapters is None:
        del fields["adapters"]
    else:
        fields["adapters"] = _format_adapter_words(sizes.adapters)
    structure = json.dumps([row.type, fields])
    shape = (sizes.batch, sizes.length)
    notices = _notices(row, sizes.length) + adapter_lines(sizes)
    if setting.framework.kernels.is_roofline:
        notices.append(roofline_line(cluster))
    return replace(
        decoder_chain(setting, row.name),
        fingerprint=hashlib.sha256(structure.encode()).hexdigest(),
        inputs=(("input_ids", shape, "int64"), ("labels", shape, "int64")),
        parameters=sizes.parameters,
        notices=(*notices, BY_SIZES),
    )


def adapter_lines(sizes: DecoderSizes) -> list[str]:
    """Format what is trained where it is not everything."""
    adapters = sizes.adapters
    if adapters is None:
        return []
    layers = "all linear layers but the head"
    if adapters.targets:
        layers = f"the products {', '.join(adapters.targets)} of layers"
    elif sizes.experts is not None:
        layers += ", the router and the experts"
    frozen = "half precision"
    if adapters.is_quantized:
        frozen = "4 bits (NF4), tables and norms in half precision"
    if adapters.is_quantized and sizes.experts is not None:
        if adapters.quantizes_experts:
            experts = "experts too; tables"
        else:
            experts = "experts, tables"
        frozen = f"4 bits (NF4), {experts} and norms in half precision"
    return [
        f"{adapters.name} r={adapters.rank} on {layers}: {sizes.trained_parameters:,} parameters "
        f"are trained, {sizes.parameters:,} frozen in {frozen}"
    ]


def _format_adapter_words(adapters: Adapters) -> dict[str, object]:
    """Return the words of adapters that make another model, without defaults of later words."""
    fields: dict[str, object] = {"rank": adapters.rank, "bits": adapters.bits}
    if adapters.targets:
        fields["targets"] = adapters.targets
    if adapters.quantizes_experts:
        fields["expert_bits"] = adapters.expert_bits
    return fields


def _notices(row: CatalogueModel, length: int) -> list[str]:
    """Return lines on what is planned or priced otherwise than the published model was trained."""
    notices = []
    if row.source == RECOGNISED:
        notices.append(
            f"{row.name} is known by its sizes: a launcher trains its own layers of these sizes; "
            "check that activation, norms and positions are the module's"
        )
    if row.part:
        notices.append(
            f"{row.name} is multi-modal: its {row.part} part alone is planned"
        )
    window = row.config.get("sliding_window") or length
    if window < length:
        notices.append(
            f"attention within windows of {window:,} tokens is priced over the whole {length:,}"
        )
    return notices


def price_named(chain: Chain, cluster: Cluster, spec: PlanSpec) -> Plan:
    """Price a plan in words of a model that is priced by its sizes.

    Raises:
        InputError: If the plan does not fit the model, the cluster or the framework.
    """
    source = chain.source
    assert isinstance(source, DecoderCosts)
    setting = source.setting
    priced = make_plan(chain, cluster, price_spec(setting, spec))
    words = {
        "words": str(spec.with_words(batch=spec.batch or setting.decoder.batch)),
        "gradients": spec.gradients or setting.framework.traits.gradients,
    }
    return replace(priced, file=priced.file.model_copy(update=words))
