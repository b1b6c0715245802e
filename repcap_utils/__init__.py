"""repcap: the reference replication of "Representational Capacity" (arXiv 2606.02765).

Each module computes one thing; `notebooks/` tells the story and `repcap --help` offers the same from a shell.
"""

__version__ = "0.1.0"
