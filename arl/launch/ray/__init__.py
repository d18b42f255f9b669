"""Start the processes of a run on the nodes of a Ray cluster that is there. Ray is an optional package."""

from arl.errors import InputError

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise InputError(
        "Ray is not installed; pip install -e '.[ray]' in arl's clone on every node, or use launcher: local"
    ) from error
