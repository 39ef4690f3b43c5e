"""The plugin API: what a package has to provide to add a format, kernel, backend, cache or strategy.

``API_VERSION`` changes when an existing plugin would have to change. torch is imported only for type
checking, so the contracts load anywhere.
"""

from hundredfold.plugin.attention import (
    ApproximateAttention,
    AttentionBatch,
    AttentionPlugin,
    AttentionSpec,
    InvariantAttention,
    KeysAndValues,
    LayerCache,
    PlannedAttention,
    own_cache,
    variance_reasons,
)
from hundredfold.plugin.capture import (
    NO_ROWS,
    CapturedAttention,
    CapturingAttention,
    CapturingElementwise,
    CapturingLinear,
    LookingUpElementwise,
    NativeCall,
    Program,
)
from hundredfold.plugin.elementwise import (
    Activation,
    Elementwise,
    ElementwisePlugin,
    ElementwiseSpec,
    RotaryStyle,
    Rotation,
)
from hundredfold.plugin.forms import LayerOutline, LayerRole, StatingForms, TensorHeader, WeightForm
from hundredfold.plugin.kernels import (
    Activations,
    FavouringKernel,
    InvariantKernel,
    KernelPlugin,
    Linear,
    LinearSpec,
    StoredLinear,
    kernel_reasons,
)
from hundredfold.plugin.kv_cache import Encoding, KVCachePlugin, KVCacheSpec, ScalePolicy
from hundredfold.plugin.quantization import (
    CheckpointInfo,
    Formats,
    LayerRequest,
    QuantizationMethod,
    QuantizationPlugin,
    StoredTensor,
    TensorSource,
)
from hundredfold.plugin.quantizer import Quantizer
from hundredfold.plugin.reasons import PROMISES_NOTHING, Choice, NothingFits, Reasons, Refused, choose
from hundredfold.plugin.sampling import Drawer, DrawingElementwise, DrawRows
from hundredfold.plugin.speculative import Drafter, DraftRequest, SpeculationSpec, SpeculativePlugin
from hundredfold.plugin.weights import (
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    Permute,
    Scale,
    Zero,
)

API_VERSION = 1
"""Version of the contracts in this package."""

GROUPS = {
    "hundredfold.quantization": QuantizationPlugin,
    "hundredfold.quantizers": Quantizer,
    "hundredfold.kernels": KernelPlugin,
    "hundredfold.elementwise": ElementwisePlugin,
    "hundredfold.kv_cache": KVCachePlugin,
    "hundredfold.attention": AttentionPlugin,
    "hundredfold.speculative": SpeculativePlugin,
}
"""Entry-point group to the contract that its plugins have to meet."""

__all__ = [
    "API_VERSION",
    "GROUPS",
    "NO_ROWS",
    "PROMISES_NOTHING",
    "Activation",
    "Activations",
    "ApproximateAttention",
    "AttentionBatch",
    "AttentionPlugin",
    "AttentionSpec",
    "BlockHadamard",
    "CanonicalWeight",
    "CapturedAttention",
    "CapturingAttention",
    "CapturingElementwise",
    "CapturingLinear",
    "ChannelInt8Weight",
    "CheckpointInfo",
    "Choice",
    "Codebook4Weight",
    "DenseWeight",
    "DraftRequest",
    "Drafter",
    "DrawRows",
    "Drawer",
    "DrawingElementwise",
    "Elementwise",
    "ElementwisePlugin",
    "ElementwiseSpec",
    "Encoding",
    "FavouringKernel",
    "Float8Weight",
    "Formats",
    "GroupedIntWeight",
    "InputTransform",
    "InvariantAttention",
    "InvariantKernel",
    "KVCachePlugin",
    "KVCacheSpec",
    "KernelPlugin",
    "KeysAndValues",
    "LayerCache",
    "LayerOutline",
    "LayerRequest",
    "LayerRole",
    "Linear",
    "LinearSpec",
    "LookingUpElementwise",
    "NativeCall",
    "NothingFits",
    "Permute",
    "PlannedAttention",
    "Program",
    "QuantizationMethod",
    "QuantizationPlugin",
    "Quantizer",
    "Reasons",
    "Refused",
    "RotaryStyle",
    "Rotation",
    "Scale",
    "ScalePolicy",
    "SpeculationSpec",
    "SpeculativePlugin",
    "StatingForms",
    "StoredLinear",
    "StoredTensor",
    "TensorHeader",
    "TensorSource",
    "WeightForm",
    "Zero",
    "choose",
    "kernel_reasons",
    "own_cache",
    "variance_reasons",
]
