"""Sources of small plugins that work until a line is changed, for tests of what breaks."""

from __future__ import annotations

KERNEL = '''
import torch
from torch.nn.functional import linear
from hundredfold.plugin.dequantize import dequantize

class Layer:
    nbytes = 1
    recipe = "odd"

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        y = linear(x, self.weight)
        return y

class Plugin:
    """A kernel of somebody else's."""
    name = "odd"
    api_version = 1
    priority = 99

    def refuses(self, spec):
        return []

    def prepare(self, spec, bias):
        return Layer(dequantize(spec.weight, spec.dtype))
'''

QUANTIZATION = """
from hundredfold.plugin import ChannelInt8Weight, DenseWeight

class Plugin:
    name = "odd"
    api_version = 1

    def refuses(self, checkpoint):
        return []

    def bind(self, checkpoint):
        return self

    def covers(self, layer):
        return True

    def load(self, layer, tensors):
        weight = tensors.dense(layer.name + ".weight")
        return DenseWeight(weight)
"""

KV_CACHE = """
from hundredfold.plugin import Encoding, ScalePolicy

class Plugin:
    name = "odd"
    api_version = 1
    encoding = Encoding.FP32
    scales = ScalePolicy.NONE

    def refuses(self, spec):
        return []
"""

ATTENTION = """
import torch

class Cache:
    nbytes = 0
    def copy_blocks(self, source, destination):
        pass

class Plugin:
    name = "odd"
    api_version = 1
    priority = 99

    def refuses(self, layer, cache, encoding):
        return []

    def bytes_per_block(self, cache, encoding):
        return 1024

    def allocate(self, cache, encoding, num_blocks):
        return Cache()

    def plan(self, batch, cache, encoding):
        return lambda layer, cache, q, k, v: q.flatten(1)
"""

SOURCES = {
    "hundredfold.kernels": KERNEL,
    "hundredfold.quantization": QUANTIZATION,
    "hundredfold.kv_cache": KV_CACHE,
    "hundredfold.attention": ATTENTION,
}


def changed(group: str, old: str, new: str) -> str:
    """The source of ``group`` with a line changed. Raises ``ValueError`` when the line is not there."""
    source = SOURCES[group]
    if old not in source:
        raise ValueError(f"the plugin of {group} has no {old!r}")
    return source.replace(old, new)
