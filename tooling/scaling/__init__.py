"""How long a data-parallel job takes on N nodes: a model from first principles. Pure, but for reading a config."""
