"""The engine, Docker or podman: finds it, installs and starts Docker if allowed, and runs its commands.

Start with `api`.
"""
