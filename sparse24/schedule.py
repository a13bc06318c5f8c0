"""Masks for sparse training, on NumPy, CuPy, torch and JAX arrays alike.

A `Recipe` joins a schedule (how sparse, when), a criterion (what a weight is worth), a pattern
(which weights may stay together), a distribution (how layers share the zeros) and a grower (which
weights come back).  The core is pure: ``step(state, weights=, gradients=)`` returns a state, masks
and events; `MaskScheduler` and `DynamicScheduler` carry the state.
"""

from sparse24._schedule.adaptive import Adaptive, LayerWiseAdapter
from sparse24._schedule.apply import apply_masks
from sparse24._schedule.asynchronous import AsyncScheduler
from sparse24._schedule.core import freeze, observe, step, thaw
from sparse24._schedule.criteria import (
    Accumulated,
    GivenScores,
    GradientMagnitude,
    Magnitude,
    Movement,
    RandomScores,
    Taylor,
)
from sparse24._schedule.criterion import Criterion
from sparse24._schedule.distributions import (
    ERK,
    Custom,
    Distribution,
    Hierarchical,
    Uniform,
)
from sparse24._schedule.dynamic import DynamicScheduler
from sparse24._schedule.gradients import (
    masked_decay_gradient,
    mvue_24,
    soft_threshold_24,
    soft_threshold_scale,
    sr_ste_gradient,
)
from sparse24._schedule.growers import (
    GradientGrowth,
    Grower,
    MomentumGrowth,
    NoGrowth,
    RandomGrowth,
)
from sparse24._schedule.initial import init
from sparse24._schedule.masks import MaskScheduler
from sparse24._schedule.patterns import NM, Pattern, Unstructured
from sparse24._schedule.phases import OneShot, Phases, StepScheduler, dense_sparse_dense
from sparse24._schedule.recipes import (
    gradual_magnitude,
    iterative_magnitude,
    rigl,
    sparse_evolutionary,
    sr_ste,
)
from sparse24._schedule.records import Recipe, State, Update
from sparse24._schedule.schedules import (
    ConstantScheduler,
    CosineScheduler,
    CubicScheduler,
    LinearScheduler,
    Schedule,
)
from sparse24._schedule.speedup import BySpeedup
from sparse24._schedule.state import from_dict, to_dict
from sparse24._schedule.telemetry import MaskWarning, Telemetry
from sparse24._schedule.tiles import Block, Channel, Elastic, TileHybrid
from sparse24._schedule.training import DecayFactorSearch, RewoundRate, targeted_dropout
from sparse24._schedule.transition import mask_slots, transition
from sparse24._schedule.transposable import Transposable24

__all__ = [
    "ERK",
    "NM",
    "Accumulated",
    "Adaptive",
    "AsyncScheduler",
    "Block",
    "BySpeedup",
    "Channel",
    "ConstantScheduler",
    "CosineScheduler",
    "Criterion",
    "CubicScheduler",
    "Custom",
    "DecayFactorSearch",
    "Distribution",
    "DynamicScheduler",
    "Elastic",
    "GivenScores",
    "GradientGrowth",
    "GradientMagnitude",
    "Grower",
    "Hierarchical",
    "LayerWiseAdapter",
    "LinearScheduler",
    "Magnitude",
    "MaskScheduler",
    "MaskWarning",
    "MomentumGrowth",
    "Movement",
    "NoGrowth",
    "OneShot",
    "Pattern",
    "Phases",
    "RandomGrowth",
    "RandomScores",
    "Recipe",
    "RewoundRate",
    "Schedule",
    "State",
    "StepScheduler",
    "Taylor",
    "Telemetry",
    "TileHybrid",
    "Transposable24",
    "Uniform",
    "Unstructured",
    "Update",
    "apply_masks",
    "dense_sparse_dense",
    "freeze",
    "from_dict",
    "gradual_magnitude",
    "init",
    "iterative_magnitude",
    "mask_slots",
    "masked_decay_gradient",
    "mvue_24",
    "observe",
    "rigl",
    "soft_threshold_24",
    "soft_threshold_scale",
    "sparse_evolutionary",
    "sr_ste",
    "sr_ste_gradient",
    "step",
    "targeted_dropout",
    "thaw",
    "to_dict",
    "transition",
]
