"""The Docker Engine: finds it, installs and starts it if allowed, and runs its commands.

Start with `api`.
"""
