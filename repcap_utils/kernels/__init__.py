"""The inner loops: products of tiles fused with what is done to them. They import nothing else of this package."""
