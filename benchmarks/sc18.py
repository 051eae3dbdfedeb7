"""What SC'18 published, as far as it compares with figures of one machine (Pittman et al., SC'18, Figs 8 to 11).

The curves were read off the vector drawings of the figures. Each of SC'18's nodes has its own cores (Titan: 16, or as
many as it was limited to), trains one network on a GPU, and takes float32 images of 224 x 224 pixels.
"""

from collections.abc import Mapping

__all__ = ["AGAINST_ALL_SHARED", "BROADCAST_PEAK", "CORE_LIMITED", "NETWORKS", "PEAK", "REDUCTION", "SOLO_PEAK", "at"]

Curve = Mapping[int, float]

NETWORKS = {"light": "Alexnet", "middle": "Inception", "heavy": "VGG-A"}
"""Training demand -> SC'18's network with such a demand; they take 306, 69 and 31 images/s."""

PEAK: Mapping[int, Curve] = {
    16: {2: 301.5, 4: 421.13, 6: 466.79, 8: 499.14, 10: 515.41, 15: 536.68, 20: 576.46, 50: 540.34, 100: 574.33},
    4: {2: 129.03, 4: 228.73, 6: 296.94, 8: 348.98, 10: 366.71, 15: 438.68, 20: 535.08, 50: 521.24},
}
"""Fig 8, all-shared: cores of a node -> nodes -> images/s that each node receives with training stripped."""
BROADCAST_PEAK: Mapping[str, Curve] = {
    "single-broadcast": {6: 400.17, 8: 363.03, 10: 350.77, 15: 339.88, 20: 266.43},
    "multi-broadcast": {6: 283.19, 8: 259.2, 10: 248.29, 15: 229.56, 20: 233.15},
}
"""Fig 8a, pipelines with five preparing nodes of 16 cores: nodes -> images/s that each node receives."""
SOLO_PEAK = 202.0
"""Images/s that one node of 16 cores prepares: 0.66 of Alexnet's demand (Fig 3 and the artifact's appendix)."""

REDUCTION: Mapping[str, Curve] = {
    "light": {1: 1.0, 2: 1.88, 5: 3.97, 10: 6.38, 15: 7.68, 20: 8.8, 25: 9.46, 50: 8.47},
    "middle": {1: 1.0, 2: 1.57, 5: 2.49, 10: 3.11, 15: 3.32, 20: 3.42, 25: 3.49, 50: 3.33},
    "heavy": {1: 1.0, 2: 1.4, 5: 1.95, 10: 2.24, 15: 2.33, 20: 2.36, 25: 2.38, 50: 2.28},
}
"""Fig 10: CPU seconds of n duplicated pipelines over those of all-shared; 1 at one network by definition."""

AGAINST_ALL_SHARED: Mapping[str, Curve] = {
    "single-broadcast": {10: 1.01, 15: 1.01, 20: 1.04, 25: 1.02, 50: 1.07},
    "multi-broadcast": {10: 3.09, 15: 2.61, 20: 2.3, 25: 2.06, 50: 1.54},
}
"""Fig 9: CPU seconds of a broadcast pipeline with five preparing nodes over those of all-shared; from 10 nodes up."""

CORE_LIMITED: Mapping[str, Curve] = {
    "light": {1: 10.03, 2: 6.87, 4: 4.21, 8: 2.56, 12: 1.89, 16: 1.61},
    "middle": {1: 3.37, 2: 2.21, 4: 1.36, 8: 1.06, 12: 1.03, 16: 1.02},
    "heavy": {1: 1.8, 2: 1.3, 4: 1.08, 8: 1.03, 12: 1.01, 16: 1.01},
}
"""Fig 11: cores of each of 100 nodes -> wall time of duplicated pipelines over that of all-shared."""


def at(curve: Curve, n: int) -> float:
    """Return the curve at n, interpolated linearly between published points.

    >>> at(REDUCTION["light"], 8)
    5.416
    """
    if n in curve:
        return curve[n]
    low, high = max(x for x in curve if x < n), min(x for x in curve if x > n)
    return round(curve[low] + (curve[high] - curve[low]) * (n - low) / (high - low), 4)
