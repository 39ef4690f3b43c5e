"""Hands each layer of a checkpoint to the format that a rule names for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    LayerOutline,
    LayerRequest,
    QuantizationMethod,
    Reasons,
    StatingForms,
    TensorSource,
    WeightForm,
)
from hundredfold.plugin.reading import FLOATS, read_tensor
from hundredfold_mixed.rules import Rule, parse_rules

QUANT_METHOD = "mixed"


class Mixed:
    """Layers of several formats in one checkpoint, by rules over their names."""

    name = "mixed"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes safetensors whose quant_method is mixed."""
        config = checkpoint.quantization_config or {}
        if checkpoint.container != "safetensors" or config.get("quant_method") != QUANT_METHOD:
            return ["reads safetensors whose quant_method is mixed"]
        if checkpoint.formats is None:
            return ["its rules name other formats, and nobody is here to find them: rules do not nest"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> MixedMethod:
        """The rules with their methods. Raises ``ValueError`` naming the rule at fault."""
        config, formats = checkpoint.quantization_config or {}, checkpoint.formats
        if formats is None:
            raise ValueError("its rules name other formats, and nobody is here to find them")
        bound = []
        for number, rule in enumerate(parse_rules(config), 1):
            method = None
            if rule.config is not None:
                try:
                    method = formats.bind(CheckpointInfo(checkpoint.container, rule.config))
                except ValueError as error:
                    raise ValueError(f"rule {number}, layers '{rule.layers}': {error}") from error
            bound.append(BoundRule(rule, method))
        return MixedMethod(tuple(bound))


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule and the method that reads its layers; ``None`` for plain floats."""

    rule: Rule
    method: QuantizationMethod | None


class MixedMethod:
    """The first rule that matches a layer reads it; a layer without one is plain floats."""

    def __init__(self, rules: tuple[BoundRule, ...]) -> None:
        self._rules = rules
        self._read: Counter[str] = Counter()

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer as its format reads it. Raises ``ValueError`` naming layer, tensor and reason."""
        bound = self._rule(layer.name)
        method = None if bound is None else bound.method
        self._read["no rule" if bound is None else f"'{bound.rule.layers}'"] += 1
        if method is None or not method.covers(layer):
            return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))
        return method.load(layer, tensors)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``; a layer's own format says it. Raises ``ValueError`` where that cannot."""
        bound = self._rule(layer.name)
        method = None if bound is None else bound.method
        if bound is None or method is None or not method.covers(layer.request):
            return None
        if not isinstance(method, StatingForms):
            raise ValueError(
                f"layer '{layer.name}': the format of rule '{bound.rule.layers}' does not say what it makes"
            )
        return method.form(layer)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How many layers each rule had, and what the formats have to tell, each text once."""
        layers = ", ".join(f"{count} by {rule}" for rule, count in self._read.most_common())
        own = (f"layers: {layers}",) if layers else ()
        said = (text for bound in self._rules for text in getattr(bound.method, "remarks", ()))
        return (*own, *dict.fromkeys(said))

    def _rule(self, name: str) -> BoundRule | None:
        return next((bound for bound in self._rules if bound.rule.matches(name)), None)
