"""Build Datasets from folders of images, tables, JSON lines, and the outputs of a frozen network on another Dataset.

Every function except `unfrozen` and `by_weight` returns data for `argosy.Data`: a map-style Dataset, a stream, or arrays. Samples of Datasets and
streams are prepared once and kept, as those of any Dataset.
"""

from argosy.data.features import features as features
from argosy.data.features import unfrozen as unfrozen
from argosy.data.images import image_folder as image_folder
from argosy.data.in_shards import from_shards as from_shards
from argosy.data.lines import json_lines as json_lines
from argosy.data.tables import columns as columns
from argosy.data.tables import table as table
from argosy.data.weights import by_weight as by_weight

__all__ = ["by_weight", "columns", "features", "from_shards", "image_folder", "json_lines", "table", "unfrozen"]
