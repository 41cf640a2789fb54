"""The cluster room: devices, links, presets and their files."""

from gnnplace.problem.cluster.cluster import Cluster as Cluster
from gnnplace.problem.cluster.files import load_cluster as load_cluster
from gnnplace.problem.cluster.files import read_cluster as read_cluster
from gnnplace.problem.cluster.files import write_cluster as write_cluster
from gnnplace.problem.cluster.presets import preset as preset
from gnnplace.problem.cluster.presets import preset_names as preset_names
from gnnplace.problem.cluster.schema import Device as Device
from gnnplace.problem.cluster.schema import Link as Link
