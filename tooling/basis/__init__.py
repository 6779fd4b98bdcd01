"""Used by every room: the checkout's folders and identity, tables on a terminal, YAML."""
